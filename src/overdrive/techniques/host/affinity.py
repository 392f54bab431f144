"""Technique `affinity`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.machine.numa import allowed_cores, nodes, one_a_core
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_MOST_NODES_TRIED = 2


class Affinity(Technique):
    """Keeps the training on the cores of one memory node, and its data workers on the others.

    What it does: when the framework has been imported and before it computes, pins the process to the cores of one
    NUMA node, on request to one hardware thread of each; PyTorch is to use no more threads than these. Of several
    processes that torchrun has started, each takes its own node. Data workers are started on the cores that are
    left, where there are any.

    When it helps: machines with several sockets or memory nodes, where threads that move or share memory across
    nodes wait for it; hyper-threads that compete for one core's arithmetic units; a GPU whose process would
    otherwise run on the far node.

    When it hurts: work that all nodes together do sooner than one. A process that is not alone on its node
    shares those cores, and cannot move away.

    What it watches: nothing after it has pinned the process. A program that sets its own affinity or number of threads
    later has the last word. What would escape: code that asks which cores its process may use, and is answered with
    these.

    Contract: exact where only the place of threads changes. With fewer cores PyTorch uses fewer threads, unless
    OMP_NUM_THREADS or the program sets their number; sums are then split differently, and the level falls to rounding.

    Source: https://docs.pytorch.org/tutorials/recipes/xeon_run_cpu.html;
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    name = "affinity"
    frameworks = ("torch", "keras")
    programs = ("training", "inference")
    contract = Contract.EXACT
    fallback_contract = Contract.ROUNDING
    targets = ("data", "forward", "backward", "optimizer", "other")
    expected_saving = 0.05
    switchable = True
    survives = True
    order = 2  # before any technique starts a thread
    knobs = (
        Knob("node", 0, "which of the machine's memory nodes", low=0, high=1023),
        Knob("hyper_threads", True, "use all hardware threads of a core"),
    )

    def applies(self, facts: Facts) -> str | None:
        if not allowed_cores():
            return "this system does not pin processes to cores"
        if not _places():
            return "the machine has one memory node and one hardware thread a core: there is nothing to choose"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return _places()

    def install(self, seams: Seams, settings: Settings) -> Handle:
        before = allowed_cores()
        mine = _chosen(settings)
        others = before - mine
        if mine == before:
            raise CannotInstall("the process may use these cores only, as it is")
        threads: list[int] = []  # of PyTorch, as they were

        def arrived() -> None:
            if handle.active:
                pin()

        def pin() -> None:
            if seams.frameworks[-1:] == ["torch"] and not threads and "OMP_NUM_THREADS" not in os.environ:
                import torch

                threads.append(torch.get_num_threads())
                torch.set_num_threads(min(threads[0], len(mine)))
            _pin_all_threads(mine)

        def unpin() -> None:
            _pin_all_threads(before, only_on=mine)  # else the program has chosen: that stays
            if threads:
                import torch

                number = threads.pop()
                if torch.get_num_threads() == min(number, len(mine)):
                    torch.set_num_threads(number)

        def open_elsewhere(loader: Any, call: Callable[[], Any]) -> Any:
            if not loader.num_workers or not others or os.sched_getaffinity(0) != mine:  # the program's own choice
                return call()
            os.sched_setaffinity(0, others)  # of this thread: the workers that it starts inherit it
            try:
                return call()
            finally:
                os.sched_setaffinity(0, mine)

        seams.framework_arrived.subscribe(arrived)
        seams.on_undo(unpin)
        seams.loader_opens.subscribe_innermost(open_elsewhere)
        handle = seams.handle(pin, unpin)
        return handle


def _places() -> list[dict[str, bool | int]]:
    """The choices that are no other than another: by node, and with one hardware thread a core."""
    all_nodes = nodes()
    several = len(all_nodes) > 1
    tries: list[dict[str, bool | int]] = []
    for number, cores in enumerate(all_nodes[:_MOST_NODES_TRIED]):
        if several:
            tries.append({"node": number, "hyper_threads": True})
        if number == 0 and len(one_a_core(cores)) < len(cores):
            tries.append({"node": number, "hyper_threads": False})
    return tries


def _chosen(settings: Settings) -> frozenset[int]:
    """
    Raises:
        CannotInstall: the machine has no such node.
    """
    all_nodes = nodes()
    number = int(settings["node"])
    if not all_nodes:
        raise CannotInstall("this system does not pin processes to cores")
    if number >= len(all_nodes):
        raise CannotInstall(f"there is no memory node {number} here: the machine has {len(all_nodes)}")
    with contextlib.suppress(ValueError):  # one process a node, from the planned one on
        number = (number + int(os.environ.get("LOCAL_RANK", 0))) % len(all_nodes)
    cores = all_nodes[number]
    return cores if settings["hyper_threads"] else one_a_core(cores)


def _pin_all_threads(cores: Iterable[int], only_on: frozenset[int] | None = None) -> None:
    """Those that there are, or that are on these cores now; threads started later inherit it."""
    threads = [0]
    with contextlib.suppress(OSError):
        threads = [int(name) for name in os.listdir("/proc/self/task")]
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            if only_on is None or os.sched_getaffinity(thread) == only_on:
                os.sched_setaffinity(thread, cores)
