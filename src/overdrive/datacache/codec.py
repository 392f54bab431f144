"""Samples, and values of a method, as bytes and back: pictures, arrays, tensors, numbers and texts; nothing is pickled.

What all samples have in common (kinds, shapes, modes) is the *form*, plain data that can be compared; what
differs is one row of bytes, of the same length for all samples of a form.
"""

from __future__ import annotations

import ast
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.datacache.layout import Unfit

Form = Any  # a tuple: a kind and what belongs to it
Bytes = NDArray[np.uint8]

_PAGE = 4096
_LONGEST_TEXT = 254
_TEXT = struct.Struct("=H254s")
_INTEGER = struct.Struct("=q")
_FLOAT = struct.Struct("=d")
# Picture modes without a palette, and the bytes of a pixel; mode 1 has eight pixels to a byte.
_PIXEL = {"1": 0, "L": 1, "I;16": 2, "LA": 2, "La": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "LAB": 3}
_PIXEL.update({"RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4})
_INFO = frozenset((str, int, float, bool, bytes, type(None)))


def encode(values: tuple[Any, ...]) -> tuple[Form, Bytes]:
    """
    Raises:
        Unfit: one of them cannot be kept.
    """
    writer = _Writer()
    form = ("tuple", *map(writer.write, values))
    return form, np.frombuffer(b"".join(writer.parts), dtype=np.uint8)


def decode(form: Form, row: Bytes) -> tuple[Any, ...]:
    """The values, in memory of their own."""
    reader = _Reader(row)
    return tuple([reader.read(part) for part in form[1:]])


def literal(form: Form) -> str:
    """The form as text, which `ast.literal_eval` reads.

    Raises:
        Unfit: it holds something that no text can stand for.
    """
    text = repr(form)
    try:
        if ast.literal_eval(text) == form:
            return text
    except (ValueError, SyntaxError):
        pass
    raise Unfit("it holds a picture with more to it than its pixels")


class Ragged:
    """Rows of samples that differ in form, as pictures of many sizes do: each says its form itself.

    Args:
        room: bytes of a row; most rows fill only the first part of it.
        mean: bytes that are filled, of the samples that were tried.
    """

    _HEAD = struct.Struct("=II")
    _MOST_FORMS = 10_000

    def __init__(self, room: int, mean: int) -> None:
        self.room = room
        self.mean = mean
        self._forms: dict[bytes, Form] = {}

    @classmethod
    def of(cls, encoded: list[tuple[Form, Bytes]]) -> Ragged:
        """Rows with room for twice the longest of these."""
        sizes = [cls._HEAD.size + len(literal(form).encode()) + len(row) for form, row in encoded]
        return cls(-(-2 * max(sizes) // _PAGE) * _PAGE, sum(sizes) // len(sizes))

    def join(self, form: Form, row: Bytes) -> Bytes:
        """
        Raises:
            Unfit: there is no room for it.
        """
        text = literal(form).encode()
        joined = np.frombuffer(self._HEAD.pack(len(text), len(row)) + text + row.tobytes(), dtype=np.uint8)
        if len(joined) > self.room:
            raise Unfit("it is much larger than those that were tried")
        return joined

    def parts(self, row: Bytes) -> tuple[Form, Bytes]:
        text_size, size = self._HEAD.unpack(row[: self._HEAD.size].data)
        begin = self._HEAD.size + text_size
        text = row[self._HEAD.size : begin].tobytes()
        form = self._forms.get(text)
        if form is None:
            if len(self._forms) >= self._MOST_FORMS:
                self._forms.clear()
            form = self._forms[text] = ast.literal_eval(text.decode())
        return form, row[begin : begin + size]

    @classmethod
    def filled(cls, row: Bytes) -> int:
        """How many bytes of a row say something."""
        return cls._HEAD.size + sum(map(int, cls._HEAD.unpack(row[: cls._HEAD.size].data)))


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
            self.parts.append(_INTEGER.pack(thing))
        except struct.error:
            raise Unfit("it holds a very large number") from None
        return ("int",)

    def real(self, thing: float) -> Form:
        self.parts.append(_FLOAT.pack(thing))
        return ("float",)

    def octets(self, thing: bytes) -> Form:
        self.parts.append(thing)
        return ("bytes", len(thing))

    def text(self, thing: str) -> Form:
        data = thing.encode("utf-8", "surrogatepass")
        if len(data) > _LONGEST_TEXT:  # its length is a matter of the form, then
            self.parts.append(data)
            return ("text", len(data))
        self.parts.append(_TEXT.pack(len(data), data))
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
        if tensor.is_inference():
            raise Unfit("it holds a special tensor")
        try:  # numpy refuses what is special about a tensor, in a quarter of the time that it takes to ask for each
            array = tensor.numpy()
        except (RuntimeError, TypeError):
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
        special = tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.requires_grad
        if special or tensor.device.type != "cpu" or tensor.is_quantized:
            raise Unfit("it holds a special tensor")
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return tensor.view(whole[tensor.element_size()]).numpy()

    def _picture(self, picture: Any) -> Form:
        own = picture.palette is not None or getattr(picture, "_exif", None)
        if picture.mode not in _PIXEL or own or not picture.width or not picture.height:
            raise Unfit(f"it holds a picture of mode {picture.mode}, or with more to it than its pixels")
        self.parts.append(picture.tobytes())
        return ("picture", picture.mode, picture.size, _info_of(picture.info))


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


class _Reader:
    def __init__(self, row: Bytes) -> None:
        self._row = row
        self._at = 0
        self._made: list[Any] = []

    def read(self, form: Form) -> Any:
        return _READERS[form[0]](self, form)

    def _next(self, size: int) -> Bytes:
        self._at += size
        return self._row[self._at - size : self._at]

    def _slot(self) -> int:
        """Numbered as the writer numbered them: before what is inside."""
        self._made.append(None)
        return len(self._made) - 1

    def _kept(self, slot: int, thing: Any) -> Any:
        self._made[slot] = thing
        return thing

    def again(self, form: Form) -> Any:
        return self._made[form[1]]

    def truth(self, form: Form) -> bool:
        return bool(self._next(1)[0])

    def integer(self, form: Form) -> int:
        return int(_INTEGER.unpack(self._next(8).data)[0])

    def real(self, form: Form) -> float:
        return float(_FLOAT.unpack(self._next(8).data)[0])

    def text(self, form: Form) -> str:
        size, data = _TEXT.unpack(self._next(_TEXT.size).data)
        return str(data[:size].decode("utf-8", "surrogatepass"))

    def long_text(self, form: Form) -> str:
        return self._next(form[1]).tobytes().decode("utf-8", "surrogatepass")

    def sequence(self, form: Form) -> Any:
        slot = self._slot()
        items = [self.read(part) for part in form[1:]]
        return self._kept(slot, tuple(items) if form[0] == "tuple" else items)

    def mapping(self, form: Form) -> Any:
        slot = self._slot()
        return self._kept(slot, {key: self.read(part) for key, part in form[1:]})

    def number(self, form: Form) -> Any:
        slot = self._slot()
        dtype = np.dtype(form[1])
        return self._kept(slot, np.frombuffer(self._next(dtype.itemsize).tobytes(), dtype=dtype)[0])

    def array(self, form: Form) -> Any:
        _, name, shape, order, writeable = form
        slot = self._slot()
        held = np.empty([shape[each] for each in order], dtype=np.dtype(name))
        held.reshape(-1).view(np.uint8)[:] = self._next(held.nbytes)
        array = held.transpose(_inverse(order))
        array.flags.writeable = writeable
        return self._kept(slot, array)

    def tensor(self, form: Form) -> Any:
        import torch

        _, name, shape, order = form
        slot = self._slot()
        held = torch.empty([shape[each] for each in order], dtype=getattr(torch, name))
        flat = held.reshape(-1).view(torch.uint8).numpy()
        flat[:] = self._next(len(flat))
        plain = order == tuple(range(len(order)))
        return self._kept(slot, held if plain else held.permute(_inverse(order)))

    def kind(self, form: Form) -> Any:
        from torchvision import tv_tensors  # type: ignore[import-not-found,unused-ignore]

        slot = len(self._made)
        return self._kept(slot, self.tensor(form[2]).as_subclass(getattr(tv_tensors, form[1])))

    def picture(self, form: Form) -> Any:
        from PIL import Image

        _, mode, size, info = form
        slot = self._slot()
        width, height = size
        step = (width + 7) // 8 if mode == "1" else width * _PIXEL[mode]
        picture = Image.frombytes(mode, size, self._next(step * height).tobytes())
        picture.info = dict(info)
        return self._kept(slot, picture)


_READERS: dict[str, Callable[[_Reader, Form], Any]] = {
    "none": lambda reader, form: None,
    "again": _Reader.again,
    "bool": _Reader.truth,
    "int": _Reader.integer,
    "float": _Reader.real,
    "str": _Reader.text,
    "text": _Reader.long_text,
    "bytes": lambda reader, form: reader._next(form[1]).tobytes(),
    "tuple": _Reader.sequence,
    "list": _Reader.sequence,
    "dict": _Reader.mapping,
    "number": _Reader.number,
    "array": _Reader.array,
    "tensor": _Reader.tensor,
    "picture": _Reader.picture,
    "kind": _Reader.kind,
}


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


def _inverse(order: tuple[int, ...]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
