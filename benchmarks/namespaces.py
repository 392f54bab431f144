"""Two ranks as on two machines: each in a network namespace, with one core, and a link of so many Gbit/s between them.

A pair of virtual interfaces connects them, of which the kernel's token bucket (`tc ... tbf`) lets so much pass.
Latencies are what the kernel takes: a delay would need `netem`, which not every kernel has. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_ADDRESS, _PORT = "10.77.0.", 29611
HOSTS = ("overdrive-a", "overdrive-b")


class Failed(Exception):
    """A command ended as it should not, or did not end; the message says which, and the end of what it said."""


@contextlib.contextmanager
def link(gigabits: float) -> Iterator[None]:
    """Two namespaces with so fast a link between them, for as long as this lasts."""
    _unlink()
    try:
        for name in HOSTS:
            _sh(f"ip netns add {name}")
        _sh(f"ip link add od0 netns {HOSTS[0]} type veth peer name od1 netns {HOSTS[1]}")
        for number, name in enumerate(HOSTS):
            _sh(f"ip -n {name} addr add {_ADDRESS}{number + 1}/24 dev od{number}")
            for device in ("lo", f"od{number}"):
                _sh(f"ip -n {name} link set {device} up")
            burst = max(64, int(gigabits * 256))  # kB: at HZ=250 a tick's worth at least
            _sh(f"tc -n {name} qdisc add dev od{number} root tbf rate {gigabits}gbit burst {burst}kb latency 50ms")
        yield
    finally:
        _unlink()


def delay_says() -> str:
    """What the kernel says to a delay, "" where it takes one. The link has it from then on."""
    told = subprocess.run(
        shlex.split(f"tc -n {HOSTS[0]} qdisc replace dev od0 root netem delay 1ms"), capture_output=True, text=True
    )
    return told.stderr.strip()


def on_both(words: list[str], folder: Path, ranks: bool = True, seconds: float = 180.0) -> list[str]:
    """The same command at the same time in both namespaces, each on its core; what each printed.

    Args:
        ranks: as ranks 0 and 1 of two, else each for itself.

    Raises:
        Failed: one of them was not at its end in so many seconds, or ended with another code than 0 or 1.
    """
    started, errors = [], []
    for rank, name in enumerate(HOSTS):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"od{rank}"}
        if ranks:
            told = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": f"{_ADDRESS}1", "MASTER_PORT": _PORT}
            environment.update({key: str(value) for key, value in told.items()})
        own = folder / str(rank)
        own.mkdir(exist_ok=True)
        errors.append(own / "errors")
        # `ip netns` gives it mounts of its own: on two machines ranks would have no memory in common either.
        apart = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
        start = ["ip", "netns", "exec", name, *apart, "taskset", "-c", str(rank), sys.executable, *words]
        with errors[-1].open("w") as kept:
            started.append(
                subprocess.Popen(start, cwd=own, env=environment, stdout=subprocess.PIPE, stderr=kept, text=True)
            )
    try:
        printed = [each.communicate(timeout=seconds)[0] for each in started]
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(words)} took longer than {seconds:.0f} s: {errors[0].read_text()[-800:]}") from None
    finally:
        for each in started:
            each.kill()
            each.wait()
    codes = [each.returncode for each in started]
    if any(code not in (0, 1) for code in codes):
        raise Failed(f"{' '.join(words)} ended with {codes}: " + " | ".join(each.read_text()[-800:] for each in errors))
    return printed


def pool(folder: Path) -> Path:
    """What `doctor --pool` measures between the two, in a file. It ends with 1 where it has something to say."""
    on_both(["-m", "overdrive", "doctor", "--pool", "--quick", "--json", "pool.json"], folder)
    return folder / "0" / "pool.json"


def _sh(line: str) -> None:
    subprocess.run(shlex.split(line), check=True, capture_output=True, text=True)


def _unlink() -> None:
    for name in HOSTS:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
