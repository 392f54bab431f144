"""Starts trials by forking a process that has imported PyTorch already: for those that nobody times.

A measured trial is started afresh, since processes that share their memory's layout differ less than others do. A proof
runs a program some twenty times, and a third to a half of each start is importing PyTorch.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import BinaryIO

from overdrive.trials.launchers.launcher import Launcher, ProcessGroup
from overdrive.trials.launchers.local import LocalGroup

_MOST = 2  # nurseries at once: each holds a quarter of a GB
_WORTH = 2  # starts with the same environment, before the next is worth a nursery


class WarmLauncher:
    """Args: `cold`: starts what cannot be forked: the first with an environment, and all where a nursery fails."""

    def __init__(self, cold: Launcher) -> None:
        self._cold = cold
        self._worth = _WORTH
        self._nurseries: dict[frozenset[tuple[str, str]], _Nursery] = {}
        self._starts: Counter[frozenset[tuple[str, str]]] = Counter()
        self._lock = threading.Lock()  # trials may be started from several threads

    def start(self, environment: Mapping[str, str], output: BinaryIO) -> ProcessGroup:
        nursery = self._nursery_for(environment)
        group = nursery.fork(output) if nursery is not None else None
        return group if group is not None else self._cold.start(environment, output)

    def close(self) -> None:
        for nursery in self._nurseries.values():
            nursery.close()
        self._nurseries.clear()

    def _nursery_for(self, environment: Mapping[str, str]) -> _Nursery | None:
        key = frozenset(environment.items())
        with self._lock:
            self._starts[key] += 1
            if key not in self._nurseries and self._starts[key] > self._worth and len(self._nurseries) < _MOST:
                self._nurseries[key] = _Nursery(environment)
            return self._nurseries.get(key)


class _Nursery:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            self.command(theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env=dict(environment),
        )
        theirs.close()
        self._lock = threading.Lock()

    def command(self, requests: int) -> list[str]:
        """Which starts it; it is asked by this socket."""
        return [sys.executable, "-m", "overdrive.worker.nursery", str(requests)]

    def fork(self, output: BinaryIO) -> LocalGroup | None:
        """None where it is gone."""
        their_in, ours_out = os.pipe()
        ours_in, their_out = os.pipe()
        status, their_status = os.pipe()
        theirs = [their_in, their_out, output.fileno(), their_status]
        try:
            with self._lock:
                socket.send_fds(self._ours, [b"+"], theirs)
        except OSError:
            pass  # the status tells
        finally:
            for each in (their_in, their_out, their_status):
                os.close(each)
        born = os.read(status, 4)
        if len(born) == 4:
            process = _Forked(struct.unpack("<i", born)[0], status)
            return LocalGroup(process, ours_in, os.fdopen(ours_out, "wb", buffering=0))
        for each in (ours_in, ours_out, status):
            os.close(each)
        return None

    def close(self) -> None:
        self._ours.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        self._process.kill()
        self._process.wait()


class _Forked:
    """What `subprocess.Popen` is to a child of ours, to one of another process."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._hear(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._hear(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def _hear(self, seconds: float | None) -> int | None:
        if self._code is None and select.select([self._status], [], [], seconds)[0]:
            told = os.read(self._status, 4)
            self._code = struct.unpack("<i", told)[0] if len(told) == 4 else -signal.SIGKILL  # its nursery is gone
            os.close(self._status)
        return self._code
