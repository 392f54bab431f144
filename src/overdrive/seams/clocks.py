"""The times that a program's own lines read: who told them once can tell them again, or to other ranks.

By `time.time()` and its kin, by `time.strftime("%H:%M")` and by `datetime.now()`, of which names of folders are made.
Libraries read the time as it is, but for the first calendar times of each of their lines: TensorBoard's `SummaryWriter`
names its folder by one.
"""

from __future__ import annotations

import copy
import copyreg
import datetime
import dis
import functools
import inspect
import os
import sys
import time
import types
from collections.abc import Callable
from typing import Any, Protocol

from overdrive.core.in_place import InPlace
from overdrive.core.whose import is_library_file, is_ours
from overdrive.seams.place import OWN

MADE = "OVERDRIVE_SURVIVE_CLOCK"  # where this is set, each time that is noted is a millisecond after the one before
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
_NAMES = tuple(f"{clock}{unit}" for clock in _CLOCKS for unit in ("", "_ns"))
_OF_THE_WORLD = ("time", "time_ns")  # the others begin anew with each process, or each start of the machine
# The argument that is now by default, and whether it is a `struct_time`.
_OF_NOW = {
    "localtime": (0, False),
    "gmtime": (0, False),
    "ctime": (0, False),
    "asctime": (0, True),
    "strftime": (1, True),
}
_NOW = frozenset(("now", "utcnow", "today"))  # by which a class of `datetime` tells the time
_OF_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
# A file of a library's that prints what it reads of clocks on standard output, as often as these say: Keras's bar.
_OF_BARS = os.path.join("keras", "src", "utils", "progbar.py")
_BEGINNING = 1_700_000_000_000  # milliseconds since 1970: of times that are made


class Read(Protocol):
    def __call__(self, plain: Callable[[], Any], noted: Callable[[], Any]) -> Any:
        """What a line of the program's is told that asks for the time.

        Args:
            plain: tells it where it is not noted.
            noted: tells it where it is, and is not known yet.
        """


def tell(read: Read, read_in_library: Callable[[str, Callable[[], float]], float] = lambda line, now: now()) -> None:
    """From here on `read` answers where a line of the program's asks for the time. For good, and once in a process.

    Args:
        read_in_library: answers where a line of a library's (its file and number) asks for a calendar time, given
            what tells it.
    """
    made = _Made() if MADE in os.environ else None
    made_for_libraries = _Made()  # how often these ask may be another number in a run that is made again
    local, plain_now = time.localtime, time.time
    for name in _NAMES:
        plain = getattr(time, name)
        kind = _Clock if made or name in _OF_THE_WORLD else _RunningOn
        clock = kind(plain, read, functools.partial(made.read, name) if made else plain)
        setattr(time, name, InPlace(plain, clock.tell))
    if timeit := sys.modules.get("timeit"):  # it has taken a copy
        timeit.default_timer = time.perf_counter  # type: ignore[attr-defined]

    def now() -> float:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename == __file__:
            frame = frame.f_back
        file = frame.f_code.co_filename
        if file == OWN or is_ours(file):
            return plain_now()
        library = _is_library(file)
        clock = made_for_libraries if library else made
        noted = functools.partial(clock.read, "time") if made and clock else plain_now
        if library:
            return float(read_in_library(f"{file}:{frame.f_lineno}", noted))
        return float(read(plain_now, noted))

    for name, (place, takes_parts) in _OF_NOW.items():
        given = (lambda: local(now())) if takes_parts else now
        plain = getattr(time, name)
        setattr(time, name, InPlace(plain, _of_now(plain, place, given)))
    sys.modules["datetime"].__class__ = _datetime_of(now)


class _Made:
    """Two runs that ask alike are told the same."""

    def __init__(self) -> None:
        self._reads = 0

    def read(self, name: str) -> Any:
        self._reads += 1
        milliseconds = self._reads + _BEGINNING
        return milliseconds * 1_000_000 if name.endswith("_ns") else milliseconds / 1000


@functools.cache
def _is_library(file: str) -> bool:
    return is_library_file(file) and not file.endswith(_OF_BARS)


def _by_program() -> bool:
    """Whether the line that called who asks this is the program's."""
    return not _is_library(sys._getframe(2).f_code.co_filename)


class _Clock:
    def __init__(self, plain: Callable[[], Any], read: Read, noted: Callable[[], Any]) -> None:
        self._plain, self._read, self._noted = plain, read, noted

    def tell(self) -> Any:
        return self._read(self._plain, self._noted) if _by_program() else self._plain()


class _RunningOn(_Clock):
    """A clock of which only differences count: it goes on from what it told last, also in another process."""

    def __init__(self, plain: Callable[[], Any], read: Read, noted: Callable[[], Any]) -> None:
        super().__init__(plain, read, noted)
        self._last, self._added = plain(), 0

    def _ahead(self) -> Any:
        now = self._plain() + self._added
        if now < self._last:
            self._added += self._last - now
            return self._last
        return now

    def tell(self) -> Any:
        if not _by_program():
            return self._plain()
        self._last = self._read(self._ahead, self._ahead)
        return self._last


def _of_now(plain: Callable[..., Any], place: int, now: Callable[[], Any]) -> Callable[..., Any]:
    """A function that makes something of a time: of now, where it is given none at that place of its arguments."""

    def told(*args: Any) -> Any:
        of_now = len(args) == place or (len(args) == place + 1 and args[place] is None)
        return plain(*args[:place], now()) if of_now else plain(*args)

    return told


def _is_for_now(frame: Any) -> bool:
    """Whether a line that asks `datetime` for a class may mean to call `now` of it: all else is to find Python's class,
    as pydantic does of a field, and a table of types.

    `datetime.datetime.now` tells it itself; of what imports a class its code does. `pickle`, called in a line, asks for
    the class that is kept. Of libraries, one that imports it within a function: what they have from the start stands in
    tables of types as well.
    """
    code, place = frame.f_code, frame.f_lasti
    asked = dis.opname[code.co_code[place]]
    if asked == "IMPORT_FROM":
        in_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        return (in_function or not _is_library(code.co_filename)) and _names_now(code)
    return asked in _OF_ATTRIBUTES and not _is_library(code.co_filename) and _asks_now_of_it(code, place)


@functools.cache
def _names_now(code: types.CodeType) -> bool:
    within = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return not _NOW.isdisjoint(code.co_names) or any(map(_names_now, within))


@functools.cache
def _asks_now_of_it(code: types.CodeType, place: int) -> bool:
    steps = [each for each in dis.get_instructions(code) if each.offset > place and each.opname != "EXTENDED_ARG"]
    return bool(steps) and steps[0].opname in _OF_ATTRIBUTES and steps[0].argval in _NOW


class _Kind(type):
    """Of the class that a program finds in place of `datetime` or `date`: what it makes is of the plain one, which it
    is equal to."""

    plain: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.plain(*args, **kwargs) if "plain" in vars(cls) else super().__call__(*args, **kwargs)

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, cls.plain) if "plain" in vars(cls) else super().__instancecheck__(thing)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.plain) if "plain" in vars(cls) else super().__subclasscheck__(kind)

    def __eq__(cls, other: Any) -> Any:  # in a table of types either finds what stands there for the other
        return cls.plain == other or cls is other if "plain" in vars(cls) else super().__eq__(other)

    def __hash__(cls) -> int:
        return hash(cls.plain) if "plain" in vars(cls) else super().__hash__()


def _pickled(kind: _Kind) -> Any:
    """By the plain one, in words that every Python reads: what is pickled is read without us, too."""
    return (copy.copy, (kind.plain,)) if "plain" in vars(kind) else kind.__qualname__


def _for_pydantic(cls: Any, source: Any, handler: Callable[[Any], Any]) -> Any:
    return handler(vars(cls).get("plain", source))


copyreg.pickle(_Kind, _pickled)


def _datetime_of(now: Callable[[], float]) -> type[types.ModuleType]:
    """The class of the module `datetime`, which gives a program's lines another `datetime` and `date`."""
    plain, day = datetime.datetime, datetime.date

    def told(cls: Any, tz: Any = None) -> Any:
        return vars(cls).get("plain", cls).fromtimestamp(now(), tz)

    def told_in_utc(cls: Any) -> Any:
        return told(cls, datetime.timezone.utc).replace(tzinfo=None)

    def told_today(cls: Any) -> Any:
        return vars(cls).get("plain", cls).fromtimestamp(now())

    named = {"__module__": "datetime", "__get_pydantic_core_schema__": classmethod(_for_pydantic)}
    times = {"now": classmethod(told), "utcnow": classmethod(told_in_utc), "today": classmethod(told_today)}
    days = {"today": classmethod(told_today)}
    in_place = {
        "datetime": _Kind("datetime", (plain,), {**named, **times, "plain": plain}),
        "date": _Kind("date", (day,), {**named, **days, "plain": day}),
    }

    class Datetime(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name in in_place and _is_for_now(sys._getframe(1)):
                return in_place[name]
            return super().__getattribute__(name)

    return Datetime
