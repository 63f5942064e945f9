"""Checks of config.json that need no torch: refuse early what would go wrong silently later.

Above all the two spellings of rotary settings: `rope_scaling` with `rope_theta` (older files) and
`rope_parameters` (newer ones, possibly one entry a layer type). Either may be used; where both are
there, they have to agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferc.errors import CompileError

_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_SCALED = {"factor", "original_max_position_embeddings", "attention_factor"}
# rope type -> fields that it must have, and fields that it may have
ROPE_TYPES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "proportional": (frozenset(), frozenset({"factor"})),
    "yarn": (
        frozenset({"factor"}),
        frozenset(
            _SCALED
            | {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"}
        ),
    ),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
        frozenset({"original_max_position_embeddings"}),
    ),
    "longrope": (
        frozenset({"short_factor", "long_factor"}),
        frozenset(_SCALED | {"short_mscale", "long_mscale"}),
    ),
}
_OLD_NAMES = {"su": "longrope"}


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Raise CompileError for a config that cannot be compiled, or that contradicts itself."""
    if not isinstance(config.get("model_type"), str):
        raise CompileError(
            f"{where} has no model_type, so its architecture is unknown. Expected a config.json as "
            "transformers writes it (Mistral's params.json is another format)."
        )
    if "text_config" in config or "vision_config" in config:
        raise CompileError(
            f"{where} describes a multimodal model ({config['model_type']}, it has a text_config); "
            "only text models can be compiled."
        )
    if config.get("is_encoder_decoder"):
        raise CompileError(f"{where} describes an encoder-decoder model, not a causal one.")
    size = config.get("vocab_size", 1)
    if not isinstance(size, int) or size < 1:
        raise CompileError(f"vocab_size in {where}: expected a positive number, found {size!r}.")
    check_rope(config, where)


def check_rope(config: Mapping[str, Any], where: str) -> None:
    """Check every rotary setting by itself, then the two spellings against each other."""
    _check_theta(config, where)
    old, new = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    entries = layer_entries(new)
    if old:
        _check_entry(old, f"rope_scaling in {where}")
    for name, entry in entries.items():
        _check_entry(entry, f"rope_parameters{f'[{name!r}]' if name else ''} in {where}")
    if not entries:
        return
    # Per layer type, the old fields describe the full-attention layers (gemma3).
    entry = entries.get("full_attention", next(iter(entries.values())))
    if old:
        _compare(_normal(old), _normal(entry), "rope_scaling", where)
    flat = {
        k: config[k] for k in ("rope_theta", "partial_rotary_factor") if config.get(k) is not None
    }
    _compare(flat, entry, "the top level", where)
    local = config.get("rope_local_base_freq")
    if local is not None and "sliding_attention" in entries:
        _compare({"rope_theta": local}, entries["sliding_attention"], "rope_local_base_freq", where)


def layer_entries(parameters: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """`rope_parameters` as one entry a layer type; the name is empty where it is one for all."""
    nested = {k: v for k, v in parameters.items() if isinstance(v, Mapping)}
    if nested:
        return nested
    return {"": parameters} if parameters else {}


def rope_type(entry: Mapping[str, Any]) -> str:
    """The rope type under either spelling, with old names replaced."""
    name = str(entry.get("rope_type") or entry.get("type") or "default")
    return _OLD_NAMES.get(name, name)


def with_new_rope_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with rope types under the names that transformers knows (`su` is longrope)."""
    changed = dict(config)
    for field in ("rope_scaling", "rope_parameters"):
        entry = config.get(field)
        old = isinstance(entry, Mapping) and {entry.get("rope_type"), entry.get("type")}
        if old and old & _OLD_NAMES.keys():
            changed[field] = _normal(entry)
    return changed


def _check_entry(entry: Mapping[str, Any], where: str) -> None:
    _check_theta(entry, where)
    both = [entry.get("rope_type"), entry.get("type")]
    if None not in both and len({_OLD_NAMES.get(str(n), n) for n in both}) > 1:
        raise CompileError(
            f"{where} has rope_type {both[0]!r} and type {both[1]!r}; remove the one that is wrong."
        )
    kind = rope_type(entry)
    if kind == "dynamic":
        raise CompileError(
            f"{where} has rope type 'dynamic': its frequencies depend on the longest sequence of "
            "each batch, so a compiled model would not be the same function for every request. "
            "Use a model with linear, yarn, llama3 or longrope scaling."
        )
    if kind not in ROPE_TYPES:
        raise CompileError(
            f"{where} has the unknown rope type {kind!r}; known: {', '.join(ROPE_TYPES)}."
        )
    required, optional = ROPE_TYPES[kind]
    missing = sorted(required - {k for k, v in entry.items() if v is not None})
    if missing:
        raise CompileError(f"{where}: rope type {kind!r} needs {', '.join(missing)}.")
    unknown = sorted(k for k in set(entry) - required - optional - _COMMON if entry[k] is not None)
    unknown = [k for k in unknown if k != "original_max_position_embeddings"]
    if unknown:
        listed = ", ".join(f"{k} = {entry[k]!r}" for k in unknown)
        raise CompileError(
            f"{where}: rope type {kind!r} does not know {listed}; if this changes the frequencies, "
            "the model cannot be compiled faithfully."
        )


def _check_theta(entry: Mapping[str, Any], where: str) -> None:
    """The base of the frequencies is a positive number."""
    for name in ("rope_theta", "rope_local_base_freq"):
        theta = entry.get(name)
        if theta is None:
            continue
        if isinstance(theta, bool) or not isinstance(theta, int | float) or theta <= 0:
            raise CompileError(f"{name} of {where}: expected a positive number, found {theta!r}.")


def _normal(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with its type under the new name."""
    rest = {k: v for k, v in entry.items() if k not in ("type", "rope_type")}
    return {"rope_type": rope_type(entry), **rest}


def _compare(old: Mapping[str, Any], new: Mapping[str, Any], spelling: str, where: str) -> None:
    for name, value in old.items():
        other = new.get(name)
        if value is not None and other is not None and value != other:
            raise CompileError(
                f"{where} spells rotary settings twice and differently: {name} is {value!r} in "
                f"{spelling} and {other!r} in rope_parameters. Remove the one that is wrong."
            )
