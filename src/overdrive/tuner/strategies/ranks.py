"""The strategy of `tune --ranks`: one process against 2, 4, ... ranks at the same batches; the fastest is taken."""

from __future__ import annotations

import os
from collections.abc import Sequence

from overdrive.core.contract import Contract
from overdrive.evidence.speed import Verdict
from overdrive.machine.gpu import gpus
from overdrive.techniques.catalogue import catalogue
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Rejected
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.strategies import Candidate

_NAME = "data_parallel"


class Ranks:
    """What wins is proved like any other candidate: steps from the states of one process, on ranks, against fp64.

    Attributes: `taken`, whether ranks are adopted; then no other technique is to be looked for, which is not known to
    be safe on ranks.
    """

    def __init__(self, found: Findings, schedule: Schedule, progress: Progress, wanted: int) -> None:
        """`wanted`: try so many ranks alone; 0: 2, 4, ... as far as there are devices, or cores."""
        self.taken = False
        self._found = found
        self._schedule = schedule
        self._progress = progress
        self._won: list[Adopted] = []
        self._against = self._reason_against()
        self._sizes = [] if self._against else [wanted] if wanted else sizes_up_to(self._places())
        if not self._sizes and not self._against:
            self._against = f"this machine has one {self._kind()} for it"

    def ask(self) -> Candidate | None:
        if self._sizes:
            candidate = Candidate(((catalogue()[_NAME], {"ranks": self._sizes.pop(0)}),))
            if self._schedule.time_for_another(level=candidate.contract):
                return candidate
            self._against = "no time was left to try and prove more ranks"
        if self._won:
            self._take(max(self._won, key=lambda each: each.speedup.estimate if each.speedup else 0.0))
        else:
            reason = self._against or "no number of ranks was seen to be faster"
            note = f"The plan is for one process: {reason}."
            self._found.note(note)
            self._progress.outcome(note)
        return None

    def tell(self, candidate: Candidate, outcome: Sequence[Adopted] | Rejected) -> None:
        if not isinstance(outcome, Rejected):
            self._won += outcome
            self._progress.outcome(outcome[0].duel.describe())
            return
        self._found.reject(outcome)
        self._progress.outcome(f"{candidate.label}: {outcome.reason}")
        if outcome.duel and outcome.duel.verdict is Verdict.SLOWER:
            self._sizes = []  # more ranks than such as were slower are not tried

    def _take(self, best: Adopted) -> None:
        found, self.taken = self._found, True
        for each in self._won:
            if each is not best:
                found.reject(Rejected(each.name, each.settings, "other ranks gain more", each.duel, each.check))
        found.adopt(best)
        found.restrict(_NAME)
        found.note(_efficiency(best))
        found.note("Beside ranks no other technique was looked for: `overdrive tune` without --ranks does.")

    def _reason_against(self) -> str:
        found = self._found
        if found.facts.framework != "torch" or found.inference:
            return "ranks are for programs that train in PyTorch"
        if found.contract is Contract.EXACT:
            return "ranks sum in another order, which the level exact does not allow"
        return "ranks save no memory that is known" if found.wanted() == "memory" else ""

    def _kind(self) -> str:
        return "GPU" if self._found.facts.device == "cuda" else "core"

    def _places(self) -> int:
        return len(gpus()) if self._kind() == "GPU" else len(os.sched_getaffinity(0))


def sizes_up_to(places: int) -> list[int]:
    """2, 4, 8, ... and the number of places itself."""
    doubled = [2**power for power in range(1, places.bit_length()) if 2**power < places]
    return [*doubled, places] if places > 1 else []


def _efficiency(adopted: Adopted) -> str:
    ranks, speedup = int(adopted.settings["ranks"]), adopted.duel.interval
    gain = f"{speedup.estimate:.2f}x the speed of one process" if speedup else "faster than one process"
    share = f", {speedup.estimate / ranks:.0%} for each" if speedup else ""
    return f"{ranks} ranks make {gain} at the same batches{share}; the memory told is that of one of them."
