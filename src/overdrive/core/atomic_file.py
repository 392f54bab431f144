"""Writes a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path


def is_stream(path: Path) -> bool:
    """Whether it is a device or a pipe (/dev/null, a shell's `>(...)`): what is there is written into, not replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def unfinished(path: Path) -> list[Path]:
    """What processes have left that were killed while they wrote this file."""
    return [each for each in path.parent.iterdir() if each.name.startswith(_before(path)) and each.suffix == ".tmp"]


def _before(path: Path) -> str:
    return f".{path.name[:100]}."


def write_atomically(path: Path, content: str | Sequence[bytes]) -> None:
    """Write a file so that at any moment, even in a crash, the old or the new one is there, whole.

    What is no file stays what it is, and is written into.

    Args:
        content: text, or bytes in parts that follow each other.

    Raises:
        OSError: it cannot be written; the old file is untouched, and no other file is left.
    """
    parts = [content.encode("utf-8", "backslashreplace")] if isinstance(content, str) else content
    if is_stream(path):
        with open(path, "wb") as stream:
            stream.writelines(parts)
        return
    target = Path(os.path.realpath(path))  # a link stays a link
    temporary = target.with_name(f"{_before(target)}{os.urandom(4).hex()}.tmp")
    try:
        try:
            mode = target.stat().st_mode & 0o777
        except FileNotFoundError:
            mode = None
        # Opened this way rather than by `tempfile`, whose files nobody else may read, whatever the umask.
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            if mode is not None:
                os.chmod(temporary, mode)
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        _remove(temporary)
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    except BaseException:
        _remove(temporary)
        raise
    sync_folder(target.parent)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def sync_folder(folder: Path) -> None:
    """Make the new name outlive a power cut, on file systems that can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
