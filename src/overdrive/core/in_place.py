"""Functions of ours in the place of others: as these, one that stands for a function in C is no method of a class that
has it (`class Loss: compare = torch.equal`, `logging.Formatter.converter = time.gmtime`)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any

STANDS_FOR = "overdrive_stands_for"  # set on a method of ours: the one that it replaced


class InPlace:
    """A function that is called by what stands in the place of `plain`, to which it is equal: a table of functions
    finds either by the other.

    Attributes:
        __func__: ours.
        __wrapped__: the one that it stands for.
    """

    # Python looks for this one in the class: so a call comes to ours at once, without a frame between.
    __slots__ = ("__call__", "__dict__", "__weakref__")

    def __init__(self, plain: Callable[..., Any], ours: Callable[..., Any]) -> None:
        functools.update_wrapper(self, plain)
        self.__dict__["__func__"] = self.__call__ = ours

    def __eq__(self, other: object) -> bool:
        return other is self or bool(self.__dict__["__wrapped__"] == other)

    def __hash__(self) -> int:
        return hash(self.__dict__["__wrapped__"])

    def __repr__(self) -> str:
        return repr(self.__dict__["__wrapped__"])

    def __reduce__(self) -> str:
        return self.__qualname__  # type: ignore[attr-defined,no-any-return]


def in_place_of(plain: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `functools.wraps`, which is right for a function that becomes a method."""
    binds = hasattr(type(plain), "__get__") and not isinstance(plain, MethodType)
    return functools.wraps(plain) if binds else functools.partial(InPlace, plain)


def stands(function: Any, holder: Any, name: str) -> None:
    """It stands there now, and pickle finds it by that name. The names of PyTorch's functions in C lead to a class that
    nobody sees, those of `os` to `posix`: a model that holds `torch.flatten` could not be saved as a whole while ours,
    with the same names, stands in its place."""
    if isinstance(function, InPlace) and isinstance(holder, ModuleType) and not _finds_itself(function):
        function.__module__, function.__qualname__ = holder.__name__, name  # type: ignore[attr-defined]


def _finds_itself(function: Any) -> bool:
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function
