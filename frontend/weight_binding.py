"""Strict bookkeeping between parameters and stored tensors.

A weight that is silently missing, unused or taken twice gives fluent nonsense at run time, so a
compile goes on only if every parameter is bound exactly once and every stored tensor is accounted
for. All differences are reported together.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inferc.errors import CompileError
from inferc.frontend.weight_transforms import Binding, Shape
from inferc.frontend.weights import StoredTensor, WeightStore, listed

# Buffers that exporters write beside the parameters; nothing computes with them.
BUFFERS_BESIDE_WEIGHTS = (
    r"(^|\.)rotary_emb\.inv_freq$",
    r"(^|\.)attn\.(bias|masked_bias)$",
    r"(^|\.)attention\.(bias|masked_bias)$",
    r"(^|\.)position_ids$",
)


def bind(
    parameters: Mapping[str, Shape],
    bindings: Iterable[Binding],
    store: WeightStore,
    *,
    known_unused: Sequence[str] = BUFFERS_BESIDE_WEIGHTS,
    duplicates: Mapping[str, str] | None = None,
) -> dict[str, Binding]:
    """The binding of each parameter, after all checks.

    Args:
        parameters: Shape of each parameter to bind; tied ones only under their canonical name.
        bindings: Candidates; one whose parameter is not asked for binds nothing.
        store: The stored tensors.
        known_unused: Regular expressions for stored tensors that no parameter needs.
        duplicates: Stored tensors that must equal another stored tensor byte for byte, such as the
            head that some files of tied models hold beside the embedding.
    """
    candidates = [binding for binding in bindings if binding.parameter in parameters]
    audit = _Audit(parameters, candidates, store, known_unused, duplicates or {})
    problems = [
        *audit.unbound(),
        *audit.bound_twice(),
        *audit.missing_sources(),
        *audit.unused(),
        *audit.unreadable(),
        *audit.wrong_shapes(),
        *audit.unequal_duplicates(),
    ]
    if problems:
        raise CompileError(
            f"The weights in {store.path} do not fit the model. " + " ".join(problems)
        )
    return {binding.parameter: binding for binding in candidates}


@dataclass(frozen=True)
class _Audit:
    """The checks of `bind`; each yields one sentence for each kind of fault that it finds."""

    parameters: Mapping[str, Shape]
    bindings: Sequence[Binding]
    store: WeightStore
    known_unused: Sequence[str]
    duplicates: Mapping[str, str]

    def unbound(self) -> Iterable[str]:
        bound = {binding.parameter for binding in self.bindings}
        missing = [f"{n} {list(s)}" for n, s in self.parameters.items() if n not in bound]
        if missing:
            yield f"Parameters without a stored tensor: {listed(missing)}."

    def bound_twice(self) -> Iterable[str]:
        counts = Counter(binding.parameter for binding in self.bindings)
        twice = [
            f"{b.parameter} (from {' + '.join(b.sources)})"
            for b in self.bindings
            if counts[b.parameter] > 1
        ]
        if twice:
            yield f"Parameters bound more than once: {listed(twice)}."

    def missing_sources(self) -> Iterable[str]:
        missing = [
            f"{source} (for {binding.parameter})"
            for binding in self.bindings
            for source in binding.sources
            if source not in self.store
        ]
        if missing:
            yield f"Tensors that the file does not hold: {listed(missing)}."

    def unused(self) -> Iterable[str]:
        used = {source for binding in self.bindings for source in binding.sources}
        known = [re.compile(pattern) for pattern in self.known_unused]
        unused = [
            f"{name} {list(tensor.shape)}"
            for name, tensor in self.store.tensors.items()
            if name not in used
            and name not in self.duplicates
            and not any(pattern.search(name) for pattern in known)
        ]
        if unused:
            yield f"Stored tensors that no parameter uses: {listed(unused)}."

    def unreadable(self) -> Iterable[str]:
        bad = {
            f"{tensor.name} ({tensor.dtype} in {tensor.file.name})": None
            for _, tensor in self._sources()
            if not tensor.readable
        }
        if bad:
            yield f"Tensors of a type that cannot be compiled: {listed(bad)}."

    def wrong_shapes(self) -> Iterable[str]:
        wrong = [message for binding in self._complete() if (message := self._shape_fault(binding))]
        if wrong:
            yield f"Shapes that disagree: {listed(wrong)}."

    def unequal_duplicates(self) -> Iterable[str]:
        unequal = [
            f"{name} and {other}"
            for name, other in self.duplicates.items()
            if name in self.store
            and other in self.store
            and not self.store[name].same_bytes(self.store[other])
        ]
        if unequal:
            yield (
                f"The model says that these are one weight, but the file holds two that differ: "
                f"{listed(unequal)}; check tie_word_embeddings."
            )

    def _complete(self) -> list[Binding]:
        return [b for b in self.bindings if all(source in self.store for source in b.sources)]

    def _sources(self) -> list[tuple[Binding, StoredTensor]]:
        return [(b, self.store[source]) for b in self._complete() for source in b.sources]

    def _shape_fault(self, binding: Binding) -> str | None:
        wanted, made_of = self.parameters[binding.parameter], " + ".join(binding.sources)
        try:
            found = binding.shape(self.store)
        except ValueError as error:
            return f"{binding.parameter} from {made_of}: {error}"
        if found != tuple(wanted):
            return f"{binding.parameter} wants {list(wanted)}, {made_of} gives {list(found)}"
        return None
