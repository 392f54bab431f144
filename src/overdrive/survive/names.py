"""The names by which a program holds its objects: those of its modules and calls, of functions and of attributes.

Always in an order that another run of the program gives again.
"""

from __future__ import annotations

import gc
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from overdrive.survive.ours import belongs_to_library, belongs_to_us, file_of

_OF_AUTOGRAPH = "__autograph_generated_file"  # what TensorFlow makes of functions of the program's
_NAMES_OF_PYTHON = frozenset(("__builtins__", "__loader__", "__spec__", "__file__", "__cached__", "__annotations__"))
_WARNED = "__warningregistry__"  # what a computation warned of that is skipped when the run is made again


def roots(frame: Any) -> Iterator[tuple[str, Any]]:
    """All that the walk begins at. `frame`: the innermost call of the program's."""
    main = sys.modules["__main__"]
    for module in [main, *(each for each in list(sys.modules.values()) if _is_programs(each) and each is not main)]:
        for name, value in list(vars(module).items()):
            if name not in _NAMES_OF_PYTHON and name != _WARNED:
                yield f"{module.__name__}.{name}", value
    frames: list[Any] = []
    while frame is not None and not belongs_to_us(frame.f_code.co_filename, starter=True):
        frames.append(frame)
        frame = frame.f_back
    for each in reversed(frames):
        if not belongs_to_us(each.f_code.co_filename):
            yield f"{each.f_code.co_name}()", each


def _is_programs(module: Any) -> bool:
    if not file_of(module):
        return False
    name = getattr(module, "__name__", "")
    return isinstance(name, str) and not name.startswith(_OF_AUTOGRAPH) and not belongs_to_library(name)


def of_frame(path: str, frame: types.FrameType) -> Iterator[tuple[str, Any, bool]]:
    own = not belongs_to_library(frame.f_globals.get("__name__", ""))
    variables = _variables_of(frame)
    for name, value in variables.items():
        yield f"{path}.{name}", value, own
    seen = {id(value) for value in variables.values()}
    outside = (id(frame.f_globals), id(frame.f_builtins), id(frame.f_locals), id(variables), id(frame.f_back))
    for number, value in enumerate(gc.get_referents(frame)):  # what is on its stack: iterators of its loops
        if id(value) in seen or id(value) in outside or isinstance(value, (types.FrameType, types.CodeType, dict)):
            continue
        if not isinstance(value, types.FunctionType):
            yield f"{path}<{number}>", value, False


def _variables_of(frame: types.FrameType) -> dict[str, Any]:
    """In the order of the function's code: before Python 3.13 `f_locals` keeps the order in which an earlier look at
    this frame, for an earlier snapshot, has found them, and a run that is made again is looked at once."""
    found, code = frame.f_locals, frame.f_code
    if found is frame.f_globals:
        return {}
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a class's body
        return dict(found)
    names = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars, *found))
    return {name: found[name] for name in names if name in found}


def of_function(path: str, function: Any, own: bool) -> Iterator[tuple[str, Any, bool]]:
    own = own and not belongs_to_library(function.__module__ or "")
    for number, cell in enumerate(function.__closure__ or ()):
        yield f"{path}.{function.__code__.co_freevars[number]}", cell, own
    for name in ("__defaults__", "__kwdefaults__"):
        if value := getattr(function, name, None):
            yield f"{path}.{name}", value, own
    for name, value in vars(function).items():
        if not name.startswith("_torchdynamo"):  # an address, say
            yield f"{path}.{name}", value, own


def content_of(cell: types.CellType) -> tuple[Any, ...]:
    """Nothing where it is empty yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def attributes(thing: Any) -> list[tuple[str, Any]]:
    """Those in its `__dict__` and in its slots."""
    try:
        found = list(vars(thing).items())
    except TypeError:
        found = []
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__"):
                found.append((name, getattr(thing, name, None)))
    if isinstance(thing, type):
        return [(name, value) for name, value in found if not name.startswith("__")]
    return found
