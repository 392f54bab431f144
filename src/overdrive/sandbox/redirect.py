"""Keeps writes away from the user's files in Python, where the kernel refuses namespaces.

Three layers. Python's functions for files are replaced by ones that go through a `Mirror`, so that
writes land in the scratch folder and are read back from there. An audit hook refuses what got
past them, with a sentence. Landlock, where the kernel has it, refuses what Python doesn't see:
libraries that open files in C or Rust, and the programs the script starts.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from overdrive.core.in_place import in_place_of
from overdrive.sandbox.landlock import allow_writes_only
from overdrive.sandbox.mirror import Mirror
from overdrive.sandbox.redirected_files import WRITING, Redirection, within_open
from overdrive.sandbox.tensorflow_files import TensorFlowFiles

# A socket's path may take 107 bytes, of which multiprocessing and torch use up to 50.
LONGEST_TEMPORARY = 57

_active: Redirection | None = None


def enter_redirect(scratch: Path, keep: Sequence[Path], why: str) -> str:
    """Redirect this process for good; returns a sentence on how. `why` says why not by overlay."""
    global _active
    writable = [str(scratch), *map(str, keep)]
    root = scratch / "redirected"
    root.mkdir()
    _move_temporary_files(scratch)
    _active = Redirection(Mirror(str(root), writable))
    _active.enter()
    # Compiled modules are written past our functions, and would be refused one by one.
    sys.dont_write_bytecode = not sys.pycache_prefix or os.path.realpath(sys.pycache_prefix) not in writable
    has_landlock = allow_writes_only([*writable, "/dev", "/proc"])
    sys.addaudithook(_refuser(_active.mirror, has_landlock))
    net = (
        "other programs and libraries are refused by Landlock"
        if has_landlock
        else "this kernel has no Landlock, so writes by other programs and by libraries "
        "that do not use Python's functions are NOT kept away"
    )
    return f"writes made through Python go to {scratch}; {net} (no overlay: {why})"


def redirect_torch() -> None:
    """Let torch.save and torch.load follow the redirection; call it once torch is imported.

    Given a path, they open it in C++. Does nothing where writes aren't redirected.
    """
    if _active is not None:
        have_follow("torch", _active.path_to_write, _active.path_to_read)


def redirect_safetensors() -> None:
    """The same of safetensors, which opens files in Rust; call it before its functions are taken by their names."""
    if _active is not None:
        have_follow("safetensors", _active.path_to_write, _active.path_to_read)


def redirect_hdf5() -> None:
    """The same of h5py, which opens files in C."""
    if _active is not None:
        have_hdf5_follow(_active.path_in_mode)


def redirect_tensorflow() -> None:
    """The same of TensorFlow, which opens files in C++; call it once that is imported."""
    if _active is not None:
        TensorFlowFiles(_active).follow()


# By the library whose import is to be waited for; PyTorch's is a framework's arrival.
FOLLOWERS: dict[str, Callable[[], None]] = {
    "safetensors": redirect_safetensors,
    "h5py": redirect_hdf5,
    "tensorflow": redirect_tensorflow,
}


# Functions of libraries that open a path past Python's own: which writes and which reads, where their path stands
# among the arguments, and its name.
_PAST_PYTHON = {
    "torch": (("save", 1, "f"), ("load", 0, "f")),
    "safetensors": (("serialize_file", 1, "filename"), ("safe_open", 0, "filename")),
}


def have_follow(library: str, path_to_write: Callable[[str], str], path_to_read: Callable[[str], str]) -> None:
    """Let this library, which is imported, write and read at the paths that are told for those that it is given."""
    module = sys.modules[library]
    for (name, position, keyword), convert in zip(_PAST_PYTHON[library], (path_to_write, path_to_read), strict=True):
        setattr(module, name, _on_path(getattr(module, name), position, keyword, convert))


def have_hdf5_follow(path_in_mode: Callable[[str, str], str]) -> None:
    """The same of h5py, which opens files in C, among them Keras's of weights.

    Args:
        path_in_mode: is told of a path, and of the mode that the file is opened in.
    """
    kind = sys.modules["h5py"].File
    make = kind.__init__

    @functools.wraps(make)
    def __init__(self: Any, name: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> None:
        if isinstance(name, (str, os.PathLike)):
            name = path_in_mode(os.fspath(name), mode)
        make(self, name, mode, *args, **kwargs)

    kind.__init__ = __init__


def _on_path(
    function: Callable[..., Any], position: int, keyword: str, convert: Callable[[str], str]
) -> Callable[..., Any]:
    """`function` with the path at `position`, also known as `keyword`, replaced by the real one."""

    @in_place_of(function)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position and isinstance(args[position], (str, os.PathLike)):
            path = convert(os.fspath(args[position]))
            args = (*args[:position], path, *args[position + 1 :])
        elif isinstance(kwargs.get(keyword), (str, os.PathLike)):
            kwargs[keyword] = convert(os.fspath(kwargs[keyword]))
        return function(*args, **kwargs)

    return redirected


def _move_temporary_files(scratch: Path) -> None:
    """Give the trial a folder of its own for temporary files."""
    folder = str(scratch / "tmp")
    os.mkdir(folder, 0o700)
    if len(os.fsencode(folder)) > LONGEST_TEMPORARY:
        # A short name for it that leaves nothing behind; open for as long as this process lives.
        folder = f"/proc/{os.getpid()}/fd/{os.open(folder, os.O_PATH)}"
    os.environ["TMPDIR"] = tempfile.tempdir = folder


# Which arguments of an audit event are paths that will be written.
WRITES = {
    "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.truncate": (0,), "os.chmod": (0,),
    "os.chown": (0,), "os.utime": (0,), "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,),
    "os.setxattr": (0,), "os.removexattr": (0,),
}  # fmt: skip


def _refuser(mirror: Mirror, has_landlock: bool) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook against writes that did not come through the replaced functions."""

    def refuse_writes(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _mode, flags = args
            if not flags & WRITING or within_open:
                return
            paths = [path]
        elif event in WRITES:
            paths = [args[position] for position in WRITES[event]]
        elif event == "sqlite3.connect" and not has_landlock:
            # With Landlock, SQLite finds that it can only read, and says so itself.
            paths = [args[0]]
            if os.fsdecode(paths[0]) in (":memory:", "") or "mode=ro" in os.fsdecode(paths[0]):
                return
        else:
            return
        for path in paths:
            if not isinstance(path, int) and mirror.refuses(os.fsdecode(path)):
                raise PermissionError(errno.EACCES, f"this trial may not write to {os.fsdecode(path)}", path)

    return refuse_writes
