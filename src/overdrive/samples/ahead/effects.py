"""Keeps forked copies of a program from doing what the program itself is going to do: write, send, start, delete."""

from __future__ import annotations

import os
import sys

_DOES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod")
_TALKS = ("socket.connect", "socket.bind", "socket.sendto", "os.system", "os.exec", "os.posix_spawn", "os.fork")
_EVENTS = frozenset((*_DOES, *_TALKS, "subprocess.Popen", "shutil.rmtree"))
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Effects:
    """For a forked process that ends soon: an audit hook cannot be taken away. Files that are open are not seen."""

    def __init__(self) -> None:
        self.tried = ""  # the first that was stopped

    def stop(self) -> None:
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            # Compiled code of modules that a fetch imports is Python's own affair.
            harmless = (
                not isinstance(flags, int) or not flags & _WRITES or path == os.devnull or "__pycache__" in str(path)
            )
            if harmless:
                return
        elif event not in _EVENTS:
            return
        self.tried = self.tried or event
        raise PermissionError(f"{event} is left to the program itself")
