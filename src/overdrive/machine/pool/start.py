"""Starts the measurement: as ranks of this machine, or as the rank that a launcher has made of this process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MOST_SECONDS = 400.0


class PoolUnavailable(Exception):
    """It could not be measured; the message is one sentence for people."""


def measure_here(ranks: int, quick: bool) -> dict[str, Any]:
    """Among so many processes of this machine.

    Raises:
        PoolUnavailable: some rank failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")  # a host's name need not lead back to it
    return _measure([{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)], quick) or {}


def measure_as(rank: Mapping[str, str], quick: bool) -> dict[str, Any] | None:
    """As the rank that these variables tell of; the answer is rank 0's, and None for others.

    Raises:
        PoolUnavailable: it failed.
    """
    return _measure([rank], quick)


def _measure(ranks: list[dict[str, str]] | list[Mapping[str, str]], quick: bool) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory(prefix="overdrive-pool-") as folder:
        answer = Path(folder) / "answer.json"
        words = [sys.executable, "-m", "overdrive.machine.pool", str(answer), *(["quick"] if quick else [])]
        started = [
            subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={"OMP_NUM_THREADS": "1", **os.environ, **each},
            )
            for each in ranks
        ]
        try:
            errors = [process.communicate(timeout=_MOST_SECONDS)[1].decode(errors="replace") for process in started]
        except subprocess.TimeoutExpired:
            raise PoolUnavailable(f"The ranks did not come to an end within {_MOST_SECONDS:.0f} s.") from None
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        for process, error in zip(started, errors, strict=True):
            if process.returncode:
                line = next((line for line in reversed(error.strip().splitlines()) if line.strip()), "without a word")
                raise PoolUnavailable(f"The pool could not be measured: {line.strip()[:200]}.")
        return json.loads(answer.read_text()) if answer.exists() else None
