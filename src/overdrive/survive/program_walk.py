"""The walk through what a program holds at a moment, in an order that another run of it gives again.

It begins at the names of its modules and the variables of its calls, and comes to every object once. What counts of an
object and what is in it says who has the walk made, since that is another thing in each framework.
"""

from __future__ import annotations

import hashlib
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from overdrive.core.in_place import InPlace
from overdrive.survive.names import content_of, of_frame, of_function, roots
from overdrive.survive.ours import belongs_to_library, is_redirected

PLAIN = (bool, int, float, complex, str, bytes, type(None))
SEQUENCES = (list, tuple, deque)
OF_CODE = (types.FrameType, types.FunctionType, types.CellType)
_OPAQUE = (types.ModuleType, types.CodeType, types.BuiltinFunctionType, InPlace)

Child = tuple[str, Any, bool]  # the path to a thing, the thing, and whether it is the program's own
# Is called with each thing that is not plain and not code alone; notes what counts of it, and gives what is in it.
Look = Callable[[str, Any, bool], Iterable[Child]]


class ProgramWalk:
    """
    Attributes:
        facts: path and text of all that counts, so far.
        seen: by address, and kept, so that no other object gets an address meanwhile.
    """

    def __init__(self) -> None:
        self.facts: list[tuple[str, str]] = []
        self.seen: dict[int, Any] = {}

    def from_roots(self, frame: Any, look: Look) -> None:
        """`frame`: the innermost call of the program's."""
        self.through(((path, thing, True) for path, thing in roots(frame)), look)

    def through(self, held: Iterable[Child], look: Look) -> None:
        """These things and all that is in them, what is in one before the next one."""
        waiting = _last_first(held)
        while waiting:
            path, thing, own = waiting.pop()
            if type(thing) in PLAIN:
                if own:
                    self.note(path, short(repr(thing)))
            elif id(thing) not in self.seen:
                self.seen[id(thing)] = thing
                if not _says_nothing(thing):
                    waiting += _last_first(look(path, thing, own))

    def note(self, path: str, text: str) -> None:
        self.facts.append((path, text))


def _last_first(held: Iterable[Child]) -> list[Child]:
    return list(held)[::-1]


def _says_nothing(thing: Any) -> bool:
    """Whether it is code alone."""
    if isinstance(thing, type):
        return belongs_to_library(thing.__module__) or thing.__module__ == "builtins"
    if isinstance(thing, (types.FunctionType, types.MethodType)):
        return is_redirected(thing)
    return isinstance(thing, _OPAQUE)


def in_code(path: str, thing: Any, own: bool) -> Iterator[Child]:
    """What is in one of `OF_CODE`."""
    if isinstance(thing, types.FrameType):
        yield from of_frame(path, thing)
    elif isinstance(thing, types.FunctionType):
        yield from of_function(path, thing, own)
    else:
        yield from ((path, value, own) for value in content_of(thing))


def difference(then: list[str], now: list[str]) -> str:
    """Between what was found at a snapshot and now, a line each; "" where there is none."""
    for one, other in zip(then, now, strict=False):
        if one != other:
            return f"{one} at the snapshot, {other} now"
    return "" if len(then) == len(now) else f"{len(then)} things at the snapshot, {len(now)} now"


def short(text: str) -> str:
    return text if len(text) <= 40 else hash_of(text.encode(errors="replace"))


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def hash_of_buffer(buffer: Any) -> str:
    """`buffer`: a `BytesIO` or `StringIO` that is open."""
    content = buffer.getvalue()
    return hash_of(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
