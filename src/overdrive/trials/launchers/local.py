"""Starts a trial as one process on this machine, reached over two pipes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO, Protocol

from overdrive.trials.launchers import leftovers


class LocalLauncher:
    """Args: `prefix`: words before the command, such as `nice`; what they name must become the command by exec."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._prefix = prefix

    def start(self, environment: Mapping[str, str], output: BinaryIO) -> LocalGroup:
        ours_in, their_out = os.pipe()
        their_in, ours_out = os.pipe()
        try:
            process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "overdrive.worker.main", str(their_in), str(their_out)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(their_in, their_out),
                start_new_session=True,
                env=dict(environment),
            )
        finally:
            os.close(their_in)
            os.close(their_out)
        return LocalGroup(process, ours_in, os.fdopen(ours_out, "wb", buffering=0))


class Process(Protocol):
    """What is needed of a `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class LocalGroup:
    size = 1

    def __init__(self, process: Process, reports: int, commands: BinaryIO) -> None:
        self._process = process
        self._reports = reports
        self._commands = commands
        self._buffer = b""

    @property
    def pids(self) -> Sequence[int]:
        return (self._process.pid,)

    @property
    def reports(self) -> Sequence[int]:
        return (self._reports,)

    def send(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # it is over; the next wait says why
            self._commands.write(line)

    def read(self, seconds: float) -> list[tuple[int, bytes]]:
        if select.select([self._reports], [], [], seconds)[0]:
            chunk = os.read(self._reports, 1 << 20)
            self._buffer += chunk
            if not chunk:
                time.sleep(0.01)  # closed by the worker; its exit status follows
        *lines, self._buffer = self._buffer.split(b"\n")
        return [(0, line) for line in lines]

    def pause(self) -> None:
        # The whole process group: data workers that fetch ahead while the other trial is measured would both
        # disturb that one and get their own batches for nothing.
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def stop(self, grace: float) -> None:
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            self.resume()
            self.wait(grace)
        self.resume()
        leftovers.end_group(self._process.pid)  # data workers that outlived it, too
        self._process.wait()
        with suppress(OSError):
            os.close(self._reports)
        with suppress(OSError):
            self._commands.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
