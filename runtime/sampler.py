"""Logits to tokens, on the host, in float64.

Each sequence has its own random numbers, counted by position: a token depends on the request's
seed, its place in the output and its logits, never on what else is in the batch. Greedy decoding
uses no random numbers; of equal logits the lowest id wins, here as in every filter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from inferc.errors import InfercError, RequestError
from inferc.runtime.candidates import Floats, Ids, candidates, kept_ids, largest
from inferc.runtime.request import Sampled, SamplingParams, SequenceId
from inferc.runtime.sample_rows import EDIT, ROW, Rows, SampleRows

_NO_EDITS: Rows = np.zeros(0, EDIT)


@dataclass
class _State:
    """What sampling needs to know of a sequence."""

    params: SamplingParams
    key: tuple[int, int]
    prompt: Sequence[int]
    bias_ids: Ids
    bias: Floats
    sampled: int = 0
    counts: dict[int, int] = field(default_factory=dict)

    @cached_property
    def prompt_ids(self) -> Ids:
        """Ids of the prompt, ascending, each once; only penalties ask for them."""
        return np.array(sorted(set(self.prompt)), np.int64)

    def edits(self) -> Rows:
        """Tokens whose logits bias or penalties change, for sampling on a device."""
        params = self.params
        output_ids = np.fromiter(self.counts, np.int64, len(self.counts))
        parts = [self.bias_ids]
        if params.repetition_penalty != 1:
            parts += [self.prompt_ids, output_ids]
        elif params.presence_penalty != 0 or params.frequency_penalty != 0:
            parts.append(output_ids)
        ids = np.unique(np.concatenate(parts))
        edits = np.zeros(len(ids), EDIT)
        edits["token"] = ids
        edits["bias"][np.searchsorted(ids, self.bias_ids)] = self.bias
        if len(parts) > 1:
            places = np.searchsorted(ids, output_ids)
            edits["count"][places] = np.fromiter(self.counts.values(), np.int64, len(self.counts))
            edits["seen"] = np.isin(ids, np.union1d(self.prompt_ids, output_ids))
        return edits

    def changed_ids(self) -> set[int]:
        """The same tokens, without what changes them."""
        params, changed = self.params, set(self.params.logit_bias)
        if params.repetition_penalty != 1:
            changed.update(self.prompt)
        if self.has_edits:
            changed.update(self.counts)
        return changed

    @property
    def has_edits(self) -> bool:
        """Whether bias or penalties change any logit."""
        params = self.params
        penalties = (params.presence_penalty, params.frequency_penalty)
        return bool(params.logit_bias) or params.repetition_penalty != 1 or any(penalties)

    @cached_property
    def plain_greedy(self) -> bool:
        params = self.params
        return params.temperature == 0 and params.logprobs is None and not self.has_edits


class Sampler:
    """Samples for all sequences; `known_ids` tells which columns of the logits are tokens."""

    def __init__(self, known_ids: npt.NDArray[np.bool_]) -> None:
        self._vocab_size = len(known_ids)
        self._known_ids = known_ids
        self._end = int(np.flatnonzero(known_ids)[-1]) + 1
        self._holes: Ids = np.flatnonzero(~known_ids[: self._end])
        self._holes_on_device = self._holes.astype(np.int32)
        self._states: dict[SequenceId, _State] = {}
        self._row: Floats | None = None

    def check(self, params: SamplingParams) -> None:
        """Refuse biases that no step could honour; afterwards sampling cannot fail on them."""
        for token in params.logit_bias:
            if not 0 <= token < self._vocab_size:
                raise RequestError(
                    f"logit_bias: expected token ids of 0 to {self._vocab_size - 1}, found {token}."
                )
        forbidden = [token for token, bias in params.logit_bias.items() if bias == -np.inf]
        if len(forbidden) >= np.count_nonzero(self._known_ids) and not self._any_left(forbidden):
            raise RequestError("logit_bias: forbids every token, so that none could be sampled.")

    def add(
        self,
        sequence: SequenceId,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        seed: int,
        sample_index: int = 0,
    ) -> None:
        """Start a sequence. Samples of one request share its seed and differ in their index."""
        bias_ids = np.array(sorted(params.logit_bias), np.int64)
        self._states[sequence] = _State(
            params,
            (int(seed) & (2**64 - 1), sample_index),
            prompt_ids,
            bias_ids,
            np.array([params.logit_bias[int(token)] for token in bias_ids], np.float64),
        )

    def _any_left(self, forbidden: list[int]) -> bool:
        allowed = self._known_ids.copy()
        allowed[forbidden] = False
        return bool(allowed.any())

    def remove(self, sequence: SequenceId) -> None:
        """Forget a sequence; unknown ones are ignored."""
        self._states.pop(sequence, None)

    def sample(
        self, sequences: Sequence[SequenceId], logits: npt.NDArray[np.float32]
    ) -> Mapping[SequenceId, Sampled]:
        """One token for each row of `logits`."""
        found = {}
        for sequence, row in zip(sequences, logits, strict=True):
            found[sequence] = self._sample_row(self._states[sequence], row)
            self.accept(sequence, found[sequence])
        return found

    def greedy_end(self, sequences: Sequence[SequenceId]) -> int | None:
        """If the tokens of all are those of the largest logit: one more than the largest id.

        None too where ids below that are no tokens.
        """
        plain = not len(self._holes) and all(self._states[s].plain_greedy for s in sequences)
        return self._end if plain else None

    def rows(self, sequences: Sequence[SequenceId]) -> SampleRows:
        """The same for a device that samples by itself: it gives the tokens of `sample`."""
        known = self._end - len(self._holes)
        rows, edits, first = [], [], 0
        for sequence in sequences:
            state = self._states[sequence]
            params = state.params
            own = state.edits() if state.has_edits else _NO_EDITS
            wanted = -1 if params.logprobs is None else min(params.logprobs, known)
            rows.append(
                (
                    params.temperature, params.top_p, params.min_p, params.repetition_penalty,
                    params.presence_penalty, params.frequency_penalty, *state.key, state.sampled,
                    params.top_k or 0, wanted, first, len(own),
                )
            )  # fmt: skip
            edits.append(own)
            first += len(own)
        together = np.concatenate(edits) if first else _NO_EDITS
        return SampleRows(np.array(rows, ROW), together, self._end, self._holes_on_device)

    def accept(self, sequence: SequenceId, sampled: Sampled) -> None:
        """Take note of a token that a device sampled."""
        state = self._states[sequence]
        state.sampled += 1
        state.counts[sampled.token] = state.counts.get(sampled.token, 0) + 1

    def _sample_row(self, state: _State, row: npt.NDArray[np.float32]) -> Sampled:
        if state.plain_greedy and not len(self._holes):
            token = int(np.argmax(row[: self._end]))
            _refuse_nan(float(row[token]))
            sampled = Sampled(token)
        else:
            sampled = self._sample_masked(state, row)
        return sampled

    def _sample_masked(self, state: _State, row: npt.NDArray[np.float32]) -> Sampled:
        row = row[: self._end]
        _refuse_nan(float(row.max()))
        ids = None if len(self._holes) else _candidates(state, row)
        logits = self._wide(row) if ids is None else row[ids].astype(np.float64)
        logits[self._holes] = -np.inf
        raw = logits.copy() if state.params.logprobs is not None else None
        _shift_logits(state, logits, ids)
        if state.params.temperature == 0:
            token = int(np.argmax(logits))
        else:
            token = _draw(state, logits)
        token = token if ids is None else int(ids[token])
        if raw is None or state.params.logprobs is None:
            return Sampled(token)
        return _with_logprobs(token, raw, state.params.logprobs)

    def _wide(self, row: npt.NDArray[np.float32]) -> Floats:
        """The row in float64, in memory that is used again."""
        if self._row is None:
            self._row = np.empty(self._end)
        np.copyto(self._row, row)
        return self._row


def _candidates(state: _State, row: npt.NDArray[np.float32]) -> Ids | None:
    """Ids from which the token will be, with all whose logits change; None: any.

    With as many more of the largest as logits change, those that count afterwards are among them.
    """
    params = state.params
    count = 1 if params.temperature == 0 else params.top_k
    if count is None or params.logprobs is not None:
        return None
    changed = {token for token in state.changed_ids() if token < len(row)}
    found = candidates(row, count + len(changed), params.temperature)
    if found is None or not changed:
        return found
    return np.array(sorted(changed.union(found.tolist())), np.int64)


def _shift_logits(state: _State, logits: Floats, ids: Ids | None) -> None:
    """Bias and penalties, in place; `logits` are those of `ids`, or of all."""
    params, end = state.params, len(logits) if ids is None else int(ids[-1]) + 1

    def places(tokens: Ids) -> Ids:
        return tokens if ids is None else np.searchsorted(ids, tokens)

    inside = state.bias_ids < end
    logits[places(state.bias_ids[inside])] += state.bias[inside]
    output_ids = np.fromiter(state.counts, np.int64, len(state.counts))
    if params.repetition_penalty != 1:
        seen = np.union1d(state.prompt_ids, output_ids)
        seen = places(seen[seen < end])
        values, penalty = logits[seen], params.repetition_penalty
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty != 0 or params.frequency_penalty != 0:
        counts = np.fromiter(state.counts.values(), np.float64, len(state.counts))
        logits[places(output_ids)] -= params.presence_penalty + params.frequency_penalty * counts


def _draw(state: _State, logits: Floats) -> int:
    """Filter, then invert the cumulative distribution (in order of ids) at one random number.

    Overwrites the logits: memory of that size comes anew from the system each time.
    """
    params, weights = state.params, logits
    with np.errstate(over="ignore", under="ignore"):
        weights -= logits.max()
        weights /= params.temperature
        np.exp(weights, out=weights)
    ids = kept_ids(weights, params)
    kept = weights if ids is None else weights[ids]
    cumulative = np.cumsum(kept)
    at = int(np.searchsorted(cumulative, _uniform(state) * cumulative[-1], side="right"))
    # Rounding may carry the product up to the total: stay on the last token with any weight.
    at = min(at, int(np.searchsorted(cumulative, cumulative[-1], side="left")))
    return at if ids is None else int(ids[at])


def _uniform(state: _State) -> float:
    """A number of [0, 1) that depends on seed, sample and position alone."""
    generator = np.random.Philox(
        key=np.array(state.key, np.uint64), counter=np.array([state.sampled, 0, 0, 0], np.uint64)
    )
    return float(int(generator.random_raw()) >> 11) * 2.0**-53


def _with_logprobs(token: int, logits: Floats, count: int) -> Sampled:
    peak = logits.max()
    normaliser = peak + np.log(np.exp(logits - peak).sum())
    top = tuple((int(t), float(logits[t] - normaliser)) for t in largest(logits, count))
    return Sampled(token, float(logits[token] - normaliser), top)


def _refuse_nan(largest: float) -> None:
    """Numpy's maximum is NaN where any value is."""
    if np.isnan(largest):
        raise logits_are_nan()


def logits_are_nan() -> InfercError:
    """The error of a model that computes no numbers."""
    return InfercError(
        "The model produced logits that are not numbers (NaN). `inferc verify` compares the"
        " artifact with its source model."
    )
