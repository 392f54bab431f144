"""Samples, and values of a method, from the bytes that `encoding` made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from overdrive.datacache.forms import FLOAT, INTEGER, PIXEL, TEXT, Bytes, Form


def decode(form: Form, row: Bytes) -> tuple[Any, ...]:
    """The values, in memory of their own."""
    reader = _Reader(row)
    return tuple([reader.read(part) for part in form[1:]])


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
        return int(INTEGER.unpack(self._next(8).data)[0])

    def real(self, form: Form) -> float:
        return float(FLOAT.unpack(self._next(8).data)[0])

    def text(self, form: Form) -> str:
        size, data = TEXT.unpack(self._next(TEXT.size).data)
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
        # As it is where that will do: a view cannot be resized.
        array = held if order == tuple(range(len(order))) else held.transpose(_inverse(order))
        array.flags.writeable = writeable
        return self._kept(slot, array)

    def tensor(self, form: Form) -> Any:
        import torch

        _, name, shape, order = form
        slot = self._slot()
        held = torch.empty([shape[each] for each in order], dtype=getattr(torch, name))
        # By no view of NumPy's: whoever has the tensor could not resize it from then on.
        held.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(self._next(held.nbytes).copy()))
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
        step = (width + 7) // 8 if mode == "1" else width * PIXEL[mode]
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


def _inverse(order: tuple[int, ...]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
