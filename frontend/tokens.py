"""Facts about a model's tokens and its sampling, as they go into the artifact."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids with a meaning for the runtime."""

    eos: tuple[int, ...]
    """Every id that ends a generation: the union of all places where a model states one."""
    bos: int | None
    pad: int | None
    add_bos: bool
    """Whether `encode(text, add_special_tokens=True)` begins with `bos`; a fact for reports."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Texts that chat templates may use: `bos_token`, `eos_token`, ..."""


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling as the model's authors advise it; None where they say nothing."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True)
class TokenizerFiles:
    """Everything about text that an artifact holds.

    `tokenizer_json` decides how plain text is encoded: its post-processor adds what the model wants
    (`add_special_tokens=True`). Chat templates write special tokens themselves, so a rendered chat
    is encoded with `add_special_tokens=False`. Without `tokenizer_json` the artifact takes and
    gives token ids only.
    """

    tokenizer_json: str | None
    chat_template: str | None
    special: SpecialTokens
    generation: GenerationDefaults
    vocab_size: int
    """Number of ids the tokenizer knows; the model's embedding may have more rows."""
