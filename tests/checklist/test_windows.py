"""Which layers slide, by every field that says so (line 5)."""

from __future__ import annotations

import pytest

from inferc.errors import CompileError
from inferc.frontend import capture_config, capture_torch
from inferc.frontend.capture_request import CaptureRequest
from tests import tiny
from tests.frontend.captured import captured

WINDOWS = {
    "use_sliding_window = false": [None, None],
    "sliding_window_pattern": [8, None, 8, None],
    "layer_types": [None, 8],
    "window on every layer": [8, 8],
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_layers(name: str) -> None:
    """That their logits are those of transformers is tested by `test_parity`."""
    func = captured(name)[0].funcs["forward"]
    masks = [op.operands[3].producer for op in func.ops if op.name == "nn.attention"]
    assert [mask.attrs.get("window") for mask in masks if mask is not None] == WINDOWS[name]


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_window_without_tokens(tokens: int) -> None:
    config = tiny.config("window on every layer") | {"sliding_window": tokens}
    with pytest.raises(CompileError, match=rf"sliding window of {tokens} tokens.*null"):
        capture_torch.capture(CaptureRequest(config))


def test_a_window_that_would_be_ignored() -> None:
    with pytest.raises(CompileError, match="do not know: sliding_window = 8"):
        capture_config.build(tiny.config("llama") | {"sliding_window": 8})
