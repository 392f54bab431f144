"""Starts the ranks of a program on a Ray cluster, by Ray Train, and hands on what they print.

Ray gives each rank its place and its share of CPUs and GPUs. The program runs in a process of its own beside Ray's
worker, as under any other launcher: Ray's threads, its output and its own groups are none of the program's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

from overdrive.core.installing import pip_install_extra
from overdrive.machine.pool.start import free_port
from overdrive.ranks.agent import GroupEnd
from overdrive.ranks.membership import launched_by, variables_of_ranks

_WAITED = 60.0  # seconds for all places, after which it is said
_END = 0  # in the place of a stream
_OF_WORKER = (
    "CUDA_VISIBLE_DEVICES",
    "RAY_",
)  # variables that a rank has of Ray's worker; all others are this process's


class CannotUseRay(Exception):
    """The message is one sentence for people."""


class Meeting:
    """Where the ranks and the process that started them meet: an actor of Ray's."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._met = 0
        self._address: asyncio.Future[tuple[str, int]] = asyncio.get_event_loop().create_future()
        self._said: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._codes: dict[int, int] = {}

    async def address(self, of_first: tuple[str, int] | None) -> tuple[str, int]:
        """Where rank 0 keeps the store. It says so itself; the others wait for it."""
        self._met += 1
        if of_first is not None:
            self._address.set_result(of_first)
        return await self._address

    async def complete(self) -> bool:
        return self._met == self._ranks

    async def say(self, stream: int, data: bytes) -> None:
        await self._said.put((stream, data))

    async def heard(self) -> tuple[int, bytes]:
        return await self._said.get()

    async def end(self, rank: int, code: int) -> None:
        self._codes[rank] = code

    async def codes(self) -> dict[int, int]:
        """Of the ranks, in the order in which they ended."""
        return self._codes


def start_ranks(ranks: int, words: Sequence[str], flags: Sequence[str], say: Callable[[str], None]) -> GroupEnd:
    """Run `python FLAGS -m WORDS` as so many ranks on the cluster that RAY_ADDRESS names, or one of this machine alone.

    Args:
        say: tells a sentence while they run.

    Raises:
        CannotUseRay: it is not installed, or does not take the ranks.
    """
    try:
        import ray
        from ray.train import LoggingConfig, RunConfig, ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    except ImportError as error:
        raise CannotUseRay(f"Ray Train is not installed ({error}): `{pip_install_extra('ray')}` brings it.") from None
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        gpus = ray.cluster_resources().get("GPU", 0.0) >= ranks
        each = share_of([node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]], ranks)
        meeting = ray.remote(Meeting).options(num_cpus=0).remote(ranks)
        told = {"meeting": meeting, "command": [sys.executable, *flags, "-m", *words], "folder": os.getcwd()}
        told["environment"] = {**os.environ, **variables_of_ranks(max(1, int(each)))}
        reader = threading.Thread(target=_hand_on, args=(ray, meeting, say), daemon=True)
        reader.start()
        with tempfile.TemporaryDirectory(prefix="overdrive-ray-") as folder:
            DataParallelTrainer(
                _as_rank,
                train_loop_config=told,
                scaling_config=ScalingConfig(num_workers=ranks, use_gpu=gpus, resources_per_worker={"CPU": each}),
                run_config=RunConfig(storage_path=folder, logging_config=LoggingConfig(log_level="CRITICAL")),
            ).fit()
        ray.get(meeting.say.remote(_END, b""))
        reader.join()
        codes = ray.get(meeting.codes.remote())
    except Exception as error:  # of Ray, which has many kinds
        raise CannotUseRay(f"Ray ended the ranks: {(str(error) or type(error).__name__).splitlines()[0]}.") from None
    finally:
        ray.shutdown()
    return GroupEnd(codes.get(0) or next((code for code in codes.values() if code), 0))


def share_of(nodes: Sequence[float], ranks: int) -> float:
    """How many CPUs a rank can have, where none is of two machines: a whole number, or one of so many parts of one.

    Args:
        nodes: CPUs of each machine.
    """
    whole = [share for share in range(1, int(max(nodes, default=0)) + 1) if _fit(nodes, share) >= ranks]
    if whole:
        return float(whole[-1])
    return next((1 / parts for parts in range(2, ranks + 1) if _fit(nodes, 1 / parts) >= ranks), 1 / ranks)


def _fit(nodes: Sequence[float], share: float) -> int:
    return sum(int(cpus / share) for cpus in nodes)


def _hand_on(ray: Any, meeting: Any, say: Callable[[str], None]) -> None:
    """What ranks print, to this process's own output; and that places are waited for, where they are."""
    coming = meeting.heard.remote()
    patience: float | None = _WAITED
    while True:
        if not ray.wait([coming], timeout=patience)[0]:
            patience = None
            if not ray.get(meeting.complete.remote()):
                say(f"Ray has not begun all ranks in {_WAITED:.0f} s: others may use its CPUs or GPUs (`ray status`)")
            continue
        stream, data = ray.get(coming)
        if stream == _END:
            return
        os.write(stream, data)
        coming = meeting.heard.remote()


def _as_rank(told: dict[str, Any]) -> None:
    """Runs in each of Ray's workers."""
    import ray
    from ray.train import get_context

    context, meeting = get_context(), told["meeting"]
    rank = context.get_world_rank()
    own = (ray.util.get_node_ip_address(), free_port("")) if not rank else None
    address, port = ray.get(meeting.address.remote(own))
    variables = launched_by(rank, context.get_world_size(), context.get_local_rank(), address, port)
    of_worker = {name: value for name, value in os.environ.items() if name.startswith(_OF_WORKER)}
    process = subprocess.Popen(
        told["command"],
        cwd=told["folder"],
        env={**told["environment"], **of_worker, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    pumps = [
        threading.Thread(target=_pump, args=(ray, meeting, pipe.fileno(), stream))
        for stream, pipe in ((1, process.stdout), (2, process.stderr))
        if pipe
    ]
    for each in pumps:
        each.start()
    code = process.wait()
    for each in pumps:
        each.join()
    ray.get(meeting.end.remote(rank, code if code >= 0 else 128 - code))


def _pump(ray: Any, meeting: Any, pipe: int, stream: int) -> None:
    while data := os.read(pipe, 1 << 16):
        ray.get(meeting.say.remote(stream, data))
