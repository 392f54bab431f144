"""The findings of a tune, as data."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.objective import TIME, Objective, saves
from overdrive.core.program import Program
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.attribution import Attribution
from overdrive.evidence.confirmation import Spread, of_any_process, spread_of
from overdrive.evidence.equivalence import Check
from overdrive.evidence.neighbours import busy, often, share_disturbed
from overdrive.evidence.speed import Pair, Verdict, noise_floor, speedup_of_these
from overdrive.machine.pool.curve import Measured
from overdrive.techniques.technique import Settings, Technique
from overdrive.trials.duel import Duel, full_processes
from overdrive.tuner.between_epochs import BetweenEpochs
from overdrive.tuner.outcomes import Adopted, Rejected, Standing, duels_of, gain_of, loosest, proved_exact, without, won
from overdrive.tuner.screened import Screened
from overdrive.tuner.starts import Starts


@dataclass
class Findings:
    """What a tune established, as data. `refusal` says in one sentence why there is nothing, if so."""

    program: Program
    contract: Contract
    objective: Objective = TIME
    only: frozenset[str] = frozenset()  # the techniques that alone may be tried; empty: all
    control: Duel | None = None
    confirmation: Duel | None = None
    confirmed: bool = False  # it came to as many process pairs as a claim takes
    standing: Standing | None = None  # where it did not
    proof: Check | None = None  # of the whole plan
    attribution: Attribution | None = None
    # With what was tried in them: one that gained nothing in the whole plan, several that came to nothing together.
    other_duels: list[tuple[str, Duel]] = field(default_factory=list)
    dropped: list[Rejected] = field(default_factory=list)  # adopted first, and taken out again
    adopted: list[Adopted] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)  # against fp64, by `TrialSpec.name()`: see `formats`
    seeds: list[list[float]] = field(default_factory=list)  # loss curves of the program under other seeds
    facts: Facts = field(default_factory=Facts)  # of the best plan so far
    inference: bool = False  # the program trains nothing: its model's calls are its steps
    deterministic: bool = True
    notes: list[str] = field(default_factory=list)
    refusal: str | None = None
    refusal_is_failure: bool = False  # the program itself failed
    earlier: list[list[Pair]] = field(default_factory=list)  # the duels of the last tune of this program
    budget: float = 600.0  # seconds
    of_processes: tuple[float, int] = (0.0, 0)  # variance between processes in the screening, and its freedom
    screened: Screened = field(default_factory=Screened)
    typed: tuple[str, ...] = ()  # options that the next command needs, too (see `TuneRequest`)
    ranks: int | None = None  # as how many processes it was to be tried (see `TuneRequest`)
    pool: Measured | None = None  # what was measured between ranks (see `TuneRequest`)
    weak: dict[int, Duel | str] = field(default_factory=dict)  # one rank alone, by their number; or why not
    between: BetweenEpochs | None = None
    starts: Starts | None = None
    runs: int | None = None  # that the tune has to pay for itself in, where its budget was not given
    started: float = field(default_factory=time.monotonic)
    spent_before: float = 0.0  # seconds, until a tune was broken off that this one goes on from
    seconds: float = 0.0  # of all of it
    stopped: bool = False  # by the user, before its end: the plan is what was proved by then
    isolation: str = ""

    @property
    def verdict(self) -> Verdict:
        """FASTER and SMALLER only where a plan was confirmed to be so, and to be the same program."""
        if self.needed():
            return Verdict.FITS
        confirmed = self.confirmation
        if confirmed is None or self.proof is None or not (self.confirmed or self.standing):
            return Verdict.INCONCLUSIVE
        proved = self.proof.level is not None
        measured = self.measured() or confirmed
        before, after = measured.old_side.peak_memory, measured.new_side.peak_memory or self.peak()
        if self.objective.aim == "memory" or not self.objective.allows(before):
            smaller = saves(before, after, self.memory_spread()) and self.objective.allows(after)
            return Verdict.SMALLER if smaller and proved else Verdict.INCONCLUSIVE
        said = Verdict.FASTER if self.standing else confirmed.verdict
        if said is Verdict.FASTER and not (proved and self.objective.allows(after)):
            return Verdict.INCONCLUSIVE
        return said

    @property
    def chosen(self) -> list[Adopted]:
        """The techniques of the plan: none, unless the whole was established, but those it cannot run without."""
        if self.verdict is Verdict.FITS and not self._faster_than_needed():
            return self.needed()
        return self.adopted if self.verdict in (Verdict.FASTER, Verdict.SMALLER, Verdict.FITS) else []

    # What alters them, from here on: no other file does (tests/tuner/test_findings.py).

    def begin(self, control: Duel) -> None:
        self.control = control

    def note(self, *sentences: str) -> None:
        """Of what a reader of the result has to know."""
        self.notes += sentences

    def refuse(self, sentence: str, failed: bool = False) -> None:
        """Nothing can be looked for; `failed`: the program itself did."""
        self.refusal, self.refusal_is_failure = sentence, failed

    def controlled(
        self, facts: Facts | None = None, inference: bool | None = None, deterministic: bool | None = None
    ) -> None:
        """What the control says of the program."""
        self.facts = self.facts if facts is None else facts
        self.inference = self.inference if inference is None else inference
        self.deterministic = self.deterministic if deterministic is None else deterministic

    def shorten(self, budget: float) -> None:
        self.budget = budget

    def processes_vary(self, variance: tuple[float, int]) -> None:
        self.of_processes = variance

    def take_screening(self, screened: Screened) -> None:
        self.screened = screened

    def reject(self, *rejected: Rejected) -> None:
        self.rejected += rejected

    def take_back(self, name: str, settings: Settings) -> None:
        """Its rejection: it is tried once more."""
        self.rejected = [each for each in self.rejected if (each.name, each.settings) != (name, settings)]

    def keep_duel(self, name: str, duel: Duel) -> None:
        self.other_duels.append((name, duel))

    def adopt(self, adopted: Adopted) -> None:
        self.adopted.append(adopted)
        if (facts := adopted.duel.new_facts) is not None:
            self.facts = facts.with_costs_of(self.facts)

    def adopt_all(self, adopted: Sequence[Adopted], out: Sequence[Adopted]) -> None:
        """These join the plan. `out`: those of it whose place they take."""
        before, self.adopted = tuple(self.adopted), without([each.name for each in out], self.adopted)
        for each in adopted:
            self.adopt(each.in_place_of(out, before) if out else each)
        self.dropped += [each.replaced_by(adopted) for each in out]

    def plan_is(self, members: Iterable[Adopted], proof: Check | None = None) -> None:
        """The plan is these, of all that were adopted; `proof`: of them as a whole, where there is one."""
        self.adopted, self.proof = list(members), proof

    def checked(self, checks: Mapping[str, Check]) -> None:
        """What was proved later of members that stay where they are, by name."""
        self.adopted = [replace(each, check=checks.get(each.name, each.check)) for each in self.adopted]

    def drop(self, rejected: Rejected) -> None:
        """Take an adopted technique out of the plan again."""
        self.adopted = [each for each in self.adopted if each.name != rejected.name]
        self.dropped.append(rejected)
        self.attribution = None  # it was of another plan

    def put_back(self, members: Sequence[Adopted], proof: Check | None) -> None:
        """What was dropped of these is in the plan again."""
        self.plan_is(members, proof)
        self.dropped = [each for each in self.dropped if each.name not in dict(self.best())]
        self.attribution = None

    def attribute(self, attribution: Attribution | None) -> None:
        self.attribution = attribution

    def confirm(self, duel: Duel) -> None:
        self.confirmation = duel

    def weigh(self, confirmed: bool, standing: Standing | None) -> None:
        self.confirmed, self.standing = confirmed, standing

    def disprove(self, why: str) -> None:
        """The whole plan is not the same program."""
        self.proof = Check(None, why)
        self.note(f"The whole plan is not the same program: {why}.")

    def take_starts(self, starts: Starts | None) -> None:
        self.starts = starts

    def take_between_epochs(self, between: BetweenEpochs | None) -> None:
        self.between = between

    def take_weak_scaling(self, ranks: int, duel: Duel | str) -> None:
        """One rank alone against all; or why that was not measured."""
        self.weak[ranks] = duel

    def stop(self) -> None:
        self.stopped = True

    def end(self, seeds: list[list[float]], errors: Mapping[str, float], isolation: str) -> None:
        self.seeds, self.errors, self.isolation = seeds, dict(errors), isolation
        self.seconds = self.spent_before + time.monotonic() - self.started

    def may_be_tried(self, technique: Technique) -> bool:
        """Whether it is for such programs, and among those that the user wants: an open one has to be named."""
        named = technique.name in self.only if self.only else technique.contract is not Contract.OPEN
        return named and self.facts.framework in technique.frameworks and technique.is_for(self.inference)

    def wanted(self) -> str:
        """What a candidate has to save now: "time" or "memory"."""
        return self.objective.aim if self.objective.allows(self.peak()) else "memory"

    def measured(self) -> Duel | None:
        """The duel of the whole plan against the untouched program that all of the plan's figures come from."""
        return self.standing.duel if self.standing else self.confirmation

    def beside_others(self) -> bool:
        """Whether other programs held the cores in most of what the plan's figures come from."""
        duel = self.measured() if self.chosen else None
        return duel is not None and busy(share_disturbed(duel.pairs))

    def confirms_itself(self) -> Duel | None:
        """The duel that is the plan's confirmation, where it had no other (see `Schedule.confirms_at_once`)."""
        duels = won(self.adopted)
        if len(duels) != 1 or not duels[0].published:
            return None
        whole = duels[0].old == self.reference() and duels[0].new == self.spec(self.best())
        return duels[0] if whole else None

    def needed(self) -> list[Adopted]:
        """The techniques without which the program runs out of memory."""
        return [each for each in self.adopted if each.needed]

    def spec(self, techniques: Iterable[Chosen] = ()) -> TrialSpec:
        """A trial of the program under these techniques."""
        clock, timed = "inference" if self.inference else "training", "call" if self.objective.latency else "step"
        return TrialSpec(self.program, tuple(techniques), clock=clock, timed=timed if self.inference else "step")

    def reference(self) -> TrialSpec:
        """What everything is compared with: the untouched program, with what it needs to run at all."""
        return self.spec((each.name, each.settings) for each in self.needed())

    def deadline(self) -> float:
        """Of time.monotonic()."""
        return self.started + self.budget

    def of_plain(self) -> Duel | None:
        """The duel that tells best what the untouched program takes: the control, or where others disturbed most of
        that, the one against it of which they disturbed least.

        Of the example beside a busy process the control told 209 ms a step, and a duel 22 where nobody disturbed it:
        what is left of a budget was reckoned by the first, and stood in the table.
        """
        control = self.control
        if control is None or not often(share_disturbed(control.pairs)):
            return control
        plain = self.reference()
        others = [duel for duel in self.duels() if duel.old == plain and duel.pairs]
        return min([control, *others], key=lambda duel: share_disturbed(duel.pairs))

    def run_seconds(self) -> float | None:
        """How long the program runs as it is; None where no trial came to its end, or only its calls were timed."""
        if self.control is None or self.control.total_steps is None or self.objective.latency:
            return None
        plain = self.of_plain() or self.control
        return self.control.old_side.setup_seconds + self.control.total_steps * plain.old_side.seconds_per_step

    def peak(self) -> int:
        """Bytes at the peak of the best so far; 0 where not known."""
        if self.adopted:
            return self.adopted[-1].duel.new_side.peak_memory
        return self.control.old_side.peak_memory if self.control else 0

    def gain(self) -> float:
        """The speedups of what is adopted so far, multiplied."""
        return gain_of(self.adopted)

    def gain_in_proof(self) -> float:
        """The gain of the plan over `quick_plain`, with whose runs under seeds it is compared."""
        return self.gain() / gain_of(list(proved_exact(self.adopted)))

    def led_here(self) -> list[Duel]:
        """The duels that led from the untouched program to this very plan; none where the plan lost a technique since:
        what they say is then of another plan."""
        duels, reached = won(self.adopted), self.reference().techniques
        for duel in duels:
            if duel.old.techniques != reached:
                return []
            reached = duel.new.techniques
        return duels if reached == self.best() else []

    def memory_spread(self) -> int:
        """The difference between the peaks of two processes of the program."""
        return abs(self.control.old_side.peak_memory - self.control.new_side.peak_memory) if self.control else 0

    def _faster_than_needed(self) -> bool:
        confirmed = self.confirmation is not None and self.confirmed and self.confirmation.verdict is Verdict.FASTER
        return (confirmed or self.standing is not None) and self.proof is not None and self.proof.level is not None

    def best(self) -> tuple[Chosen, ...]:
        """What is adopted so far."""
        return tuple((each.name, each.settings) for each in self.adopted)

    def quick_plain(self, plan: Sequence[Adopted] | None = None) -> TrialSpec:
        """What everything is compared with, under what is proved exact (of this plan): the same runs, sooner done."""
        proved = proved_exact(self.adopted if plan is None else plan)
        return self.spec((each.name, each.settings) for each in proved)

    def stepwise_plain(self, plan: Sequence[Adopted] | None = None) -> TrialSpec:
        """`quick_plain` without those that make several steps in a call, between which no state can be loaded."""
        proved = proved_exact(self.adopted if plan is None else plan)
        return self.spec(
            (each.name, each.settings) for each in itertools.takewhile(lambda each: each.stands_still, proved)
        )

    def loosest(self) -> Contract:
        """The level of the plan so far."""
        return loosest(self.adopted)

    def duels(self) -> list[Duel]:
        """All so far, but for that of the program against itself."""
        others = [*duels_of(self.adopted), *(duel for _, duel in self.other_duels), self.confirmation]
        others += [each.duel for each in (*self.rejected, *self.dropped)]
        return list({id(each): each for each in others if each}.values())

    def spread(self) -> Spread:
        """How much processes differ, by all duels so far and those of the tune before."""
        kept = [duel.kept() for duel in self.duels()]
        return spread_of(self.control.kept() if self.control else (), [*kept, *self.earlier], self.of_processes)

    def of_any(self, pairs: Sequence[Pair]) -> Interval:
        """What these processes say of any."""
        return of_any_process(speedup_of_these(pairs), self.spread(), full_processes(pairs))

    def noise(self) -> float | None:
        kept = self.control.kept() if self.control else []
        return noise_floor(kept) if len(kept) > 1 else None
