"""Steps of two ranks over a simulated link, foretold from the curve that `doctor --pool` measured on it.

python benchmarks/links.py [--only MODEL,...] [--rates 1,10]     writes benchmarks/results/links.json; as root

Each rank is in a network namespace of its own, with one core; a pair of virtual interfaces connects them, of which the
kernel's token bucket (`tc ... tbf`) lets so many Gbit/s pass. Latencies are what the kernel takes: a delay would need
`netem`, which not every kernel has (it is tried, and what it says is kept). For each rate the pool is measured between
the namespaces, a step is foretold from its file (as `doctor --for --ranks 2 --link pool.json` does, on one core; on the
other one at the same time, since two machines would not share what the cores of this one do), and before and after that
two ranks make such steps between the namespaces.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from overdrive.cli.layout import technique_of
from overdrive.core.program import Program
from overdrive.insight.requirements.ranks import foretold as planned
from overdrive.insight.requirements.ranks import ranks_of
from overdrive.machine.inventory import machine, versions
from overdrive.machine.pool.curve import Measured

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "links.json"
PORTED = str(ROOT / "benchmarks" / "models" / "on_ranks.py")
ADDRESS, PORT = "10.77.0.", 29611
HOSTS = ("overdrive-a", "overdrive-b")
MODELS = {  # arguments, and steps
    "mlp": (("mlp", "--batch-size", "256"), 40),
    "narrow": (("mlp", "--width", "256", "--batch-size", "128"), 150),
    "cnn": (("cnn", "--batch-size", "128"), 60),
    "gpt": (("gpt", "--layers", "4", "--width", "128", "--context", "64", "--batch-size", "32"), 30),
}


def sh(line: str) -> None:
    subprocess.run(shlex.split(line), check=True, capture_output=True, text=True)


@contextlib.contextmanager
def link(gigabits: float) -> Iterator[None]:
    """Two namespaces with so fast a link between them, for as long as this lasts."""
    unlink()
    try:
        for name in HOSTS:
            sh(f"ip netns add {name}")
        sh(f"ip link add od0 netns {HOSTS[0]} type veth peer name od1 netns {HOSTS[1]}")
        for number, name in enumerate(HOSTS):
            sh(f"ip -n {name} addr add {ADDRESS}{number + 1}/24 dev od{number}")
            for device in ("lo", f"od{number}"):
                sh(f"ip -n {name} link set {device} up")
            burst = max(64, int(gigabits * 256))  # kB: at HZ=250 a tick's worth at least
            sh(f"tc -n {name} qdisc add dev od{number} root tbf rate {gigabits}gbit burst {burst}kb latency 50ms")
        yield
    finally:
        unlink()


def unlink() -> None:
    for name in HOSTS:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def delay_says() -> str:
    """What the kernel says to a delay, "" where it takes one."""
    told = subprocess.run(
        shlex.split(f"tc -n {HOSTS[0]} qdisc replace dev od0 root netem delay 1ms"), capture_output=True, text=True
    )
    return told.stderr.strip()


def on_both(words: list[str], folder: str) -> str:
    """The same command as rank 0 and 1, each on its core in its namespace; what rank 0 printed."""
    started = []
    for rank, name in enumerate(HOSTS):
        told = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": f"{ADDRESS}1", "MASTER_PORT": PORT}
        environment = {**os.environ, **{key: str(value) for key, value in told.items()}}
        environment.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME=f"od{rank}")
        own = Path(folder) / str(rank)
        own.mkdir(exist_ok=True)
        # `ip netns` gives it mounts of its own: on two machines ranks would have no memory in common either.
        apart = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
        start = ["ip", "netns", "exec", name, *apart, "taskset", "-c", str(rank), sys.executable, *words]
        started.append(subprocess.Popen(start, cwd=own, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        told = [each.communicate(timeout=400)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    if any(each.returncode not in (0, 1) for each in started):
        raise SystemExit(f"{' '.join(words)} ended with {[each.returncode for each in started]}")
    return told[0]


def pool(folder: str) -> Path:
    on_both(["-m", "overdrive", "doctor", "--pool", "--quick", "--json", "pool.json"], folder)
    return Path(folder) / "0" / "pool.json"


def foretold(words: tuple[str, ...], steps: int, curve: Path) -> float:
    """Seconds a step, by the planner, on each core at the same time: the mean."""
    name, *others = words
    program = (name, "plain", str(20 * steps), *others)
    with concurrent.futures.ProcessPoolExecutor(len(HOSTS)) as both:
        return statistics.fmean(both.map(_foretold, range(len(HOSTS)), [program] * len(HOSTS), [curve] * len(HOSTS)))


def _foretold(core: int, arguments: tuple[str, ...], curve: Path) -> float:
    os.sched_setaffinity(0, {core})  # and with it all that is started
    there = ranks_of(2, Measured.kept(curve.read_text(), curve.name), quick=True)
    return planned(Program(PORTED, arguments=arguments), technique_of("data=2", 2), there).seconds


def measured(words: tuple[str, ...], steps: int, folder: str) -> float:
    name, *others = words
    run = ["-m", "overdrive", "run", "--no-plan", PORTED, name, "plain", str(steps), *others]
    line = next(each for each in on_both(run, folder).splitlines() if each.startswith("result "))
    return float(json.loads(line.removeprefix("result "))["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--rates", default="1,10", help="Gbit/s")
    options = parser.parse_args()
    rows = []
    refused = ""
    for gigabits in map(float, options.rates.split(",")):
        with link(gigabits), tempfile.TemporaryDirectory(prefix="links-") as folder:
            curve = pool(folder)
            fit = json.loads(curve.read_text())["fits"]["all_reduce"]
            rate = fit["bytes_per_second"] and fit["bytes_per_second"] * 8e-9
            print(f"{gigabits:g} Gbit/s: all-reduce {rate or 0:.2f} Gbit/s, {fit['latency_seconds'] * 1e6:.0f} us")
            for name in options.only.split(","):
                words, steps = MODELS[name]
                first = measured(words, steps, folder)
                told = foretold(words, steps, curve)
                took = statistics.fmean([first, measured(words, steps, folder)])
                rows.append({"gbit": gigabits, "model": name, "foretold": told, "measured": took, "fit": fit})
                print(f"{name}: {told * 1e3:.1f} ms foretold, {took * 1e3:.1f} measured: {told / took - 1:+.0%}")
                sys.stdout.flush()
            refused = delay_says()
    errors = sorted(abs(each["foretold"] / each["measured"] - 1) for each in rows)
    print(
        f"off by {statistics.median(errors):.0%} in the median, {errors[-1]:.0%} at worst; netem: {refused or 'there'}"
    )
    here = {"machine": machine(), "versions": versions()}
    del here["machine"]["available_bytes"]
    found = {"date": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg()[0], "netem": refused, "rows": rows}
    RESULTS.write_text(json.dumps({**found, **here}, indent=1) + "\n")


if __name__ == "__main__":
    main()
