"""A batch as plain bytes and a description, so that another process can hand it over in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from overdrive.datacache.layout import DTYPES, Unfit
from overdrive.datacache.table import Bytes

_ALIGNED = 64  # so that copies run at full width
_VALUES = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class Parcel:
    """`told` is plain (JSON): how the batch is built. `parts` are its arrays, as bytes in their own memory."""

    told: Any
    parts: list[Bytes]

    @property
    def size(self) -> int:
        return sum(_room(len(part)) for part in self.parts)

    def write(self, memory: Bytes) -> None:
        place = 0
        for part in self.parts:
            memory[place : place + len(part)] = part
            place += _room(len(part))

    def same(self, other: Parcel) -> bool:
        """Whether both are built alike and equal in every bit."""
        return repr(self.told) == repr(other.told) and all(map(np.array_equal, self.parts, other.parts))

    def is_in(self, told: Any, memory: Bytes) -> bool:
        """The same of another one, which has been written."""
        place = 0
        for part in self.parts:
            if not np.array_equal(part, memory[place : place + len(part)]):
                return False
            place += _room(len(part))
        return repr(self.told) == repr(told)  # as texts: nan is nan there

    def places(self) -> set[int]:
        """Where its arrays lie."""
        return {part.ctypes.data for part in self.parts if len(part)}


def pack(batch: Any) -> Parcel:
    """
    Raises:
        Unfit: it holds other things than dense tensors, arrays and plain values in tuples, lists and dicts.
    """
    packing = _Packing()
    return Parcel(packing.tell(batch), packing.parts)


def unpack(told: Any, memory: Bytes, pinned: bool = False) -> Any:
    """The batch again, in memory of its own; `pinned`: in such as a GPU can copy from by itself."""
    return _Unpacking(memory, pinned).build(told)


def _room(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class _Packing:
    def __init__(self) -> None:
        self.parts: list[Bytes] = []
        self._seen: set[int] = set()

    def tell(self, thing: Any) -> Any:
        import torch

        kind = type(thing)
        if kind in _VALUES:
            return ["value", thing]
        if kind is torch.Tensor:
            return self._tensor(thing)
        if kind is np.ndarray:
            return self._array(thing)
        if kind in (tuple, list):
            self._once(id(thing), kind is list)
            return [kind.__name__, [self.tell(each) for each in thing]]
        if kind is dict:
            self._once(id(thing))
            if any(type(key) not in (str, int) for key in thing):
                raise Unfit("its batches have keys that are no text")
            return ["dict", [[key, self.tell(value)] for key, value in thing.items()]]
        raise Unfit(f"its batches hold other things than tensors, arrays and plain values ({kind.__name__})")

    def _once(self, place: int, changeable: bool = True) -> None:
        if changeable and place in self._seen:
            raise Unfit("parts of its batches share memory")
        self._seen.add(place)

    def _tensor(self, tensor: Any) -> Any:
        import torch

        dtype = str(tensor.dtype)[6:]
        strange = tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or dtype not in DTYPES
        if strange or tensor.device.type != "cpu" or tensor.requires_grad or not _dense(tensor):
            raise Unfit(f"its batches hold a special tensor ({dtype}, {tensor.layout}, {tensor.device})")
        if tensor.numel():
            self._once(tensor.untyped_storage().data_ptr())
        flat = tensor.as_strided((tensor.numel(),), (1,))
        self.parts.append(flat.view(torch.uint8).numpy())
        return ["tensor", dtype, list(tensor.shape), list(tensor.stride())]

    def _array(self, array: Any) -> Any:
        if array.dtype.hasobject or array.dtype.names or not array.flags.c_contiguous or not array.flags.writeable:
            raise Unfit("its batches hold a special array")
        if array.size:
            self._once(array.__array_interface__["data"][0])
        self.parts.append(array.reshape(-1).view(np.uint8))
        return ["array", array.dtype.str, list(array.shape)]


def _dense(tensor: Any) -> bool:
    """Whether its elements fill their stretch of memory, each once."""
    step = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return bool(tensor.is_contiguous())
        if size > 1:
            if stride != step:
                return False
            step *= size
    return True


class _Unpacking:
    def __init__(self, memory: Bytes, pinned: bool) -> None:
        self._memory = memory
        self._pinned = pinned
        self._place = 0

    def build(self, told: Any) -> Any:
        kind, *rest = told
        if kind == "value":
            return rest[0]
        if kind == "dict":
            return {key: self.build(value) for key, value in rest[0]}
        if kind in ("tuple", "list"):
            built = [self.build(each) for each in rest[0]]
            return tuple(built) if kind == "tuple" else built
        return self._tensor(*rest) if kind == "tensor" else self._array(*rest)

    def _tensor(self, dtype: str, shape: list[int], strides: list[int]) -> Any:
        import torch

        tensor = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), pin_memory=self._pinned)
        self._fill(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy())
        return tensor

    def _array(self, dtype: str, shape: list[int]) -> Any:
        array = np.empty(shape, dtype=np.dtype(dtype))
        self._fill(array.reshape(-1).view(np.uint8))
        return array

    def _fill(self, part: Bytes) -> None:
        part[:] = self._memory[self._place : self._place + len(part)]
        self._place += _room(len(part))
