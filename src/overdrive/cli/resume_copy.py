"""The copies of a working folder in which `overdrive verify --resume` runs a program: without what is large and no
program reads by these paths.

A virtual environment in it is linked: the interpreter comes from the first place all the same. Of a git repository all
is copied but its objects, which git finds in the first place (`alternates`): so a program may ask for its commit, and
even make one, and the user's repository is not written to.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from pathlib import Path

_LEFT_OUT = ("*.survive", "*.pyc")
_OBJECTS = "objects"
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")


def copy_folder(root: Path, into: Path, used: Collection[Path]) -> None:
    """Copies `root` to `into`, which is not there yet.

    Args:
        used: paths that are copied even within a virtual environment: the working folder and the script.
    """
    shutil.copytree(root, into, symlinks=True, ignore=lambda folder, names: _spared(Path(folder), names, used))
    for folder, _, left_out in _walk(root, used):
        there = into / folder.relative_to(root)
        for name in left_out:
            if _is_environment(folder / name, used):
                (there / name).symlink_to(folder / name, target_is_directory=True)
            elif _holds_objects(folder, name):
                (there / name / "info").mkdir(parents=True)
                (there / name / "info" / "alternates").write_bytes(os.fsencode(folder / name) + b"\n")


def size_of_copy(root: Path, used: Collection[Path]) -> int:
    """How many bytes `copy_folder` would copy."""
    size = 0
    for folder, files, left_out in _walk(root, used):
        copied = (folder / name for name in files if name not in left_out)
        size += sum(path.stat().st_size for path in copied if path.is_file() and not path.is_symlink())
    return size


def _walk(root: Path, used: Collection[Path]) -> Iterator[tuple[Path, list[str], set[str]]]:
    """Each folder that is copied, with the files in it, and all that is not copied as it is."""
    for at, folders, files in os.walk(root):
        folder = Path(at)
        left_out = _spared(folder, [*folders, *files], used)
        folders[:] = [name for name in folders if name not in left_out]
        yield folder, files, left_out


def _spared(folder: Path, names: list[str], used: Collection[Path]) -> set[str]:
    return {
        name
        for name in names
        if any(fnmatch(name, form) for form in _LEFT_OUT)
        or _holds_objects(folder, name)
        or _is_environment(folder / name, used)
    }


def _is_environment(folder: Path, used: Collection[Path]) -> bool:
    return (
        not folder.is_symlink()
        and any((folder / each).exists() for each in _ENVIRONMENT)
        and not any(path.is_relative_to(folder) for path in used)
    )


def _holds_objects(folder: Path, name: str) -> bool:
    """Whether that is the folder of a git repository's objects: also a submodule's, or a bare repository's."""
    path = folder / name
    return (
        name == _OBJECTS
        and path.is_dir()
        and not path.is_symlink()
        and (folder / "HEAD").is_file()
        and (folder / "refs").is_dir()
    )
