"""Proves the plan as a whole; where that fails, finds what makes it fail and proves the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from overdrive.core.contract import Contract
from overdrive.core.settings import Chosen
from overdrive.evidence.equivalence import OPEN, Check, same_in_their_duels
from overdrive.proof.prover import Prover
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.tuner.culprits import risk, sort_out
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.outcomes import Adopted, Rejected, history, names_of
from overdrive.tuner.schedule import Schedule


@dataclass(frozen=True)
class _Proved:
    """A part of the plan, as it was proved, in the order of adoption."""

    members: tuple[Adopted, ...]
    check: Check

    @property
    def names(self) -> list[str]:
        """Of those that the program could do without: by these it is known."""
        return [each.name for each in self.members if not each.needed]


class PlanProof:
    """The proof of the whole plan against the untouched program, with as few trials as can be."""

    def __init__(self, found: Findings, prover: Prover, schedule: Schedule, progress: Progress) -> None:
        self._found = found
        self._prover = prover
        self._schedule = schedule
        self._progress = progress
        self._plan: tuple[Adopted, ...] = ()
        self._under_way = False  # parts of it are being proved
        self._proved: dict[frozenset[str], _Proved] = {}
        self._failed: dict[frozenset[str], tuple[Check, Contract]] = {}  # with the level that was asked for

    def run(self, searched: Sequence[Adopted]) -> None:
        """Leave in the findings what was proved, and its proof; the rest is dropped, each with its reason.

        Args:
            searched: the plan as the search left it, before what was idle went out.
        """
        found = self._found
        self._plan = tuple(found.adopted)
        found.plan_is(self._plan)
        suspects = [each for each in self._plan if not each.needed]
        if not suspects:
            return
        held = self._proved_before() or self._proved_beginning()
        self._under_way = True
        outcome = sort_out({each.name: _risk(each) for each in suspects}, self._holds, held)
        self._under_way = False
        if outcome.left and not self._failed and self._put_back(searched):
            return
        if kept := self._proved.get(frozenset(outcome.held)):
            found.plan_is(kept.members, kept.check)
        else:
            found.plan_is(each for each in self._plan if each.needed)
        for name in outcome.culprits:
            self._drop(name, "the whole plan with it was not proved", self._failure_by(name, outcome.held))
        for name in outcome.left:
            self._drop(name, "there was no time left to prove the whole plan with it", None)
        self._go_back((*outcome.culprits, *outcome.left))

    def settle(self) -> None:
        """As `run`, where no trial is made any more: a part of the plan may have been under proof when that came."""
        if self._under_way:
            self._found.plan_is(self._plan)
        self.run(self._found.adopted)

    def _proved_before(self) -> list[str]:
        """The most of the plan that was proved when this was run before."""
        chosen = _chosen(self._plan)
        known = [each for each in self._proved.values() if all(one in chosen for one in _chosen(each.members))]
        most = max(known, key=lambda each: len(each.members), default=None)
        return most.names if most else []

    def _go_back(self, out: Sequence[str]) -> None:
        """What lost its place to one that is out has it again, if its plan is proved."""
        found = self._found
        place = next((n for n, each in enumerate(self._plan) if each.before and each.name in out), None)
        if place is None:
            return
        held, proof, gain = found.adopted, found.proof, found.gain()
        before = [each for each in self._plan[place].before if each.name not in out]
        later = [
            replace(each, before=())
            for each in self._plan[place:]
            if each.name in names_of(held) and not conflict(each.name, names_of(before))
        ]
        found.put_back([*before, *later], None)
        self._progress.outcome(f"back to what was there before {self._plan[place].name}")
        self.run(found.adopted)
        if found.proof is None or found.gain() < gain:
            found.put_back(held, proof)

    def _holds(self, names: Sequence[str]) -> bool | None:
        """Whether the plan of these is proved; None: there is no time to tell."""
        found, key = self._found, frozenset(names)
        members = tuple(each for each in self._plan if each.needed or each.name in key)
        known = self._proved.get(key)
        if known and _chosen(known.members) == _chosen(members):
            return True
        while True:
            found.plan_is(members)
            level = found.loosest()
            check = self._checked(level)
            if check.level is not None:
                self._keep(members, check)
                self._progress.outcome(f"{self._called(key)} keeps {check.level}: {check.sentence}")
                return True
            looser = tuple(self._loosened(each, level) for each in members)
            if looser == members:
                break
            members = looser
        self._progress.outcome(f"{self._called(key)} was not proved {level}: {check.sentence}")
        if check.late and level is not Contract.STATISTICAL:
            return None
        self._failed[key] = check, level  # a statistical proof that comes late leaves time for the rest
        return False

    def _checked(self, level: Contract) -> Check:
        """The plan in the findings: as it is known, or proved now, or told by its duels where that came too late."""
        if self._schedule.stopped and self._prover.compares_whole_runs:
            return self._prove(level)  # the program's own number would take a run of it
        check = self._known(level) or self._prove(level).of_what_acted(self._to_act(level))
        # Of what was the same bit for bit a looser proof that failed says nothing.
        believed = not any(failed is Contract.EXACT for _, failed in self._failed.values())
        check = (self._by_duels() or check) if check.late and believed else check
        return self._prover.with_the_metric(check, self._found.reference(), self._found.spec(self._found.best()))

    def _prove(self, level: Contract) -> Check:
        """The plan in the findings against the untouched program."""
        found, schedule = self._found, self._schedule
        if schedule.stopped:
            return Check(None, "the tune was stopped before its proof", late=True)
        best = found.spec(found.best())
        # Once something is proved its confirmation comes before the proof of more.
        self._prover.end_by(schedule.confirmation_begins() if self._proved else schedule.deadline)
        match level:
            case Contract.EXACT:
                # What its duels have shown is confirmed first: on slow steps the hashes took the time of that.
                told = self._by_duels() and not found.confirms_itself()
                if schedule.too_late_to_prove(level, schedule.confirmation_begins() if told else schedule.deadline):
                    return Check(None, "there was no time left to hash each step", late=True)
                return self._prover.exact(found.reference(), best)
            case Contract.ROUNDING:
                return self._prover.rounding(found.stepwise_plain(), best)
            case Contract.OPEN:
                return OPEN
        # A look that tells is worth more than a fourth pair of processes.
        deadline, latest = schedule.seeds_end(), schedule.shortest_confirmation_begins()
        if found.confirms_itself():
            deadline, latest = schedule.deadline - schedule.durations.of_rest(), schedule.deadline
        return self._prover.statistical(found.quick_plain(), best, deadline, latest=latest)

    def _to_act(self, level: Contract) -> list[str]:
        """What a proof at this level is about, and was not left out beside the others in the last duel already."""
        adopted = self._found.adopted
        last = adopted[-1].duel.new_trace
        concerned = [each.name for each in adopted if level is Contract.EXACT or each.level is not Contract.EXACT]
        return [name for name in concerned if last is None or name not in last.left_out]

    def _known(self, level: Contract) -> Check | None:
        """The check of the last that joined, where that was of this very plan against the untouched program."""
        last = self._found.adopted[-1]
        if last.duel.new.techniques != self._found.best() or last.check.level is not level:
            return None
        if last.check.agreement is not None:  # over all recorded calls, as the whole plan would be
            return last.check
        if last.joined or last.check.pending:  # hashed with the whole plan
            return None
        direct = level is Contract.EXACT and last.duel.old == self._found.reference()
        return last.check if direct or level is Contract.ROUNDING else None

    def _by_duels(self) -> Check | None:
        """What the duels said of the plan in the findings, if they lead to it from the untouched program, and the two
        sides of each were the same, bit for bit."""
        checks, members = [], history(self._found.adopted)
        for duel in self._found.led_here():
            own = [each for each in members if each.duel is duel]
            if any(each.check.level is not Contract.EXACT or each.joined for each in own):
                return None
            checks.append(own[0].check)
        return same_in_their_duels(checks) if checks else None

    def _proved_beginning(self) -> list[str]:
        """The most of the plan's first members whose plan was proved when the last of them joined; not the whole."""
        if self._prover.compares_whole_runs:  # which is not done before
            return []
        for count in range(len(self._plan) - 1, 0, -1):
            members = self._plan[:count]
            self._found.plan_is(members)
            check = self._known(self._found.loosest())
            if check and not members[-1].needed:
                return self._keep(members, check).names
        return []

    def _put_back(self, searched: Sequence[Adopted]) -> bool:
        """What was idle is in the plan again: without it there is no time for a proof, with it there was one."""
        found = self._found
        if len(searched) == len(self._plan):
            return False
        found.plan_is(searched)
        level = found.loosest()
        check = self._checked(level)  # its trials were made, when the last of it joined
        if check.level is None:
            return False
        self._progress.outcome("no time for another proof: the plan that was proved stays as it is")
        found.put_back(searched, check)
        self._keep(searched, check)
        return True

    def _keep(self, members: Sequence[Adopted], check: Check) -> _Proved:
        proved = _Proved(tuple(members), check)
        self._proved[frozenset(proved.names)] = proved
        return proved

    def _loosened(self, each: Adopted, level: Contract) -> Adopted:
        """What joined a statistical plan, and was never proved by itself, may be proved less strictly yet."""
        looser = each.looser() if each.joined is level else None
        allowed = looser and looser.rank > level.rank and self._found.contract.allows(looser)
        return replace(each, joined=looser) if allowed else each

    def _failure_by(self, name: str, held: Sequence[str]) -> tuple[Check, Contract]:
        """The proof that came to nothing because of this one: of the fewest techniques with it."""
        with_it = [failed for failed in self._failed if name in failed]
        return self._failed[min(with_it, key=lambda failed: (len(failed - set(held)), len(failed)))]

    def _drop(self, name: str, reason: str, failure: tuple[Check, Contract] | None) -> None:
        out = next(each for each in self._plan if each.name == name)
        if failure:
            reason = f"{reason} {failure[1]}: {failure[0].sentence}"
        check = failure[0] if failure else out.check
        self._found.drop(Rejected(name, out.settings, reason, out.duel, check))
        self._progress.outcome(f"dropped {name}: {reason}")

    def _called(self, names: frozenset[str]) -> str:
        return "the whole plan" if len(names) == len(self._plan) else " + ".join(sorted(names))


def _chosen(plan: Sequence[Adopted]) -> list[Chosen]:
    return [(each.name, each.settings) for each in plan]


def _risk(each: Adopted) -> float:
    technique = catalogue()[each.name]
    return risk(each.level, technique.family, proved=each.joined is None)
