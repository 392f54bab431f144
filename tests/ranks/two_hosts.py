"""Two ranks as on two machines: each in a network namespace of its own, with a link that can be made to stall."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_HOSTS = tuple(f"overdrive-test-{name}-{os.getpid()}" for name in "ab")
_ADDRESS, _PORT = "10.78.0.", 29733


@contextlib.contextmanager
def two_hosts() -> Iterator[None]:
    """Skips the test where there may be no namespaces."""
    try:
        for name in _HOSTS:
            _sh(f"ip netns add {name}")
        _sh(f"ip link add od0 netns {_HOSTS[0]} type veth peer name od1 netns {_HOSTS[1]}")
        for number, name in enumerate(_HOSTS):
            _sh(f"ip -n {name} addr add {_ADDRESS}{number + 1}/24 dev od{number}")
            for device in ("lo", f"od{number}"):
                _sh(f"ip -n {name} link set {device} up")
    except (OSError, subprocess.CalledProcessError) as error:
        _remove()
        pytest.skip(f"there may be no network namespaces here: {error}")
    try:
        yield
    finally:
        _remove()


def start(rank: int, folder: Path) -> subprocess.Popen[str]:
    """`overdrive run train.py` as this rank of two, on its host. What it says goes to `errorsRANK`."""
    told = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": f"{_ADDRESS}1", "MASTER_PORT": _PORT}
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": f"od{rank}", **{name: str(each) for name, each in told.items()}}
    # `ip netns` gives it mounts of its own: on two machines ranks have no memory in common either.
    apart = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    command = ["ip", "netns", "exec", _HOSTS[rank], *apart, sys.executable, "-m", "overdrive", "run", "train.py"]
    with (folder / f"errors{rank}").open("w") as errors:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)


def stall() -> None:
    """From here on nothing arrives, and nobody is told: a token bucket that no packet fits into."""
    for number, name in enumerate(_HOSTS):
        _sh(f"tc -n {name} qdisc add dev od{number} root tbf rate 8bit burst 1b limit 1b")


def _sh(line: str) -> None:
    subprocess.run(shlex.split(line), check=True, capture_output=True, text=True)


def _remove() -> None:
    for name in _HOSTS:
        with contextlib.suppress(OSError):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
