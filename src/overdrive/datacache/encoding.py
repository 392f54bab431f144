"""Samples, and values of a method, as bytes: pictures, arrays, tensors, numbers and texts; nothing is pickled.

For all values of a form the row of bytes is of the same length.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np

from overdrive.datacache.forms import FLOAT, INTEGER, LONGEST_TEXT, PIXEL, TEXT, Bytes, Form
from overdrive.forks.layout import Unfit

_INFO = frozenset((str, int, float, bool, bytes, type(None)))


def encode(values: tuple[Any, ...]) -> tuple[Form, Bytes]:
    """
    Raises:
        Unfit: one of them cannot be kept.
    """
    writer = _Writer()
    form = ("tuple", *map(writer.write, values))
    return form, np.frombuffer(b"".join(writer.parts), dtype=np.uint8)


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._known: dict[int, int] = {}
        self._alive: list[Any] = []
        self._places: list[tuple[int, int]] = []

    def write(self, thing: Any) -> Form:
        kind = type(thing)
        plain = _PLAIN.get(kind)
        if plain is not None:
            return plain(self, thing)
        if id(thing) in self._known:
            return ("again", self._known[id(thing)])
        self._known[id(thing)] = len(self._known)
        self._alive.append(thing)
        return self._mutable(thing, kind)

    def _mutable(self, thing: Any, kind: type) -> Form:
        if kind in (tuple, list):
            return (kind.__name__, *map(self.write, thing))
        if kind is dict:
            if any(type(key) not in (str, int) for key in thing):
                raise Unfit("it holds a dict with keys that are no text")
            return ("dict", *((key, self.write(value)) for key, value in thing.items()))
        if kind is np.ndarray:
            return self._array(thing)
        if isinstance(thing, np.generic) and thing.dtype.kind in "biufc":
            self.parts.append(thing.tobytes())
            return ("number", thing.dtype.str)
        torch, picture = sys.modules.get("torch"), sys.modules.get("PIL.Image")
        if torch is not None and kind is torch.Tensor:
            return self._tensor(thing, torch)
        if picture is not None and kind is picture.Image:
            return self._picture(thing)
        if torch is not None and kind in _tensor_kinds():  # torchvision's pictures as tensors, with nothing besides
            return ("kind", kind.__name__, self._tensor(thing.as_subclass(torch.Tensor), torch))
        raise Unfit(f"it holds a {kind.__module__}.{kind.__qualname__}")

    def nothing(self, thing: None) -> Form:
        return ("none",)

    def truth(self, thing: bool) -> Form:
        self.parts.append(b"\1" if thing else b"\0")
        return ("bool",)

    def integer(self, thing: int) -> Form:
        try:
            self.parts.append(INTEGER.pack(thing))
        except struct.error:
            raise Unfit("it holds a very large number") from None
        return ("int",)

    def real(self, thing: float) -> Form:
        self.parts.append(FLOAT.pack(thing))
        return ("float",)

    def octets(self, thing: bytes) -> Form:
        self.parts.append(thing)
        return ("bytes", len(thing))

    def text(self, thing: str) -> Form:
        data = thing.encode("utf-8", "surrogatepass")
        if len(data) > LONGEST_TEXT:  # its length is a matter of the form, then
            self.parts.append(data)
            return ("text", len(data))
        self.parts.append(TEXT.pack(len(data), data))
        return ("str",)

    def _apart(self, begin: int, size: int) -> None:
        """Two values in the same memory would be two in different memory afterwards."""
        if any(begin < end and first < begin + size for first, end in self._places):
            raise Unfit("two of its values share memory")
        self._places.append((begin, begin + size))

    def _array(self, array: Any) -> Form:
        if array.dtype.hasobject or array.dtype.names is not None or not array.itemsize:
            raise Unfit(f"it holds an array of kind {array.dtype}")
        if array.size:
            order = _order_of(array.shape, tuple([step // array.itemsize for step in array.strides]))
        else:
            order = _order_of_none(array.shape, array.strides, np.empty(array.shape, dtype=array.dtype).strides)
        if order is None or any(step % array.itemsize for step in array.strides) or not array.flags.aligned:
            raise Unfit("it holds an array that lies in memory in an unusual way")
        self._apart(array.__array_interface__["data"][0], array.nbytes)
        self.parts.append(array.transpose(order).tobytes())
        return ("array", array.dtype.str, tuple(array.shape), order, bool(array.flags.writeable))

    def _tensor(self, tensor: Any, torch: Any) -> Form:
        if tensor.is_inference() or tensor.is_neg() or vars(tensor):
            raise Unfit("it holds a special tensor")
        try:  # this refuses what else may be special about a tensor, sooner than one could ask for each
            array = np.from_dlpack(tensor)  # not numpy(), after which nobody may resize it
        except (BufferError, RuntimeError, TypeError):
            array = self._special(tensor, torch)
        shape, strides = tuple(tensor.shape), tensor.stride()
        order = _order_of(shape, strides) if array.size else _order_of_none(shape, strides, torch.empty(shape).stride())
        if order is None:
            raise Unfit("it holds a tensor that lies in memory in an unusual way")
        self._apart(tensor.data_ptr(), array.nbytes)
        self.parts.append(array.transpose(order).tobytes())
        return ("tensor", str(tensor.dtype)[6:], shape, order)

    def _special(self, tensor: Any, torch: Any) -> Any:
        """The values of a tensor of which numpy can make no array, as whole numbers of their size."""
        special = tensor.layout is not torch.strided or tensor.is_conj() or tensor.requires_grad
        if special or tensor.device.type != "cpu" or tensor.is_quantized:
            raise Unfit("it holds a special tensor")
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return np.from_dlpack(tensor.view(whole[tensor.element_size()]))

    def _picture(self, picture: Any) -> Form:
        own = picture.palette is not None or getattr(picture, "_exif", None) or not vars(picture).keys() <= _own_names()
        if picture.mode not in PIXEL or own or not picture.width or not picture.height:
            raise Unfit(f"it holds a picture of mode {picture.mode}, or with more to it than its pixels")
        self.parts.append(picture.tobytes())
        return ("picture", picture.mode, picture.size, _info_of(picture.info))


@cache
def _own_names() -> frozenset[str]:
    """The attributes of a picture that Pillow gives it; any other one is the data set's."""
    return frozenset(vars(sys.modules["PIL.Image"].new("L", (1, 1)))) | {"_exif", "pyaccess"}


def _tensor_kinds() -> tuple[Any, ...]:
    module = sys.modules.get("torchvision.tv_tensors")
    return (module.Image, module.Mask, module.Video) if module is not None else ()


_PLAIN: dict[type, Callable[[_Writer, Any], Form]] = {
    type(None): _Writer.nothing,
    bool: _Writer.truth,
    int: _Writer.integer,
    float: _Writer.real,
    str: _Writer.text,
    bytes: _Writer.octets,
}


def _info_of(info: dict[Any, Any]) -> Form:
    """What a picture's file said of it: has to be the same for all samples, as part of their form."""
    for value in info.values():
        parts = value if type(value) is tuple else (value,)
        if not _INFO.issuperset(map(type, parts)) or any(type(each) is bytes and len(each) > 4096 for each in parts):
            raise Unfit("it holds a picture with more to it than its pixels")
    return tuple(info.items())


@lru_cache(1024)
def _order_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of dimensions in which the values lie without a gap; None where there is none."""
    order = tuple(sorted(range(len(shape)), key=lambda each: (-strides[each], -shape[each], each)))
    step = 1
    for dimension in reversed(order):
        if strides[dimension] != step:
            return None
        step *= shape[dimension]
    return order if step == prod(shape) else None


def _order_of_none(shape: Any, strides: Any, usual: Any) -> tuple[int, ...] | None:
    """The same where there are no values: their own order, or none."""
    return tuple(range(len(shape))) if tuple(strides) == tuple(usual) else None
