"""The strategy of `tune --ranks`: the plan that was found, in one process against 2, 4, ... ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from overdrive.core.contract import Contract
from overdrive.evidence.speed import Verdict
from overdrive.machine.gpu import gpus
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Rejected, excluded_by, names_of
from overdrive.tuner.reasons import left_out_names
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.strategies import Candidate

TECHNIQUE = "data_parallel"
_SHARE_AT_MOST = 1 / 2  # of the time that is left when the search begins


class Ranks:
    """The fastest number of ranks joins the plan, where that is faster on them and proved on them.

    It comes last: a technique for one process may gain what ranks would (one thread beside a busy neighbour), and what
    decides is the plan as it will run. Where ranks and that plan do not go together, they are tried in its place.
    """

    def __init__(self, found: Findings, schedule: Schedule, progress: Progress, wanted: int) -> None:
        """`wanted`: try so many ranks alone; 0: 2, 4, ... as far as there are devices, or cores."""
        self._found = found
        self._schedule = schedule
        self._progress = progress
        self._won: list[tuple[Adopted, list[Adopted]]] = []  # with those of the plan whose place it takes
        self._in_place_of_all = False
        self._against = self._reason_against()
        self._sizes = [] if self._against else [wanted] if wanted else sizes_up_to(self._places())
        if not self._sizes and not self._against:
            self._against = f"this machine has one {self._kind()} for it"

    def seconds(self) -> float:
        """That are to be kept for it while other techniques are looked for; none where they would be too few for it."""
        one = self._schedule.durations.to_adopt(catalogue()[TECHNIQUE].contract, 0.0)
        most = _SHARE_AT_MOST * self._schedule.seconds_left()
        return min(len(self._sizes) * one, most) if one <= most else 0.0

    def ask(self) -> Candidate | None:
        if self._sizes and self._found.wanted() == "memory":
            self._sizes, self._against = [], "ranks save no memory that is known"
        if self._sizes:
            out = names_of(self._out())
            candidate = Candidate(((catalogue()[TECHNIQUE], {"ranks": self._sizes.pop(0)}),), replaces=out)
            if self._schedule.time_for_another(level=candidate.contract):
                return candidate
            self._against = "no time was left to try and prove more ranks"
        if self._won:
            self._take(*max(self._won, key=lambda each: _gain(each[0])))
        else:
            note = f"The plan is for one process: {self._against or 'no number of ranks was seen to be faster'}."
            self._found.note(note)
            self._progress.outcome(note)
        return None

    def tell(self, candidate: Candidate, outcome: Sequence[Adopted] | Rejected) -> None:
        if not isinstance(outcome, Rejected):
            out = [each for each in self._found.adopted if each.name in candidate.replaces]
            self._won += [(each, out) for each in outcome]
            self._progress.outcome(outcome[0].duel.describe())
            return
        self._progress.outcome(f"{candidate.label}: {outcome.reason}")
        duel = outcome.duel
        if duel and duel.new_trace and TECHNIQUE in left_out_names(duel):  # of its own parallelism, whatever the number
            self._sizes, self._against = [], duel.new_trace.left_out[TECHNIQUE]
        elif duel and duel.verdict is Verdict.SLOWER:
            self._sizes = []  # more ranks than such as were slower are not tried
        elif self._broke(outcome) and not self._won and not self._in_place_of_all and self._found.adopted:
            beside = " + ".join(names_of(self._found.adopted))
            self._progress.outcome(f"ranks do not go together with {beside}: they are tried in its place")
            self._found.keep_duel(candidate.label, duel) if duel else None
            self._in_place_of_all = True
            self._sizes = [int(candidate.chosen[0][1]["ranks"]), *self._sizes]
            return
        self._found.reject(outcome)

    def _broke(self, outcome: Rejected) -> bool:
        """Whether it was not the same program, or failed."""
        end = outcome.duel.exit_reason if outcome.duel else None
        failed = end is not None and end.kind not in ("ended", "late")
        return failed or (outcome.check is not None and not outcome.check.late)

    def _out(self) -> list[Adopted]:
        """Those of the plan whose place ranks take."""
        adopted = [each for each in self._found.adopted if not each.needed]
        return adopted if self._in_place_of_all else excluded_by((TECHNIQUE,), adopted)

    def _take(self, best: Adopted, out: Sequence[Adopted]) -> None:
        found = self._found
        for each, _ in self._won:
            if each is not best:
                found.reject(Rejected(each.name, each.settings, "other ranks gain more", each.duel, each.check))
        found.adopt_all([best], out)
        note = _efficiency(best, found.adopted)
        found.note(note)
        self._progress.outcome(f"adopted: {note}")

    def _reason_against(self) -> str:
        found = self._found
        if found.facts.framework != "torch" or found.inference:
            return "ranks are for programs that train in PyTorch"
        if found.contract is Contract.EXACT:
            return "ranks sum in another order, which the level exact does not allow"
        if other := conflict(TECHNIQUE, names_of(found.needed())):
            return f"the program does not run without {other}, beside which there are no ranks"
        return ""

    def _kind(self) -> str:
        return "GPU" if self._found.facts.device == "cuda" else "core"

    def _places(self) -> int:
        return len(gpus()) if self._kind() == "GPU" else len(os.sched_getaffinity(0))


def sizes_up_to(places: int) -> list[int]:
    """2, 4, 8, ... and the number of places itself."""
    doubled = [2**power for power in range(1, places.bit_length()) if 2**power < places]
    return [*doubled, places] if places > 1 else []


def _gain(adopted: Adopted) -> float:
    return adopted.duel.interval.estimate if adopted.duel.interval else 0.0


def _efficiency(adopted: Adopted, plan: Sequence[Adopted]) -> str:
    ranks, speedup = int(adopted.settings["ranks"]), adopted.duel.interval
    gain = f"{speedup.estimate:.2f}x the speed of one process" if speedup else "faster than one process"
    share = f", {speedup.estimate / ranks:.0%} for each" if speedup else ""
    under = " under the plan that was found for it" if adopted.duel.old.techniques else ""
    beside = [each.name for each in plan if each is not adopted and each.name != adopted.name]
    with_them = f", with {' + '.join(beside)} on each," if beside else ""
    return (
        f"{ranks} ranks{with_them} make {gain}{under} at the same batches{share}; the memory told is that of one of "
        "them."
    )
