"""TensorFlow's files, which it opens in C++, where writes are redirected: its functions for them are given other paths.

`tf.io.gfile` and all that is built on it come by one module of functions, with a path each. What operations write and
read (checkpoints, saved models, caches of data sets, records) comes by theirs, whose paths are tensors: within a graph
nobody knows them, and they stay as they are.
"""

from __future__ import annotations

import errno
import fnmatch
import functools
import glob
import inspect
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from overdrive.core.in_place import in_place_of
from overdrive.sandbox.redirected_files import Redirection

_FILES = "tensorflow.python.lib.io._pywrap_file_io"
_SAVED_MODEL = "tensorflow.python.saved_model.pywrap_saved_model"
# By these what is at a path is read.
_READ = {
    _FILES: ("FileExists", "IsDirectory", "Stat", "HasAtomicMove", "BufferedInputStream"),
    f"{_SAVED_MODEL}.fingerprinting": (
        *("CreateFingerprintDef", "ReadSavedModelFingerprint", "SingleprintFromFP", "SingleprintFromSM"),
    ),
}
_ERRORS = {
    errno.ENOENT: "NotFoundError",
    errno.EEXIST: "AlreadyExistsError",
    errno.EACCES: "PermissionDeniedError",
    errno.ENOTDIR: "FailedPreconditionError",
    errno.EISDIR: "FailedPreconditionError",
    errno.ENOTEMPTY: "FailedPreconditionError",
}
_LOCAL = "file://"
Convert = Callable[[str], str]  # from the path that the program has to the real one


class TensorFlowFiles:
    """Of this process, for good."""

    def __init__(self, redirection: Redirection) -> None:
        self._redirection = redirection

    def follow(self) -> None:
        """Once TensorFlow is imported."""
        read, folder = self._redirection.path_to_read, self._redirection.folder_to_write
        for place, names in _READ.items():
            _set(place, {name: functools.partial(_with_path, convert=read) for name in names})
        _set(_SAVED_MODEL, {"Save": functools.partial(_with_path, convert=folder)})
        self._follow_files()
        for place, functions in self._by_parameters(read, folder).items():
            for name, paths in functions.items():
                if plain := getattr(sys.modules.get(f"tensorflow.python.{place}"), name, None):
                    _set_everywhere(name, plain, _given(plain, paths))
        self._follow_records()

    def _by_parameters(self, read: Convert, folder: Convert) -> dict[str, dict[str, dict[str, Convert]]]:
        """Functions by the modules that they are in, with what becomes of which of their parameters."""
        written = self._prefix_to_write
        return {
            "ops.gen_io_ops": {
                "save_v2": {"prefix": written},
                "merge_v2_checkpoints": {"checkpoint_prefixes": written, "destination_prefix": written},
                "restore_v2": {"prefix": self._prefix_to_read},
                "write_file": {"filename": self._file_to_write},
                "read_file": {"filename": read},
            },
            "ops.gen_dataset_ops": {name: {"filename": self._cache} for name in ("cache_dataset", "cache_dataset_v2")},
            "ops.gen_experimental_dataset_ops": {
                **{name: {"path": folder} for name in ("save_dataset", "save_dataset_v2")},
                "load_dataset": {"path": read},
            },
            "ops.gen_summary_ops": {"create_summary_file_writer": {"logdir": folder}},
            "training.py_checkpoint_reader": {"NewCheckpointReader": {"filepattern": self._prefix_to_read}},
            "data.ops.readers": {"_create_or_validate_filenames_dataset": {"filenames": read}},
        }

    def _follow_files(self) -> None:
        made: dict[str, Callable[..., Any]] = {
            "GetChildren": os.listdir,
            "GetMatchingFiles": _matching,
            "CreateDir": os.mkdir,
            "RecursivelyCreateDir": functools.partial(os.makedirs, exist_ok=True),
            "DeleteFile": os.remove,
            "DeleteRecursively": shutil.rmtree,
            "CopyFile": functools.partial(_put, shutil.copyfile),
            "RenameFile": functools.partial(_put, os.replace),
        }
        _set(_FILES, {name: functools.partial(_by_python, make=make) for name, make in made.items()})
        _set(_FILES, {"WritableFile": self._writing})

    def _writing(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @in_place_of(plain)
        def writable(path: Any, mode: Any) -> Any:
            local = _local(path)
            return plain(path if local is None else self._file_to_write(local, os.fsdecode(mode)), mode)

        return writable

    def _follow_records(self) -> None:
        kind = sys.modules["tensorflow"].io.TFRecordWriter
        make = kind.__init__

        @functools.wraps(make)
        def __init__(writer: Any, path: Any, *args: Any, **kwargs: Any) -> None:
            local = _local(path)
            make(writer, path if local is None else self._file_to_write(local), *args, **kwargs)

        kind.__init__ = __init__

    def _file_to_write(self, path: str, mode: str = "w") -> str:
        """A real path for a file that is written from its beginning, or from its end where the mode is `a`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC * ("w" in mode)
        with _Told():
            self._redirection.open(path, flags, 0o666, close=True)
        return self._redirection.path_to_read(path)

    def _prefix_to_write(self, prefix: str) -> str:
        """Of files whose names begin so."""
        folder, name = os.path.split(prefix)
        with _Told():
            return os.path.join(self._redirection.folder_to_write(folder or "."), name)

    def _prefix_to_read(self, prefix: str) -> str:
        return self._redirection.path_to_read(f"{prefix}.index").removesuffix(".index")

    def _cache(self, prefix: str) -> str:
        """Of a data set: it is read where it is whole, and in memory where it has no name."""
        if not prefix:
            return prefix
        return self._prefix_to_read(prefix) if os.path.exists(f"{prefix}.index") else self._prefix_to_write(prefix)


class _Told:
    """Has what Python's functions say told as TensorFlow would tell it."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        if isinstance(error, OSError):
            errors = sys.modules["tensorflow"].errors
            name = _ERRORS.get(error.errno or 0, "UnknownError")
            raise getattr(errors, name)(None, None, f"{error.filename}; {error.strerror}") from None


def _local(path: Any) -> str | None:
    """It, where it is of this machine: others are `gs://...`, or memory."""
    name = os.fsdecode(path).removeprefix(_LOCAL)
    return None if "://" in name else name


def _with_path(plain: Callable[..., Any], convert: Convert) -> Callable[..., Any]:
    @in_place_of(plain)
    def converted(path: Any, *args: Any) -> Any:
        local = _local(path)
        return plain(path if local is None else convert(local), *args)

    return converted


def _by_python(plain: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
    """What changes folders, or looks at all that is in one, made by functions that are redirected."""

    @in_place_of(plain)
    def made(*args: Any) -> Any:
        paths = [_local(each) for each in args if isinstance(each, (str, bytes))]
        if None in paths:
            return plain(*args)
        with _Told():
            return make(*paths, *args[len(paths) :])

    return made


def _matching(pattern: str) -> list[str]:
    """As TensorFlow has it, names that begin with a full stop among them, and `./` before those of this folder."""
    if not glob.has_magic(pattern):
        return [pattern] if os.path.exists(pattern) else []
    folder, name = os.path.split(pattern)
    folders = _matching(folder) if glob.has_magic(folder) else [folder or "."]
    within = [(each, os.listdir(each)) for each in folders if os.path.isdir(each)]
    return [os.path.join(place, each) for place, names in within for each in names if fnmatch.fnmatchcase(each, name)]


def _put(put: Callable[[str, str], Any], source: str, target: str, overwrite: bool) -> None:
    if not overwrite and os.path.exists(target):
        raise FileExistsError(errno.EEXIST, "file already exists", target)
    put(source, target)


def _given(plain: Callable[..., Any], paths: dict[str, Convert]) -> Callable[..., Any]:
    """An operation, which is given other paths by these of its parameters."""
    places = {name: place for place, name in enumerate(inspect.signature(plain).parameters) if name in paths}

    @functools.wraps(plain)
    def given(*args: Any, **kwargs: Any) -> Any:
        made = list(args)
        for name, place in places.items():
            if place < len(made):
                made[place] = _converted(made[place], paths[name])
            elif name in kwargs:
                kwargs[name] = _converted(kwargs[name], paths[name])
        return plain(*made, **kwargs)

    return given


def _converted(told: Any, convert: Convert) -> Any:
    """One path, or several; as it is where it is part of a graph."""
    value = told.numpy() if hasattr(told, "numpy") else told
    if isinstance(value, (str, bytes, os.PathLike)):
        local = _local(value)
        return told if local is None else convert(local)
    if isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 1:
        return [_converted(each, convert) for each in value]
    return told


def _set(place: str, functions: dict[str, Callable[[Any], Any]]) -> None:
    """In a module of C's, where it has functions of these names: what is made of each."""
    module = sys.modules.get(place)
    for name, make in functions.items():
        if plain := getattr(module, name, None):
            setattr(module, name, make(plain))


def _set_everywhere(name: str, plain: Any, ours: Any) -> None:
    """Also where others of TensorFlow's modules have it by `from`."""
    for module in [each for key, each in sys.modules.items() if key.startswith("tensorflow")]:
        if getattr(module, "__dict__", {}).get(name) is plain:
            setattr(module, name, ours)
