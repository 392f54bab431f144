"""A stand-in for a data set that shows only some of its attributes, and can be written to by nobody.

What the first half of a method reads of its object is learnt by trying; where it reaches for anything else
in a rare case, it must not find it unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overdrive.forks.layout import Unfit

ABSENT = object()


class Reached(BaseException):
    """The guarded code reached for what it must not. No `except Exception` of the user's catches it."""


def guarded(thing: Any, see: Callable[[str], None], names: frozenset[str] | None = None) -> Any:
    """The stand-in, with these attributes of the object's own (None: all). `see` is told each name that is read.

    Raises:
        Unfit: such an object can have none.
    """
    kind: Any = type(thing)
    space = getattr(thing, "__dict__", None)
    if not isinstance(space, dict) or any(vars(base).get("__slots__") for base in kind.__mro__):
        raise Unfit(f"a {kind.__qualname__} keeps its state elsewhere than in plain attributes")

    def __getattribute__(self: Any, name: str) -> Any:
        see(name)
        return kind if name == "__class__" else kind.__getattribute__(self, name)

    def refuse(self: Any, *_: Any) -> None:
        raise Reached(f"it writes to the {kind.__qualname__}")

    body = {
        "__getattribute__": __getattribute__,
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    try:
        stand_in = object.__new__(type(kind)(kind.__name__, (kind,), body))
        own = object.__getattribute__(stand_in, "__dict__")
    except Exception as error:
        raise Unfit(f"a {kind.__qualname__} can have no stand-in ({type(error).__name__}: {error})") from None
    own.update({name: value for name, value in space.items() if names is None or name in names})
    return stand_in


def forbidding(thing: Any, names: frozenset[str]) -> Callable[[str], None]:
    """A `see` that lets through these attributes of the object, and all that belongs to its class."""
    others = frozenset(vars(thing)) - names | {"__dict__"} - names

    def see(name: str) -> None:
        if name in others:
            raise Reached(f"it reads {name}")

    return see
