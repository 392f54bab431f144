"""Finds as how many processes a program is fastest: one process against 2, 4, ... ranks at the same batches."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from overdrive.core.contract import Contract
from overdrive.evidence.speed import Verdict
from overdrive.machine.gpu import gpus
from overdrive.techniques.catalogue import catalogue
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Adopted, Findings, Rejected
from overdrive.tuner.judge import Judge
from overdrive.tuner.strategies import Candidate

_NAME = "data_parallel"


class RankSearch:
    """What wins is proved like any other candidate: steps from the states of one process, on ranks, against fp64."""

    def __init__(self, found: Findings, judge: Judge, progress: Progress, wanted: int) -> None:
        """`wanted`: try so many ranks alone; 0: 2, 4, ... as far as there are devices, or cores."""
        self._found = found
        self._judge = judge
        self._progress = progress
        self._wanted = wanted

    def run(self) -> bool:
        """Whether ranks are adopted; then no other technique is looked for, which is not known to be safe on ranks."""
        found = self._found
        if reason := self._reason_against():
            return self._none(reason)
        sizes = [self._wanted] if self._wanted else sizes_up_to(self._places())
        if not sizes:
            return self._none(f"this machine has one {self._kind()} for it")
        won = self._winners(sizes)
        if not won:
            return self._none("no number of ranks was seen to be faster")
        best = max(won, key=lambda each: each.speedup.estimate if each.speedup else 0.0)
        for each in won:
            if each is not best:
                found.rejected.append(
                    Rejected(each.name, each.settings, "other ranks gain more", each.duel, each.check)
                )
        found.adopt(best)
        found.only = frozenset({_NAME})
        found.notes.append(_efficiency(best))
        found.notes.append("Beside ranks no other technique was looked for: `overdrive tune` without --ranks does.")
        return True

    def _none(self, reason: str) -> bool:
        self._found.notes.append(f"The plan is for one process: {reason}.")
        self._progress.outcome(self._found.notes[-1])
        return False

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

    def _winners(self, sizes: Sequence[int]) -> list[Adopted]:
        """Each against one process; more ranks than such as were slower are not tried."""
        won: list[Adopted] = []
        for ranks in sizes:
            if time.monotonic() > self._found.deadline():
                break
            candidate = Candidate(((catalogue()[_NAME], {"ranks": ranks}),))
            outcome = self._judge.judge(candidate)
            if isinstance(outcome, Rejected):
                self._found.rejected.append(outcome)
                self._progress.outcome(f"{candidate.label}: {outcome.reason}")
                if outcome.duel and outcome.duel.verdict is Verdict.SLOWER:
                    break
            else:
                self._progress.outcome(outcome[0].duel.describe())
                won += outcome
        return won


def sizes_up_to(places: int) -> list[int]:
    """2, 4, 8, ... and the number of places itself."""
    doubled = [2**power for power in range(1, places.bit_length()) if 2**power < places]
    return [*doubled, places] if places > 1 else []


def _efficiency(adopted: Adopted) -> str:
    ranks, speedup = int(adopted.settings["ranks"]), adopted.duel.interval
    gain = f"{speedup.estimate:.2f}x the speed of one process" if speedup else "faster than one process"
    share = f", {speedup.estimate / ranks:.0%} for each" if speedup else ""
    return f"{ranks} ranks make {gain} at the same batches{share}; the memory told is that of one of them."
