"""An ONNX decoder as a module over stored weights: what its inputs and outputs mean.

Plain decoders take `input_ids` and possibly `position_ids` and `attention_mask`, and return
`logits`. Contract of the compiler: one sequence a row, without padding, positions from zero. So the
attention mask is all ones, and a graph with a merged cache (`past_key_values.*`, `present.*`) is
brought to its plain form by giving it a past of no tokens: what the graph itself says of a sequence
that begins. Everything else is refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx

from inferc.errors import CompileError
from inferc.frontend.onnx_graph import Translated, translate
from inferc.frontend.onnx_proto import OnnxFile
from inferc.frontend.onnx_values import Filled, Item, known
from inferc.frontend.onnx_weights import dtype_of
from inferc.frontend.position_tables import context_of_tables, with_constant_tables
from inferc.ir.core import Func, Value
from inferc.ir.dims import Size, Symbol, sym
from inferc.ir.types import TensorType

BATCH_MAX = 1024
CONTEXT_MAX = 1 << 20  # while no table says how long a sequence can be
_IDS = ("input_ids", "ids", "tokens", "input")
_PAST = re.compile(r"past|cache(?!_branch)", re.I)


@dataclass(frozen=True)
class OnnxDecoder:
    """The function `@forward(ids, positions) -> logits`, and the context its tables allow."""

    translated: Translated
    context_tokens: int | None


def decoder(file: OnnxFile) -> OnnxDecoder:
    """Translate a decoder. Raises CompileError."""
    return _Decoder(file).run()


class _Decoder:
    def __init__(self, file: OnnxFile) -> None:
        self.file = file
        names = {t.name for t in file.model.graph.initializer}
        self.inputs = {i.name: i for i in file.model.graph.input if i.name not in names}
        self.func = Func(
            "forward", {"B": Symbol("B", 1, BATCH_MAX), "S": Symbol("S", 1, CONTEXT_MAX)}
        )
        self.sizes: dict[str, Size] = {}

    def run(self) -> OnnxDecoder:
        ids = self._ids()
        tokens = TensorType((sym("B"), sym("S")), "i64")
        self.func.add_arg("ids", tokens)
        self.func.add_arg("positions", tokens)
        self._name_sizes(ids)
        items = {name: self._input(name, ids) for name in self.inputs}
        translated = translate(self.file, self.func, items, [self._logits()])
        self._check_logits(translated.func)
        func = with_constant_tables(translated.func, translated.tensors)
        used = func.params()
        tensors = {k: t for k, t in translated.tensors.items() if k in used}
        return OnnxDecoder(Translated(func, tensors), context_of_tables(func))

    # -- inputs
    def _ids(self) -> str:
        named = [n for n in _IDS if n in self.inputs]
        if not named:
            raise CompileError(
                f"{self.file.path} takes {', '.join(self.inputs) or 'no inputs'}; expected "
                "input_ids, and possibly position_ids and attention_mask."
            )
        return named[0]

    def _name_sizes(self, ids: str) -> None:
        """Names of the symbolic axes: those of the ids, and of a past of no tokens."""
        batch, length = self._axes(ids, 2)
        for what, size in (("batch", batch), ("sequence", length)):
            if isinstance(size, int) or not size:
                raise CompileError(
                    f"{self.file.path}: the {what} axis of {ids} is fixed to {size}. Export the "
                    "model with dynamic axes for batch and sequence."
                )
        self.sizes = {str(batch): sym("B"), str(length): sym("S")}

    def _axes(self, name: str, rank: int | None = None) -> list[int | str]:
        shape = self.inputs[name].type.tensor_type.shape
        axes = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in shape.dim]
        if rank is not None and len(axes) != rank:
            raise CompileError(f"{self.file.path}: {name} has {len(axes)} axes, expected {rank}.")
        return axes

    def _input(self, name: str, ids: str) -> Item:
        type_ = self.inputs[name].type.tensor_type
        dtype = dtype_of(type_.elem_type, f"The input {name}")
        if name == ids:
            return self._whole(self.func.args[0], dtype)
        if name in ("position_ids", "positions"):
            self._axes(name, 2)
            return self._whole(self.func.args[1], dtype)
        if name == "attention_mask":
            self._axes(name, 2)
            return Filled(True if dtype == "bool" else 1, (sym("B"), sym("S")), dtype)
        if name == "use_cache_branch":
            return known([False], "bool")
        if name == "num_logits_to_keep":
            return known([0])
        if _PAST.search(name) and dtype.startswith(("f", "bf")):
            return self._empty_past(name)
        if name == "cache_position":
            raise CompileError(
                f"{self.file.path} takes cache_position, as graphs with a fixed cache do; export "
                "the model without cache."
            )
        raise CompileError(
            f"{self.file.path} takes the input {name!r}, which is not known; expected input_ids, "
            "position_ids, attention_mask or an empty past."
        )

    def _whole(self, value: Value, dtype: str) -> Item:
        if dtype not in ("i64", "i32"):
            raise CompileError(f"{self.file.path}: token ids of type {dtype} are not supported.")
        if dtype == "i64":
            return value
        return value  # the step reads i32; the graph may count in either

    def _empty_past(self, name: str) -> Item:
        """`[B, heads, 0, D]`: the axis of past tokens is named so, or the only one left open."""
        axes = self._axes(name)
        others = [a for a in axes if not isinstance(a, int) and self.sizes.get(a) is None]
        past = [a for a in others if "past" in str(a)] or others
        if len(axes) != 4 or len(past) != 1:
            raise CompileError(
                f"{self.file.path}: which axis of {name} {axes} counts past tokens is not known, "
                "so the cache cannot be taken out of the graph. Export the model without cache."
            )
        # Another open axis (the size of a head) stays a symbol that nothing can compute with.
        sizes: dict[int | str, Size] = {a: sym(re.sub(r"\W", "_", str(a))) for a in others}
        sizes.update(self.sizes)
        sizes[past[0]] = 0
        return Filled(0.0, tuple(a if isinstance(a, int) else sizes[a] for a in axes), "f32")

    # -- outputs
    def _logits(self) -> str:
        names = [o.name for o in self.file.model.graph.output]
        if "logits" in names:
            return "logits"
        plain = [o.name for o in self.file.model.graph.output if _rank(o) in (0, 3)
                 and not re.search(r"present|hidden", o.name)]  # fmt: skip
        if len(plain) != 1:
            raise CompileError(
                f"{self.file.path} returns {', '.join(names)}; expected one output 'logits'."
            )
        return str(plain[0])

    def _check_logits(self, func: Func) -> None:
        type_ = func.results[0].type
        assert isinstance(type_, TensorType)
        expected = (sym("B"), sym("S"))
        if type_.rank != 3 or type_.shape[:2] != expected or not isinstance(type_.shape[2], int):
            raise CompileError(
                f"{self.file.path} returns {type_}; expected logits of every token, "
                "[batch, sequence, vocabulary]."
            )


def _rank(info: onnx.ValueInfoProto) -> int:
    return len(info.type.tensor_type.shape.dim)
