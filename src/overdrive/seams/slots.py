"""What C sees of a type: whether it is a sequence.

A class written in Python that has `__getitem__` is one for C, a tensor is none. So `torch.tensor([loss])` of a tensor
without dimensions fails once `torch.Tensor.__getitem__` is a function of Python: C asks it for its length.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_WORD = ctypes.sizeof(ctypes.c_void_p)
# `PyTypeObject` of CPython in words after its head: name, basicsize, ..., as_number, as_sequence; seen in 3.10 to 3.13.
_BASIC_SIZE, _AS_SEQUENCE = 1, 10
_ITEM = 3  # in `PySequenceMethods`: length, concat, repeat, item


@contextmanager
def staying_no_sequences(kind: type) -> Iterator[None]:
    """`kind` and what is derived from it by now stay what they are for C, though `__getitem__` is set inside."""
    found = [each for each in (kind, *_derived(kind)) if _is_no_sequence(each)] if _is_as_known() else []
    yield
    for each in found:
        _clear(each)


def derived_from(kind: Any) -> Any:
    """An `__init_subclass__` of `kind` by which what is derived from it later is no sequence either, unless it has a
    `__getitem__` of its own."""

    def __init_subclass__(cls: Any, **kwargs: Any) -> None:
        super(kind, cls).__init_subclass__(**kwargs)
        own: Any = next((each for each in cls.__mro__ if "__getitem__" in vars(each)), None)
        if own is kind and _is_as_known() and _is_no_sequence(kind):
            _clear(cls)

    found: Any = __init_subclass__
    return classmethod(found)


def _derived(kind: type) -> Iterator[type]:
    found: list[type] = type.__subclasses__(kind)
    for each in found:
        yield each
        yield from _derived(each)


def _item(kind: type) -> ctypes.c_void_p | None:
    """Where C finds how to take an item; None of a type in C that has no such table."""
    place = _place(kind) + _AS_SEQUENCE * _WORD
    table = ctypes.c_void_p.from_address(place).value
    return ctypes.c_void_p.from_address(table + _ITEM * _WORD) if table else None


def _place(kind: type) -> int:
    """Of its name, after the head of an object that has a size."""
    return id(kind) + object.__basicsize__ + _WORD


def _is_no_sequence(kind: type) -> bool:
    item = _item(kind)
    return item is None or item.value is None


def _clear(kind: type) -> None:
    if (item := _item(kind)) is not None:
        item.value = None


@cache
def _is_as_known() -> bool:
    """Whether types are laid out in memory as they are here."""

    class Plain:
        pass

    class Sequence:
        def __getitem__(self, place: int) -> int:
            return place

    if sys.implementation.name != "cpython" or sys.version_info >= (3, 15):
        return False
    size = ctypes.c_ssize_t.from_address(_place(Plain) + _BASIC_SIZE * _WORD).value
    return size == Plain.__basicsize__ and _is_no_sequence(Plain) and not _is_no_sequence(Sequence)
