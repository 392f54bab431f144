"""A small process that ends all trials should the tuner be killed: no orphan keeps a core or a GPU.

Trials between blocks are stopped (SIGSTOP) and could not notice by themselves that their tuner is gone.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress

# Reads "+pid" and "-pid" lines; when the pipe closes, kills the groups that are left.
_SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Reaper:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._lock = threading.Lock()  # trials are started by several threads, and Ctrl-C closes it under them

    def watch(self, group: int) -> bool:
        """False where it is closed: nobody will end this group, unless who started it does."""
        return self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Ends what is still watched."""
        assert self._process.stdin is not None
        with self._lock, suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> bool:
        """Whether it is open. One that was killed is: the tuner lives, and ends its trials by itself."""
        assert self._process.stdin is not None
        with self._lock:
            if self._process.stdin.closed:
                return False
            with suppress(OSError):
                self._process.stdin.write(line)
                self._process.stdin.flush()
        return True
