"""Identifies a function or class: by its code, and by the sources and versions behind it."""

from __future__ import annotations

import dis
import hashlib
import itertools
import os
import sys
import time
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from types import CodeType, ModuleType
from typing import Any

from overdrive.core.whose import is_library, is_ours

_BEGAN = time.time()


def is_library_code(code: CodeType) -> bool:
    return _is_librarys(code.co_filename) or code.co_filename.startswith("<frozen")


def is_library_module(name: str) -> bool:
    """Whether a module is built in, of the standard library or of an installed package."""
    module = sys.modules.get(name)
    if module is None:
        return name in sys.builtin_module_names
    file = getattr(module, "__file__", None)
    if file is None:
        # Built in, or a namespace package, or made by a library's own C; what has no file and is neither was made by
        # hand.
        if _is_part_of_c(name, module):
            return True
        return is_of_cython(name) or name in sys.builtin_module_names or name.split(".")[0] in sys.stdlib_module_names
    return _is_librarys(file)


def _is_librarys(file: str) -> bool:
    """Ours is one, too, wherever it lies: what we keep is nothing that a data set is made of, and one of our arrays is
    all of memory, most of which cannot be read."""
    path = os.path.abspath(file)
    return is_library(path) or is_ours(path)


def _is_part_of_c(name: str, module: ModuleType) -> bool:
    """Whether it is one of several modules that one compiled library brings, such as `torch._C._nn`."""
    above, _, last = name.rpartition(".")
    parent = sys.modules.get(above)
    file = str(getattr(parent, "__file__", None) or "")
    return (
        file.endswith(tuple(EXTENSION_SUFFIXES))
        and is_library(os.path.abspath(file))
        and getattr(parent, last, None) is module
    )


def is_of_cython(name: str) -> bool:
    """Whether a module is one that Cython makes for the types of its functions, which all that it compiled share."""
    return name.startswith("_cython_")


def source_of(name: str) -> str | None:
    """A hash of the whole source of one of the user's own modules.

    None where there is none, or where it was written after this process began, and so may not be
    what runs here.
    """
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
    if not file:
        return None
    try:
        with open(file, "rb") as source:
            if os.fstat(source.fileno()).st_mtime > _began():
                return None
            return hashlib.blake2b(source.read()).hexdigest()
    except OSError:
        return None


@cache
def _began() -> float:
    """When this process began, in seconds since 1970; where that isn't known, when we were imported."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        # psutil says the same, but a second more or less: it counts from a rounded time of boot.
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    except (OSError, ValueError, IndexError, AttributeError):
        return _BEGAN


def globals_read(code: CodeType) -> set[str]:
    """The names that the code, and what is nested in it, looks up outside of itself, or sets there."""
    names = {
        str(instruction.argval)
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
    }
    for inner in nested(code):
        names |= globals_read(inner)
    return names


def nested(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def constants(code: CodeType) -> list[Any]:
    """The code's constants, nested code left out."""
    return [each for each in code.co_consts if not isinstance(each, CodeType)]


def attributes_set(code: CodeType) -> set[str]:
    """The names of attributes that it sets, of whatever object."""
    return {str(each.argval) for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}


def names_of(code: CodeType) -> set[str]:
    """All names that the code, and what is nested in it, uses: of globals, attributes, modules that it imports."""
    return set(code.co_names).union(*map(names_of, nested(code)))


def modules_imported(code: CodeType, package: str = "") -> list[str]:
    """Names of those that it may import when it runs: by a statement, or by a function that is told.

    Args:
        package: that it belongs to, from which it may count.
    """
    outer = ["", *(f"{each}." for each in _outer(package))]
    names: set[str] = set()
    for each in dis.get_instructions(code):
        if each.opname == "IMPORT_NAME":
            full = ((ahead + str(each.argval)).rstrip(".") for ahead in outer)
            names.update(*map(_outer, full))
    if not _IMPORTS.isdisjoint(code.co_names):
        names |= {each for each in code.co_consts if isinstance(each, str)}
    return sorted(names.union(*(modules_imported(inner, package) for inner in nested(code))))


def _outer(name: str) -> list[str]:
    """A module's name and those of the packages that it is in."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)] if name else []


def looks_around(code: CodeType) -> bool:
    """Whether it may find anything at all, by way of the interpreter."""
    return not _AROUND.isdisjoint(code.co_names)


def reads_addresses(code: CodeType) -> bool:
    """Whether it may read memory of which it holds no object."""
    return not _BY_ADDRESS.isdisjoint(code.co_names)


def asks_where(code: CodeType) -> bool:
    """Whether it may ask in which process, or which of a loader's workers, it runs."""
    return not _WHERE.isdisjoint(code.co_names)


def asks_for_the_time(code: CodeType) -> bool:
    """Whether it may ask a clock: what it does then depends on when it is done."""
    if not _CLOCKS.isdisjoint(code.co_names):
        return True
    if "time" not in code.co_names:
        return False
    steps = [(each.opname, each.argval) for each in dis.get_instructions(code)]
    for (load, name), (then, attribute) in itertools.pairwise(steps):
        if name != "time" or load in _ATTRIBUTE:
            continue
        if attribute == "time" if then in _ATTRIBUTE else load in ("LOAD_GLOBAL", "LOAD_NAME"):
            return True
    return False


def seeds_itself(code: CodeType) -> bool:
    """Whether it may draw from what the system seeds anew each time: no generator that is watched tells of that."""
    if not _FROM_THE_SYSTEM.isdisjoint(code.co_names):
        return True
    if _GENERATORS.isdisjoint(code.co_names):
        return False
    steps = [each for each in dis.get_instructions(code) if each.opname not in ("PUSH_NULL", "PRECALL", "CACHE")]
    return any(
        made.argval in _GENERATORS
        and made.opname.startswith("LOAD_")
        and then.opname.startswith("CALL")
        and not then.arg
        for made, then in itertools.pairwise(steps)
    )


def globals_told(code: CodeType) -> set[str]:
    """Texts that may be names of globals, where the code looks such up by their names."""
    looks_up = not _LOOKS_UP.isdisjoint(code.co_names)
    told = {each for each in code.co_consts if isinstance(each, str)} if looks_up else set()
    return told.union(*map(globals_told, nested(code)))


def environment_read(code: CodeType) -> dict[str, str | None]:
    """The environment variables that the code reads, with their values: all, where it does not name them itself."""
    named = set().union(*(names for function, names in _OF_ENVIRONMENT.items() if function in code.co_names))
    if "expandvars" in code.co_names:
        return dict(os.environ)
    if _ENVIRONMENT.isdisjoint(code.co_names):
        return {text: os.environ.get(text) for text in named}
    steps = list(dis.get_instructions(code))
    for place, each in enumerate(steps):
        if each.argval in _ENVIRONMENT and each.opname.startswith("LOAD_"):
            rest = (step for step in steps[place + 1 :] if step.opname not in _BETWEEN)
            told = next(rest, None)
            if told is None or told.opname != "LOAD_CONST" or not isinstance(told.argval, str):
                return dict(os.environ)
            named.add(told.argval)
    return {text: os.environ.get(text) for text in named if text and "=" not in text and "\0" not in text}


_ENVIRONMENT = frozenset(("environ", "environb", "getenv"))
# What functions of the standard library read there.
_OF_ENVIRONMENT = {
    **dict.fromkeys(("expanduser", "home"), ("HOME",)),
    **dict.fromkeys(("gettempdir", "mkdtemp", "mkstemp"), ("TMPDIR", "TEMP", "TMP")),
    "which": ("PATH",),
}
_WHERE = frozenset(("get_worker_info", "_worker_info", "getpid", "getppid", "current_process", "parent_process"))
_CLOCKS = frozenset(
    f"{clock}{unit}" for clock in ("monotonic", "perf_counter", "process_time", "clock_gettime") for unit in ("", "_ns")
) | {"time_ns", "localtime", "gmtime", "strftime", "now", "utcnow", "today"}
_FROM_THE_SYSTEM = frozenset(("urandom", "getrandom", "SystemRandom", "uuid1", "uuid4", "randbits", "randbelow"))
_FROM_THE_SYSTEM |= {"token_bytes", "token_hex", "token_urlsafe"}
# Called with nothing, they seed themselves.
_GENERATORS = frozenset(("default_rng", "RandomState", "SeedSequence", "Random", "PCG64", "MT19937", "Philox", "SFC64"))
_ATTRIBUTE = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_IMPORTS = frozenset(("__import__", "import_module", "modules"))
_LOOKS_UP = frozenset(("globals", "vars", "eval", "exec", "getattr", "hasattr", "attrgetter", "__dict__"))
_AROUND = frozenset(
    ("_getframe", "currentframe", "f_globals", "f_locals", "get_objects", "get_referrers", "get_referents")
)
_AROUND |= {"__globals__", "__subclasses__"}
_BY_ADDRESS = frozenset(("string_at", "wstring_at", "from_address"))
_BETWEEN = frozenset(("LOAD_METHOD", "LOAD_ATTR", "PUSH_NULL"))  # an environment and the name of a variable
