"""GPTQ and AWQ: codes packed into 32-bit words, scales and zero points a group of columns.

GPTQ (AutoGPTQ, GPTQModel): `qweight` i32[K * bits / 32, N], a word holds neighbours along K, the
first in its low bits; `qzeros` i32[G, N * bits / 32]; `scales` f16[G, N]; `g_idx` i32[K], the group
of each column, in no order if columns were quantised by activation. Zero points are stored less one
(checkpoint_format gptq) or as they are (gptq_v2).

AWQ (AutoAWQ, version gemm): `qweight` i32[K, N / 8], a word holds neighbours along N in the order
0 2 4 6 1 3 5 7; `qzeros` i32[G, N / 8] likewise; `scales` f16[G, N].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferc.errors import CompileError
from inferc.frontend.computed_tensor import ComputedTensor
from inferc.frontend.quantised_config import Method, Orders, Pieces, Settings
from inferc.frontend.quantised_tensor import Affine, QuantisedTensor
from inferc.frontend.quantised_words import codes_of_words, rows_across, rows_of_columns
from inferc.ir.blocks import Bytes

_AGAIN = "Quantise the model in another way, or compile the unquantised model."
_AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # column of eight that nibble i holds
_HARMLESS = (
    "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "lm_head", "meta",
    "model_name_or_path", "model_file_base_name", "dataset", "tokenizer", "use_cuda_fp16",
    "use_exllama", "disable_exllama", "exllama_config", "max_input_length", "cache_block_outputs",
    "batch_size", "block_name_to_quantize", "module_name_preceding_first_block", "model_seqlen",
    "modules_in_block_to_quantize", "pad_token_id", "backend", "act_group_aware", "quantizer",
    "modules_to_not_convert", "do_fuse", "fuse_max_seq_len", "modules_to_fuse",
)  # fmt: skip
_GROUP_SIZES = (-1, 32, 64, 128, 256, 512, 1024)


def gptq(settings: Settings) -> Method:
    """The method of a GPTQ checkpoint. Raises CompileError."""
    settings.absent(
        ("is_marlin_format", "dynamic"),
        "Only the plain GPTQ layout with one setting for all modules is supported.",
    )
    settings.only(
        ("bits", "group_size", "desc_act", "sym", "checkpoint_format", "format", "pack_dtype",
         "is_marlin_format", "dynamic", *_HARMLESS)
    )  # fmt: skip
    bits = settings.choice("bits", (4, 8), "Take a checkpoint of 4 or 8 bits.")
    group = settings.choice("group_size", _GROUP_SIZES, _AGAIN)
    symmetric = settings.choice("sym", (True, False), _AGAIN, True)
    settings.choice("pack_dtype", ("int32",), _AGAIN, "int32")
    field = "checkpoint_format" if settings.fields.get("checkpoint_format") else "format"
    form = settings.choice(field, ("gptq", "gptq_v2", None), _AGAIN)
    if form is None and not symmetric:
        raise settings.refused(
            "checkpoint_format",
            "'gptq' or 'gptq_v2' where sym is false",
            "Without it nobody can tell whether zero points are stored less one: set it to what "
            "the tool that wrote the checkpoint used (AutoGPTQ: gptq).",
        )
    wanted = _Gptq(bits, group, symmetric, form != "gptq_v2", bool(settings.fields.get("desc_act")))
    return Method(
        ("qweight", "qzeros", "scales", "g_idx"),
        lambda pieces: "qweight" in pieces,
        wanted.weight,
        zero_biases=True,
    )


@dataclass(frozen=True)
class _Gptq:
    bits: int
    group: int
    symmetric: bool
    less_one: bool  # zero points are stored less one
    ordered: bool  # desc_act

    def weight(self, pieces: Pieces, orders: Orders) -> QuantisedTensor:
        """The weight [N, K] of a module."""
        each = 32 // self.bits
        qweight = pieces.matrix("qweight", ("i32",))
        scales = pieces.matrix("scales", ("f16", "bf16", "f32"))
        columns, rows = qweight.shape[0] * each, scales.shape[1]
        if "g_idx" in pieces:  # says how many columns there are, whatever the bits
            columns = len(pieces.tensor("g_idx", ("i32", "i64")).numbers())
        group = columns if self.group == -1 else self.group
        count = -(-columns // group)
        pieces.get("qweight", ("i32",), (columns // each, rows))
        pieces.get("scales", (scales.dtype,), (count, rows))
        zeros = pieces.get("qzeros", ("i32",), (count, rows // each))

        order = self._order(pieces, columns, group, orders)

        def packed(start: int, stop: int) -> Bytes:
            places = None if order is None else order.read()
            return rows_across(qweight.numbers()[:, start:stop], self.bits, places)

        return Affine(
            f"{pieces.module}.weight", (rows, columns), self.bits, group, scales, packed,
            lambda: scales.read().T, lambda: self._zeros(zeros.name, zeros.numbers()),
            list(pieces.tensors.values()), order,
        ).tensor()  # fmt: skip

    def _zeros(self, name: str, words: NDArray[np.generic]) -> Bytes:
        """Zero points u8[N, G]. Raises CompileError for those that libraries read differently."""
        stored = codes_of_words(words, self.bits).reshape(len(words), -1)
        if self.less_one and (stored == (1 << self.bits) - 1).any():
            raise CompileError(
                f"{name} holds zero points of 0 in the format gptq, which stores them less one: "
                "libraries read them differently. Convert the checkpoint to gptq_v2."
            )
        zeros = stored + np.uint8(self.less_one)
        middle = 1 << (self.bits - 1)
        if self.symmetric and (zeros != middle).any():
            found = sorted({int(z) for z in zeros.flat} - {middle})[0]
            raise CompileError(
                f"{name}: quantization_config says sym, so all zero points should be {middle}; "
                f"found {found}. Correct sym or checkpoint_format."
            )
        return np.ascontiguousarray(zeros.T)

    def _order(
        self, pieces: Pieces, columns: int, group: int, orders: Orders
    ) -> ComputedTensor | None:
        if "g_idx" not in pieces:
            if self.ordered and group < columns:
                pieces.tensor("g_idx", ("i32",))  # raises
            return None
        stored = pieces.get("g_idx", ("i32", "i64"), (columns,))
        return column_order(stored.name, stored.numbers(), columns, group, orders)


def column_order(
    name: str, groups: NDArray[np.generic], columns: int, group: int, orders: Orders
) -> ComputedTensor | None:
    """Columns sorted by group, or None where they are. Raises CompileError for unequal groups."""
    order = np.argsort(groups, kind="stable").astype(np.int32)
    if not np.array_equal(groups[order], np.arange(columns) // group):
        raise CompileError(
            f"{name} should give each of {-(-columns // group)} groups {group} columns, as "
            "quantization_config says; it does not. Correct group_size, or get the file again."
        )
    return None if np.array_equal(order, np.arange(columns)) else orders(name, order)


def awq(settings: Settings) -> Method:
    """The method of an AWQ checkpoint. Raises CompileError."""
    settings.only(
        ("bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "format", "sym",
         "desc_act", "checkpoint_format", *_HARMLESS)
    )  # fmt: skip
    settings.absent(("desc_act", "sym"), _AGAIN)
    for name in {"w_bit", "bits"} & settings.fields.keys():
        settings.choice(name, (4,), "Take a checkpoint of 4 bits.")
    size = "q_group_size" if "q_group_size" in settings.fields else "group_size"
    group = settings.choice(size, _GROUP_SIZES, _AGAIN)
    settings.choice("zero_point", (True,), "Checkpoints without zero points are not supported.")
    advice = "Other versions pack codes in other orders: take a checkpoint of version gemm."
    for name in {"version", "format", "checkpoint_format"} & settings.fields.keys():
        value = settings.fields[name]
        if isinstance(value, str) and value.lower() != "gemm":
            raise settings.refused(name, "'gemm'", advice)
    return Method(
        ("qweight", "qzeros", "scales"),
        lambda pieces: "qweight" in pieces,
        lambda pieces, _: _awq_weight(pieces, group),
    )


def _awq_weight(pieces: Pieces, wanted: int) -> QuantisedTensor:
    qweight = pieces.matrix("qweight", ("i32",))
    scales = pieces.matrix("scales", ("f16", "bf16", "f32"))
    columns, rows = qweight.shape[0], scales.shape[1]
    group = columns if wanted == -1 else wanted
    count = -(-columns // group)
    pieces.get("qweight", ("i32",), (columns, rows // 8))
    pieces.get("scales", (scales.dtype,), (count, rows))
    zeros = pieces.get("qzeros", ("i32",), (count, rows // 8))

    def packed(start: int, stop: int) -> Bytes:
        words = qweight.numbers()[:, start // 8 : -(-stop // 8)]
        return rows_of_columns(words, 4, _AWQ_PLACES)

    def zero_points() -> Bytes:
        in_order = codes_of_words(zeros.numbers(), 4)[..., np.argsort(_AWQ_PLACES)]
        return np.ascontiguousarray(in_order.reshape(count, -1).T)

    return Affine(
        f"{pieces.module}.weight", (rows, columns), 4, group, scales, packed,
        lambda: scales.read().T, zero_points, list(pieces.tensors.values()),
    ).tensor()  # fmt: skip
