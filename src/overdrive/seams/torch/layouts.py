"""What tensors of other layouts than strided are made of: a sparse matrix has neither bytes nor an order of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_BY_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


def is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.sparse_coo or tensor.layout in (*_BY_ROWS, *_BY_COLUMNS)


def lie_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether kernels that go through both in the order of memory meet the same elements of both.

    The stride of a dimension of size 1 says nothing of that; but kernels for GPUs want it equal, too.
    """
    if one.shape != other.shape:
        return False
    return one.stride() == other.stride() or (not one.is_cuda and _order(one) == _order(other))


def _order(tensor: torch.Tensor) -> list[int]:
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def fills_its_memory(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in one piece, each once, in whatever order of its dimensions."""
    return tensor.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor))


def strides_of(shape: Sequence[int], form: torch.memory_format) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta", memory_format=form).stride()


def has_channels_last(tensor: torch.Tensor) -> bool:
    """One image of a batch, or one filter of a weight, too."""
    if tensor.dim() == 4:
        return tensor.is_contiguous(memory_format=torch.channels_last)
    if tensor.dim() != 3:
        return False
    channels, _, width = tensor.shape
    strides = 1, width * channels, channels
    return all(size == 1 or a == b for size, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True))


def in_channels_last(thing: Any) -> Any:
    """A batch of images; anything else as it is."""
    if isinstance(thing, torch.Tensor) and thing.dim() == 4:
        return thing.contiguous(memory_format=torch.channels_last)
    return thing


def strided_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor itself where it is strided, else the strided ones that hold its indices and values as they lie."""
    if is_plain(tensor):
        return [tensor]
    layout, plain = tensor.layout, tensor.detach()
    if layout is torch.sparse_coo:  # `indices()` asks that it be coalesced
        return [plain._indices(), plain._values()]
    if layout in _BY_ROWS:
        return [plain.crow_indices(), plain.col_indices(), plain.values()]
    if layout in _BY_COLUMNS:
        return [plain.ccol_indices(), plain.row_indices(), plain.values()]
    if layout is torch.jagged:
        return [plain.values(), plain.offsets()]  # type: ignore[attr-defined]
    return list(plain.unbind()) if tensor.is_nested else [plain.to_dense()]


def in_reals(tensor: torch.Tensor) -> torch.Tensor:
    """A plain complex tensor with real and imaginary parts side by side in a last dimension; any other as it is."""
    if not (tensor.is_complex() and is_plain(tensor)):
        return tensor
    return torch.view_as_real(tensor.resolve_conj())


def is_of_fractions(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def kind_of(tensor: torch.Tensor) -> str:
    """Its type, layout and shape as a text: that of nested ones is in their parts."""
    if is_plain(tensor):
        return f"{tensor.dtype}{tuple(tensor.shape)}"
    return f"{tensor.dtype}{tensor.layout}{'' if tensor.is_nested else tuple(tensor.shape)}"


def as_array(tensor: torch.Tensor) -> Any:
    """NumPy's view of a tensor of the CPU: of its memory if the elements lie in a row, else of a copy.

    By `numpy()` alone PyTorch would let nobody resize the tensor from then on. So it must not be kept: whoever resizes
    the tensor takes the memory away.
    """
    plain = tensor.detach().contiguous()
    array = as_it_lies(plain)
    return array if array.flags.writeable else plain.numpy()  # NumPy before 2.1 gives it to be read only


def as_it_lies(tensor: torch.Tensor) -> Any:
    """The same, of its memory whatever its strides; perhaps to be read only."""
    plain = tensor.detach()
    try:
        return np.from_dlpack(plain)
    except (BufferError, RuntimeError, TypeError):  # NumPy before 1.25 takes no truth values in this way
        return plain.numpy()


def as_bytes(tensor: torch.Tensor) -> Any:
    """The bytes of a plain tensor's elements in logical order, as `as_array` gives them, whatever else it is."""
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    return as_array(plain.contiguous().reshape(-1).view(torch.uint8))


def bytes_of(tensor: torch.Tensor) -> int:
    """Of its elements, and of the indices that a sparse one needs."""
    if is_plain(tensor):
        return int(tensor.nbytes)
    return sum(int(each.nbytes) for each in strided_parts(tensor))
