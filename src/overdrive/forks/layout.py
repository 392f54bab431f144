"""How a batch is built from tensors, and how each of them lies in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# A tuple of these stands for each container: its kind, then its parts; a leaf is its number.
Shape = Any

_NUMBERS = {"int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128"}
_DTYPES = frozenset({"bool", "uint8", "bfloat16", *_NUMBERS})


class Unfit(Exception):
    """Samples that cannot be stacked; the message says why, for people."""


class ForkFailed(Unfit):
    """A forked process failed, which says nothing of the samples."""


@dataclass(frozen=True)
class Leaf:
    """One tensor of a batch: the sizes of one sample, and how a batch's dimensions lie in memory.

    A batch that a collate function has turned from N×H×W×C to N×C×H×W lies in order (0, 2, 3, 1). Other strides would
    mean other kernels, so they are kept.
    """

    dtype: str
    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def bytes(self) -> int:
        import torch

        return prod(self.sizes) * int(getattr(torch, self.dtype).itemsize)

    @property
    def plain(self) -> bool:
        return self.order == tuple(range(len(self.order)))

    @property
    def sizes_in_memory(self) -> tuple[int, ...]:
        return tuple(self.sizes[dimension - 1] for dimension in self.order[1:])

    def fits(self, tensor: torch.Tensor) -> bool:
        alike = _is_plain(tensor) and str(tensor.dtype)[6:] == self.dtype and tuple(tensor.shape[1:]) == self.sizes
        return alike and tensor.stride() == _strides(tensor.shape, self.order)


@dataclass(frozen=True)
class Layout:
    """A batch's structure and leaves."""

    structure: Shape
    leaves: tuple[Leaf, ...]

    @property
    def bytes(self) -> int:
        """Bytes of one sample."""
        return sum(leaf.bytes for leaf in self.leaves)

    def build(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The batch that these leaves make."""
        return _build(self.structure, tensors)

    def to_json(self) -> dict[str, Any]:
        leaves = [{"dtype": leaf.dtype, "sizes": leaf.sizes, "order": leaf.order} for leaf in self.leaves]
        return {"structure": self.structure, "leaves": leaves}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layout:
        """
        Raises:
            ValueError: it is none.
        """
        leaves = []
        for each in data["leaves"]:
            sizes, order = tuple(map(int, each["sizes"])), tuple(map(int, each["order"]))
            sound = each["dtype"] in _DTYPES and all(size >= 1 for size in sizes)
            if not sound or order[:1] != (0,) or sorted(order) != list(range(len(sizes) + 1)):
                raise ValueError(f"no tensor lies like this: {each}")
            leaves.append(Leaf(each["dtype"], sizes, order))
        return cls(_structure_from_json(data["structure"], len(leaves)), tuple(leaves))


def layout_of(batch: Any) -> Layout:
    """
    Raises:
        Unfit: it holds anything else than plain tensors in tuples, lists and dicts.
    """
    tensors: list[torch.Tensor] = []
    structure = _structure(batch, tensors)
    if not tensors:
        raise Unfit("its batches hold no tensor")
    leaves = tuple(map(_leaf, tensors))
    if len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors):
        raise Unfit("parts of its batches share memory")
    return Layout(structure, leaves)


def tensors_of(batch: Any, structure: Shape) -> list[torch.Tensor] | None:
    """The leaves of a batch, or None where it is built in another way."""
    tensors: list[torch.Tensor] = []
    try:
        return tensors if _structure(batch, tensors) == structure else None
    except Unfit:
        return None


def _structure(thing: Any, tensors: list[torch.Tensor]) -> Shape:
    import torch

    kind = type(thing)
    if kind is torch.Tensor:
        tensors.append(thing)
        return len(tensors) - 1
    if kind in (tuple, list):
        return (kind.__name__, *(_structure(each, tensors) for each in thing))
    if kind is dict:
        if any(type(key) not in (str, int) for key in thing):
            raise Unfit("its batches have keys that are no text")
        return ("dict", *((key, _structure(value, tensors)) for key, value in thing.items()))
    raise Unfit(f"its batches hold other things than tensors ({kind.__name__})")


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether there is nothing to it but its elements: a gradient, say, would be lost."""
    import torch

    lies_here = tensor.layout is torch.strided and tensor.device.type == "cpu"
    special = tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or vars(tensor)
    return lies_here and not special


def _leaf(tensor: torch.Tensor) -> Leaf:
    dtype = str(tensor.dtype)[6:]
    if not _is_plain(tensor) or dtype not in _DTYPES:
        raise Unfit(f"its batches hold a special tensor ({dtype}, {tensor.layout}, {tensor.device})")
    if tensor.dim() == 0 or tensor.numel() == 0:
        raise Unfit("its batches hold a tensor without samples")
    sizes = tuple(tensor.shape[1:])
    for order in _orders(tensor.dim()):
        if tensor.permute(order).is_contiguous() and tensor.stride() == _strides(tensor.shape, order):
            return Leaf(dtype, sizes, order)
    raise Unfit("its batches lie in memory in an unusual way")


def _orders(dimensions: int) -> list[tuple[int, ...]]:
    """The orders in which a tensor's dimensions may lie in memory: contiguous, and channels last."""
    plain = tuple(range(dimensions))
    return [plain, (0, *range(2, dimensions), 1)] if dimensions in (4, 5) else [plain]


def _strides(shape: Sequence[int], order: tuple[int, ...]) -> tuple[int, ...]:
    strides = [0] * len(order)
    step = 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(1, shape[dimension])
    return tuple(strides)


def _build(structure: Shape, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(structure, int):
        return tensors[structure]
    kind, *parts = structure
    if kind == "dict":
        return {key: _build(part, tensors) for key, part in parts}
    built = [_build(part, tensors) for part in parts]
    return tuple(built) if kind == "tuple" else built


def _structure_from_json(data: Any, leaves: int) -> Shape:
    if isinstance(data, int) and 0 <= data < leaves:
        return data
    if isinstance(data, list) and data and data[0] in ("tuple", "list"):
        return (data[0], *(_structure_from_json(part, leaves) for part in data[1:]))
    if isinstance(data, list) and data and data[0] == "dict":
        pairs = [(key, _structure_from_json(part, leaves)) for key, part in data[1:]]
        if all(type(key) in (str, int) for key, _ in pairs):
            return ("dict", *pairs)
    raise ValueError("no batch is built like this")
