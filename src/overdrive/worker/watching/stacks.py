"""The stacks of all threads of this process and of its workers, in a file.

They are written by `faulthandler`, on a signal: its handler is C, and works while a library holds Python's lock. Forked
workers inherit it. In time of need a timer of the kernel sends that signal: `faulthandler.dump_traceback_later` does as
much by a thread, for which a process that the program forks waits for ever when it ends (seen in Python 3.11).
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import time
from pathlib import Path

_CLOCK_MONOTONIC = 1
_WAITS = 0.3  # seconds for a worker to write


class _SignalEvent(ctypes.Structure):
    """`struct sigevent` of Linux, 64 bytes; with `notify` 0 the signal goes to the process."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * 48),
    )


class _Times(ctypes.Structure):
    """`struct itimerspec`: every how often, and in how long, as seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every", "every_ns", "value", "value_ns"))


class Stacks:
    """Made before the program starts. The file stays where something was written."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            OSError: there is no place for the file.
        """
        self.path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file = self._identity()
        self._signal = signal.SIGRTMAX - 3
        self._kept = os.fstat(self._handle).st_size  # what an earlier run wrote
        faulthandler.register(self._signal, file=self._handle, all_threads=True)
        self._timer = _Timer(self._signal)

    def _identity(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            found = os.fstat(self._handle)
            return found.st_dev, found.st_ino
        return None

    @property
    def ours(self) -> bool:
        """Whether the descriptor is still the file: a program may close all of them, and open others."""
        return self._identity() == self._file

    def write(self, head: str) -> bool:
        """Whether there was a place to write to."""
        try:
            if self.ours:
                self._write(head)
            return self.ours
        except OSError:
            return False

    def _write(self, head: str) -> None:
        os.write(self._handle, f"{head}\n\nProcess {os.getpid()}\n".encode())
        faulthandler.dump_traceback(self._handle, all_threads=True)
        for worker in multiprocessing.active_children():
            if worker.pid and self._listens(worker.pid):
                os.write(self._handle, f"\nWorker {worker.name}, process {worker.pid}\n".encode())
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, self._signal)
                    time.sleep(_WAITS)
        os.write(self._handle, b"\n")
        self._kept = os.fstat(self._handle).st_size

    def _listens(self, worker: int) -> bool:
        """Whether it has inherited the handler and the file: the signal ends one that has not."""
        with contextlib.suppress(OSError, ValueError):
            found = os.stat(f"/proc/{worker}/fd/{self._handle}")
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{worker}/status").read_text().splitlines())
            catches = int(status["SigCgt"], 16) >> (self._signal - 1) & 1
            return bool(catches) and (found.st_dev, found.st_ino) == self._file
        return False

    def write_in(self, seconds: float) -> None:
        """From the kernel, where nobody puts it off before that. 0: never."""
        self._timer.set(seconds if self.ours else 0)

    def forget(self) -> None:
        """What was written since without a word from us was a false alarm."""
        if self.ours and os.fstat(self._handle).st_size > self._kept:
            os.ftruncate(self._handle, self._kept)

    def close(self) -> None:
        """At the run's end. The handler stays, and the descriptor with it: a signal may be on its way."""
        self._timer.set(0)
        if self.ours and not os.fstat(self._handle).st_size:
            with contextlib.suppress(OSError):
                self.path.unlink()


class _Timer:
    """Of the kernel: forked processes do not inherit it."""

    def __init__(self, number: int) -> None:
        self._id: ctypes.c_void_p | None = None
        with contextlib.suppress(OSError, AttributeError):  # another libc
            library = ctypes.CDLL("librt.so.1")
            self._set = library.timer_settime
            event, made = _SignalEvent(None, number, 0), ctypes.c_void_p()
            if library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(made)) == 0:
                self._id = made

    def set(self, seconds: float) -> None:
        if self._id is not None:
            whole = int(seconds)
            times = _Times(0, 0, whole, int((seconds - whole) * 1e9))
            self._set(self._id, 0, ctypes.byref(times), None)
