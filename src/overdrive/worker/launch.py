"""Runs a program inside this process exactly as `python SCRIPT` or `python -m MODULE` would."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from overdrive.core.program import Program, ProgramError
from overdrive.core.whose import OURS
from overdrive.seams.place import OWN

Compile = Callable[[bytes, str], CodeType]  # of a source and its file's name


def execute(program: Program, compiler: Compile | None = None) -> None:
    """Run it as `__main__`, with the `sys.argv` and `sys.path[0]` it would have had. Raises what it raises.

    Args:
        compiler: makes the code of its main file, where Python is not to do it.

    Raises:
        ProgramError: it could not be started.
    """
    code, main = _module(program, compiler) if program.module else _script(program, compiler)
    sys.modules["__main__"] = main  # stays: pickled classes and spawned workers look for it there
    # A program that recurses just within the limit has our frames below it, some for each technique around a model's
    # call, and within that one for each module inside another, beside PyTorch's three.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + limit // 2 + _depth())
    exec(code, main.__dict__)


def _depth() -> int:
    depth, frame = 0, sys._getframe(1)
    while frame := frame.f_back:  # type: ignore[assignment]
        depth += 1
    return depth


def _script(program: Program, compiler: Compile | None) -> tuple[CodeType, ModuleType]:
    path = os.path.join(os.getcwd(), program.target)  # as Python does: not normalised
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise ProgramError(f"Cannot read {program.target}: {error.strerror}.") from None
    sys.argv = [program.target, *program.arguments]
    _first_on_path(os.path.dirname(os.path.realpath(path)))
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=path,
        __loader__=SourceFileLoader("__main__", path),
        __builtins__=builtins,
        __annotations__={},
        __cached__=None,
        __package__=None,
    )
    return compiler(source, path) if compiler else compile(source, path, "exec", dont_inherit=True), main


def _module(program: Program, compiler: Compile | None) -> tuple[CodeType, ModuleType]:
    sys.argv = ["-m", *program.arguments]  # as Python has it while it looks for the module
    _first_on_path(os.getcwd())
    try:
        spec = importlib.util.find_spec(program.target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(program.target + ".__main__")
    except ModuleNotFoundError as error:
        if not f"{program.target}.".startswith(f"{error.name}."):  # its package asks for another one that is missing
            raise
        spec = None
    code = spec.loader.get_code(spec.name) if spec and hasattr(spec.loader, "get_code") else None  # type: ignore[union-attr]
    if spec is None or code is None:
        raise ProgramError(f"There is no module {program.target} that can be run.")
    if compiler and spec.origin and (source := getattr(spec.loader, "get_source", lambda name: None)(spec.name)):
        code = compiler(source.encode(), spec.origin)
    sys.argv[0] = spec.origin or program.target
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=spec.origin,
        __loader__=spec.loader,
        __builtins__=builtins,
        __annotations__={},
        __cached__=spec.cached,
        __package__=spec.parent,
        __spec__=spec,
    )
    return code, main


def _first_on_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):  # under -P, Python puts neither our folder nor theirs there
        sys.path[0] = folder
        _hide_namesakes(folder)


def _hide_namesakes(folder: str) -> None:
    """A `secrets.py` beside the program is what it imports by that name, though we have imported Python's before it."""
    names = list(sys.modules)
    ours = {name for name in names[names.index("overdrive") :] if "." not in name} - {"overdrive", "__main__"}
    for name in ours:
        own, known = PathFinder.find_spec(name, [folder]), getattr(sys.modules[name], "__file__", None)
        if own and own.has_location and known and os.path.realpath(known) != os.path.realpath(str(own.origin)):
            for each in [each for each in names if f"{each}.".startswith(f"{name}.")]:
                del sys.modules[each]


def show_error(error: BaseException) -> None:
    """Show a program's error as Python would, without a frame of ours in its traceback."""
    hide_own_frames(error)
    sys.excepthook(type(error), error, error.__traceback__)


def end_as_python_would(error: BaseException) -> int:
    """The exit code for what the program raised; shows its traceback where Python would.

    Raises:
        KeyboardInterrupt: Ctrl-C has ended it, and that was shown. It is for Python, which runs what the program has
            registered, writes what lies in buffers, and has the shell see "killed by Ctrl-C".
    """
    if isinstance(error, KeyboardInterrupt):
        show_error(error)
        sys.excepthook = lambda *_: None
        raise error.with_traceback(None)
    if not isinstance(error, SystemExit):
        show_error(error)
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    with contextlib.suppress(Exception):  # a stream that the program has closed, say
        print(error.code, file=sys.stderr or sys.__stderr__)
    return 1


def hide_own_frames(error: BaseException) -> None:
    """Take Overdrive's frames, and those that led to the program's start, out of a chain of errors."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _without_own_frames(each.__traceback__)
        pending += [each.__cause__, each.__context__]


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(OURS) or code.co_name == OWN


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    starts = [i for i, each in enumerate(frames) if each.tb_frame.f_code is execute.__code__]
    frames = frames[starts[-1] + 1 :] if starts else frames
    kept = [each for each in frames if not _is_own(each.tb_frame.f_code)]
    following: TracebackType | None = None
    for frame in reversed(kept):
        frame.tb_next = following
        following = frame
    return following
