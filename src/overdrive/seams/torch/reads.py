"""Whether what is called looks at the values of tensors, so that what it does next may depend on them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from overdrive.seams.torch.internals import storage_id

SHAPE_ONLY = ("nonzero", "masked_select", "unique", "index", "repeat_interleave")  # how many, not a decision
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_WRITTEN = {"aten._local_scalar_dense.default": "item", "aten.is_nonzero.default": "__bool__"}
# These go past the dispatcher.
_READS = {
    getattr(torch.Tensor, name)
    for name in ("numpy", "tolist", "item", "__bool__", "__int__", "__float__", "__index__", "__array__", "data_ptr")
}


@contextmanager
def noting_reads(but: Collection[int] = ()) -> Iterator[list[str]]:
    """Fills the list with the names of the operations that look at values, `but` those of tensors with these ids of
    their memory."""
    reads: list[str] = []
    with _Functions(reads, but), _Operators(reads, but):
        yield reads


def looks_at_values(func: Any) -> bool:
    """Whether this operator does."""
    return not _TAGS.isdisjoint(func.tags)


def plainly(read: str) -> str:
    """What the program would write for one of `noting_reads`."""
    return _WRITTEN.get(read, read)


def is_for_a_seed() -> bool:
    """Keras reads the seed of a generator before it draws: that is no value of a batch."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "torch_seed_generator":
        frame = frame.f_back
    return frame is not None


def _is_of(args: Any, but: Collection[int]) -> bool:
    return bool(but) and bool(args) and isinstance(args[0], torch.Tensor) and storage_id(args[0]) in but


class _Functions(TorchFunctionMode):
    def __init__(self, reads: list[str], but: Collection[int]) -> None:
        super().__init__()
        self._reads, self._but = reads, but

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS and not _is_of(args, self._but) and not is_for_a_seed():
            self._reads.append(func.__name__)
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, reads: list[str], but: Collection[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reads, self._but = reads, but

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if looks_at_values(func) and not _is_of(args, self._but) and not is_for_a_seed():
            self._reads.append(str(func))
        return func(*args, **(kwargs or {}))
