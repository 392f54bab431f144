"""Technique `waiting`."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Knob, Settings, Technique

_POLICIES = {
    # GNU's OpenMP (in PyTorch's Linux wheels) and Intel's read OMP_WAIT_POLICY; Intel's also the second.
    "active": {"OMP_WAIT_POLICY": "ACTIVE", "KMP_BLOCKTIME": "infinite"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"},
}


class Waiting(Technique):
    """Decides whether threads that have nothing to do spin or sleep until the next parallel operation.

    What it does: sets OpenMP's `OMP_WAIT_POLICY` (and `KMP_BLOCKTIME` for Intel's) before the process starts.

    When it helps: `active` for many short operations on cores that are free; `passive` where other threads or
    processes (data workers, other programs) need the cores in which waiting threads would spin.

    When it hurts: `active` takes cores from everybody else, `passive` makes every parallel operation begin
    with waking its threads.

    What it watches: nothing. It is said before the process starts, and no result depends on it. What would escape: a
    program that starts others, which inherit these variables.

    Contract: exact. The same threads do the same work.

    Source: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html;
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    name = "waiting"
    frameworks = ("torch", "keras")
    programs = ("training", "inference")
    contract = Contract.EXACT
    computes = False
    targets = ("forward", "backward", "optimizer")
    expected_saving = 0.04
    survives = True
    order = 16
    knobs = (Knob("policy", "passive", "what threads do until they are needed", choices=tuple(sorted(_POLICIES))),)

    def applies(self, facts: Facts) -> str | None:
        if facts.framework == "keras" and facts.backend != "torch":
            return f"Keras runs on {facts.backend} here, whose threads are not OpenMP's"
        if facts.device != "cpu":
            return "the work is done on the GPU"
        if facts.threads == 1:
            return "operations use one thread: none waits"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        busy = any(loader.workers for loader in facts.loaders)
        return [{"policy": policy} for policy in (("passive", "active") if busy else ("active", "passive"))]

    def environment(self, settings: Settings) -> dict[str, str]:
        return dict(_POLICIES[str(settings["policy"])])
