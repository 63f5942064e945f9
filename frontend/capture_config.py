"""From config.json to a transformers config. Runs in the capture process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from inferc.errors import CompileError


def build(config: Mapping[str, Any]) -> PreTrainedConfig:
    fields = dict(config)
    return CONFIG_MAPPING[fields.pop("model_type")](**fields)
