"""Helpers of the cards: unify named dims, broadcast shapes, normalise axes."""

from __future__ import annotations

from collections.abc import Sequence

from inferc.ir.card import Attrs, TypeMismatch
from inferc.ir.dims import Dim, Size, known_eq
from inferc.ir.types import TensorType, Type


class Dims:
    """Unifies operand shapes with named dims; a mismatch names the dim and both operands."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.sizes: dict[str, tuple[Size, str]] = {}

    def match(self, operand: str, type_: Type, *names: str) -> TensorType:
        """Match the shape with `names`; a first name `..` stands for any leading axes."""
        tensor = tensor_of(self.op, operand, type_)
        shape, wanted = tensor.shape, list(names)
        if wanted and wanted[0] == "..":
            wanted.pop(0)
            lead = shape[: len(shape) - len(wanted)]
            shape = shape[len(shape) - len(wanted) :]
            if len(shape) == len(wanted):
                self._lead(operand, lead)
        if len(shape) != len(wanted):
            raise TypeMismatch(
                f"{self.op}: {operand} needs axes [{', '.join(names)}], found {tensor}"
            )
        for name, size in zip(wanted, shape, strict=True):
            self.bind(operand, name, size)
        return tensor

    def bind(self, operand: str, name: str, size: Size) -> None:
        """Bind or compare one dim."""
        if name not in self.sizes:
            self.sizes[name] = (size, operand)
        elif known_eq(self.sizes[name][0], size) is not True:
            old, where = self.sizes[name]
            raise TypeMismatch(
                f"{self.op}: dim {name} is {old} from {where}, but {size} from {operand}"
            )

    def _lead(self, operand: str, lead: tuple[Size, ...]) -> None:
        for i, size in enumerate(lead):
            self.bind(operand, f"leading axis {i}", size)
        self.bind(operand, "number of leading axes", len(lead))

    def __getitem__(self, name: str) -> Size:
        return self.sizes[name][0]


def tensor_of(op: str, operand: str, type_: Type) -> TensorType:
    """The type as a tensor type, else TypeMismatch."""
    if not isinstance(type_, TensorType):
        raise TypeMismatch(f"{op}: {operand} must be a tensor, found {type_}")
    return type_


def broadcast(op: str, *shapes: tuple[Size, ...]) -> tuple[Size, ...]:
    """Numpy broadcasting; a pair of sizes not known to be equal is a mismatch."""
    rank = max(len(s) for s in shapes)
    out: list[Size] = []
    for axis in range(rank):
        size: Size = 1
        for shape in shapes:
            i = axis - rank + len(shape)
            if i < 0 or shape[i] == 1:
                continue
            if size == 1:
                size = shape[i]
            elif known_eq(size, shape[i]) is not True:
                raise TypeMismatch(f"{op}: cannot broadcast {' with '.join(map(str, shapes))}")
        out.append(size)
    return tuple(out)


SIZE = (int, Dim)


def sizes_of(attrs: Attrs, name: str) -> tuple[Size, ...]:
    """The checked attribute `name`, a tuple of sizes."""
    sizes = attrs[name]
    if not isinstance(sizes, tuple) or not all(isinstance(s, SIZE) for s in sizes):
        raise TypeMismatch(f"attribute {name!r} must be a tuple of sizes, found {sizes!r}")
    return sizes  # type: ignore[return-value]


def axis_of(op: str, axis: object, rank: int) -> int:
    """A checked, non-negative axis."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise TypeMismatch(f"{op}: axis {axis} of a tensor of {rank} axes")
    return axis % rank


def axes_of(op: str, attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The checked attribute `axes`."""
    axes = attrs["axes"]
    assert isinstance(axes, tuple)
    return tuple(axis_of(op, a, rank) for a in axes)


def same_dtype(op: str, types: Sequence[TensorType]) -> str:
    """The common dtype. Raises TypeMismatch."""
    dtypes = {t.dtype for t in types}
    if len(dtypes) != 1:
        raise TypeMismatch(f"{op}: operands have dtypes {sorted(dtypes)}; cast first")
    return dtypes.pop()


def compute_dtype(type_: TensorType) -> str:
    """Dtype of the values once loaded: block formats and narrow floats give f32."""
    return "f32" if type_.is_block or type_.dtype in ("bf16", "f16", "f8e4m3") else type_.dtype
