"""Starts the measurement: as ranks of this machine, or as the rank that a launcher has made of this process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from overdrive.core.scratch import passing

_MOST_SECONDS = 400.0


class PoolUnavailable(Exception):
    """It could not be measured; the message is one sentence for people."""


def measure_here(ranks: int, quick: bool) -> dict[str, Any]:
    """Among so many processes of this machine.

    Raises:
        PoolUnavailable: some rank failed.
    """
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")  # a host's name need not lead back to it
    return _measure([{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)], quick) or {}


def free_port(address: str = "127.0.0.1") -> int:
    """Of this machine, for ranks to meet; `address`: "" for those of other machines, too."""
    with socket.socket() as asked:
        asked.bind((address, 0))
        return int(asked.getsockname()[1])


def measure_as(rank: Mapping[str, str], quick: bool) -> dict[str, Any] | None:
    """As the rank that these variables tell of; the answer is rank 0's, and None for others.

    Raises:
        PoolUnavailable: it failed.
    """
    return _measure([rank], quick)


def _measure(ranks: Sequence[Mapping[str, str]], quick: bool) -> dict[str, Any] | None:
    with passing("overdrive-pool-") as folder:
        answer = folder / "answer.json"
        words = [sys.executable, "-m", "overdrive.machine.pool", str(answer), *(["quick"] if quick else [])]
        errors = [folder / f"errors{number}" for number in range(len(ranks))]
        started = []
        for place, each in zip(errors, ranks, strict=True):
            with open(place, "wb") as file:
                environment = {"OMP_NUM_THREADS": "1", **os.environ, **each}
                null = subprocess.DEVNULL
                started.append(subprocess.Popen(words, stdin=null, stdout=null, stderr=file, env=environment))
        try:
            failed = _first_failed(started)
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if failed is not None:
            lines = errors[failed].read_text(errors="replace").strip().splitlines()
            raise PoolUnavailable(f"The pool could not be measured: {lines[-1][:200] if lines else 'without a word'}.")
        return json.loads(answer.read_text()) if answer.exists() else None


def _first_failed(started: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until all have ended, or one has failed, for which the others would wait: its number.

    Raises:
        PoolUnavailable: they do not end.
    """
    until = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < until:
        codes = [process.poll() for process in started]
        if any(codes):
            return next(number for number, code in enumerate(codes) if code)
        if None not in codes:
            return None
        time.sleep(0.05)
    raise PoolUnavailable(f"The ranks did not come to an end within {_MOST_SECONDS:.0f} s.")
