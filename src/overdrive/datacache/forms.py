"""What samples have in common, as plain data that can be compared: their *form*. What differs is one row of bytes."""

from __future__ import annotations

import ast
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.forks.layout import Unfit

Form = Any  # a tuple: a kind and what belongs to it
Bytes = NDArray[np.uint8]

_PAGE = 4096
LONGEST_TEXT = 254
TEXT = struct.Struct("=H254s")
INTEGER = struct.Struct("=q")
FLOAT = struct.Struct("=d")
# Picture modes without a palette, and the bytes of a pixel; mode 1 has eight pixels to a byte.
PIXEL = {"1": 0, "L": 1, "I;16": 2, "LA": 2, "La": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "LAB": 3}
PIXEL.update({"RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4})


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
