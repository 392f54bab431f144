"""Screens candidates: all that can be switched are on and off at random in live trials, and each block tells of all.

What it finds decides which candidates get a duel, and in which order: one that does nothing here needs none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from overdrive.core.interval import Interval
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.screening import (
    Block,
    Candidate,
    Design,
    Effects,
    Row,
    carry_over,
    choose,
    estimate,
    labels_of,
    next_look,
    on_off,
    pairs_of_process,
    race,
)
from overdrive.evidence.screening.beliefs import Belief, beliefs
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.techniques.technique import Technique
from overdrive.trials.duel import FEWEST_SECONDS
from overdrive.trials.pool import TrialPool
from overdrive.trials.screen import ScreeningTrial, failed
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.schedule import Schedule

_SHARE = 0.3  # of the budget that is left, which it may take
_LEAST_SECONDS = 20.0  # below which nothing can be said of a dozen candidates
_PLACEBOS = 3
_FEWEST_PAIRS = 8  # with which anything is said at all
_FEWEST_KEPT = 0.25  # of the pairs, without which it is no time to measure: others hold the cores
_FEWEST_OF_PROCESS = 4  # pairs, without which starting yet another process leads nowhere
_HOPELESS = 0.005  # of log speed: less is expected to be lost without a duel for this candidate
_HOPELESS_BESIDE = 0.05  # likewise: the probability of being worth a per cent in the best company
_LONGEST_START = 10.0  # seconds that one may add to a process's start: compiling comes when the rest is known
_LONGEST_LEAD = 8  # times the usual untimed steps before a block
_MOST_FAILURES = 4  # candidates that fail, each of which costs a process
_USUAL_NOISE = 0.05  # standard deviation of a block's log time, where the control could not tell
_WORTH_TELLING = 1.05  # speedup beyond the contract, at the lower end of its interval


@dataclass(frozen=True)
class Screened:
    """What was found. Names of techniques, with their first settings.

    Attributes:
        beliefs: gains on the logarithm of speed, prior included.
        speedups: as measured, beside the plan that these figures speak for.
        idle: that are not expected to gain anything, whatever else is on.
        beyond: those that another contract would allow.
        failed: that killed their process, with the reason.
        left_out: that left themselves out beside all others; what each would do alone is not known.
    """

    beliefs: Mapping[str, Belief] = field(default_factory=dict)
    speedups: Mapping[str, Interval] = field(default_factory=dict)
    idle: Collection[str] = ()
    beyond: Collection[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    left_out: Collection[str] = ()
    pairs: int = 0
    processes: int = 0
    seconds: float = 0.0

    def hopeless(self, name: str) -> str | None:
        """Why a candidate needs no duel; None where it does, or nothing is known of it."""
        if name in self.failed:
            return self.failed[name]
        if name in self.idle:
            return f"no gain among all others: {self.speedups[name].as_speedup()}"
        return None

    def saving(self, name: str) -> float | None:
        """The share of a step that it is expected to save; None where it was not screened."""
        if name in self.left_out:
            return 0.0
        return 1 - math.exp(-self.beliefs[name].mean) if name in self.beliefs else None

    def beyond_the_contract(self) -> list[str]:
        """A sentence for each technique that another contract would allow, and that gains."""
        known = catalogue()
        better = [name for name in self.beyond if name in self.speedups and self.speedups[name].low > _WORTH_TELLING]
        return [
            f"`{name}` would make it about {self.speedups[name].estimate:.2g} times as fast"
            f" [{self.speedups[name].low:.2g}, {self.speedups[name].high:.2g}]: --contract {known[name].contract}."
            for name in sorted(better, key=lambda each: -self.speedups[each].estimate)
        ]


class Screener:
    """Screens a program that has no plan yet, once."""

    def __init__(self, found: Findings, pool: TrialPool, schedule: Schedule, progress: Progress) -> None:
        self._found = found
        self._pool = pool
        self._progress = progress
        self._began = time.monotonic()
        self._deadline = self._began + _SHARE * (schedule.selection_ends() - self._began)
        self._techniques = _that_go_together(found)
        self._beyond = {name for name, each in self._techniques.items() if not found.contract.allows(each.contract)}
        self._inside = [Candidate(name, each.contract) for name, each in self._techniques.items()]
        self._inside = [each for each in self._inside if each.label not in self._beyond]
        placebos = [on_off(f"placebo {number}", placebo=True) for number in range(1, _PLACEBOS + 1)]
        self._design = Design([*map(on_off, self._techniques), *placebos])
        self._active = set(labels_of(self._design.factors))
        self._blocks: list[Block] = []
        self._failed: dict[str, str] = {}
        self._left_out: set[str] = set()
        self._rng = np.random.default_rng(0)
        self._pairs, self._processes = 0, 0
        self._look = self._quota = next_look(0)  # pairs: of all at the next look, and of a process
        self._start_seconds, self._pair_seconds = 0.0, 0.0
        self._lead_factor = 1
        self._careful = False  # a process died, and it is not known with which
        self._noise = math.sqrt(found.spread().block_variance / 2) or _USUAL_NOISE

    def run(self) -> Screened:
        """Nothing is in it where there is too little to screen, or no time."""
        found = self._found
        if len(self._inside) < 2 or found.wanted() != "time" or found.adopted:
            return Screened()
        if self._deadline - self._began < _LEAST_SECONDS:
            return Screened()
        self._progress.stage(f"screening: {len(self._techniques)} candidates switched on and off in live trials")
        while time.monotonic() < self._deadline and not self._process():
            pass
        screened = self._screened()
        self._tell(screened)
        return screened

    def _process(self) -> bool:
        """One process more; whether that was enough."""
        chosen = [(name, self._techniques[name].candidates(self._found.facts)[0]) for name in self._racing()]
        if not chosen:
            return True
        trial = ScreeningTrial(self._pool, TrialSpec(self._found.program, tuple(chosen)), self._processes, self._began)
        self._processes += 1
        before, over = self._pairs, False
        try:
            until = max(self._deadline, time.monotonic() + FEWEST_SECONDS)
            trial.warm_up(self._one_by_one() if self._careful else self._next_rows(), self._design.factors, until)
            self._start_seconds = trial.start_seconds
            while not over and self._pairs - before < self._quota and time.monotonic() < self._deadline:
                over = self._pair(trial)
            return over
        except TrialOver as ended:
            if failed(ended) is None:  # the program came to its end: another process goes on
                return self._pairs - before < _FEWEST_OF_PROCESS
            return not self._blame(trial.on, str(ended.exit_reason))
        finally:
            self._note(trial.left_out)
            trial.stop()

    def _pair(self, trial: ScreeningTrial) -> bool:
        """One pair of blocks more; whether that was enough."""
        self._note(trial.left_out)
        began = time.monotonic()
        trial.lead_factor = self._lead_factor
        self._blocks += trial.pair(self._pairs, self._next_rows(), self._design.factors)
        self._pairs += 1
        self._pair_seconds = time.monotonic() - began
        return self._pairs >= self._look and self._judge()

    def _next_rows(self) -> Sequence[Row]:
        return self._design.next_pair(self._active, self._rng)

    def _one_by_one(self) -> Sequence[Row]:
        """Rows with one candidate each: the one with which a process dies."""
        names = [factor.name for factor in self._design.factors]
        return [tuple(int(name == racing) for name in names) for racing in self._racing()]

    def _judge(self) -> bool:
        """Look at all blocks: hopeless candidates leave. Returns whether the choice is clear."""
        factors = self._design.factors
        self._look = next_look(self._pairs)
        effects = self._effects()
        if effects.pairs < _FEWEST_KEPT * self._pairs:
            return True
        verdict = race(effects, self._active, self._inside, factors)
        self._active -= {each.label for each in verdict.drop}
        self._active -= {name for name in self._beyond & set(effects.labels) if effects.speedup(name).high < 1.0}
        late = carry_over(self._blocks, factors)
        if late is not None and late.longer_lead:
            self._lead_factor = min(_LONGEST_LEAD, 2 * self._lead_factor)
        left = self._deadline - time.monotonic()
        self._quota = pairs_of_process(effects, self._pair_seconds, self._start_seconds, left)
        self._progress.detail(f"{self._pairs} pairs of blocks, {self._processes} processes: {self._best(effects)}")
        return verdict.stop or not self._racing()

    def _effects(self) -> Effects:
        return estimate(self._blocks, self._design.factors, noise=self._noise)

    def _best(self, effects: Effects) -> str:
        speedups = {name: effects.speedup(name) for name in effects.labels if name in self._techniques}
        best = sorted(speedups, key=lambda name: -speedups[name].estimate)[:3]
        return ", ".join(f"{name} {speedups[name].as_speedup()}" for name in best)

    def _racing(self) -> list[str]:
        return [name for name in self._techniques if name in self._active]

    def _note(self, left_out: Collection[str]) -> None:
        self._left_out |= set(left_out)
        self._active -= set(left_out)

    def _blame(self, on: Collection[str], reason: str) -> bool:
        """A process died with these on; whether another may go on: without the one, or to find out which it was."""
        suspects = [name for name in on if name in self._active and name in self._techniques]
        if len(suspects) == 1:
            self._failed[suspects[0]] = reason
            self._active.discard(suspects[0])
            return len(self._failed) < _MOST_FAILURES
        careful, self._careful = self._careful, True
        return bool(suspects) and not careful

    def _screened(self) -> Screened:
        nothing = Screened(
            failed=self._failed,
            left_out=frozenset(self._left_out),
            pairs=self._pairs,
            processes=self._processes,
            seconds=time.monotonic() - self._began,
        )
        if not self._blocks or (effects := self._effects()).pairs < max(_FEWEST_PAIRS, _FEWEST_KEPT * self._pairs):
            return nothing
        out = self._failed.keys() | self._left_out
        names = [name for name in effects.labels if name in self._techniques and name not in out]
        believed = beliefs(effects)
        plan = choose(effects, self._inside, self._design.factors, believed=believed).plan
        partners = frozenset().union(*effects.interacting)
        # What gains only beside another is believed to gain nothing alone: of these the best company counts.
        idle = {name for name in names if believed.by_label[name].above < _HOPELESS and name not in partners}
        idle |= {name for name in partners & set(names) if believed.best[name] < _HOPELESS_BESIDE}
        return replace(
            nothing,
            beliefs={name: believed.by_label[name] for name in names},
            speedups={name: effects.beside(name, plan) for name in names},
            idle=frozenset(idle) - set(plan),
            beyond=frozenset(self._beyond),
        )

    def _tell(self, screened: Screened) -> None:
        disturbed = len({block.pair for block in self._blocks if block.dropped})
        besides = f" ({disturbed} of them left out: others held the cores)" if disturbed else ""
        if not screened.beliefs:
            return self._progress.outcome(f"nothing established in {screened.pairs} pairs of blocks{besides}")
        hopeful = [name for name in screened.beliefs if screened.hopeless(name) is None and name not in self._beyond]
        hopeful.sort(key=lambda name: -screened.beliefs[name].mean)
        best = ", ".join(f"{name} {screened.speedups[name].as_speedup()}" for name in hopeful[:6])
        self._progress.outcome(
            f"{screened.pairs} pairs of blocks{besides} in {screened.processes} processes, {screened.seconds:.0f} s; "
            + (f"worth a duel: {best}" if hopeful else "none of them gains anything")
        )
        for sentence in screened.beyond_the_contract():
            self._progress.outcome(sentence)
        self._found.notes += screened.beyond_the_contract()


def _that_go_together(found: Findings) -> dict[str, Technique]:
    """The techniques to be screened: of those that exclude each other, the one that promises most."""

    def suits(technique: Technique) -> bool:
        able = technique.switchable and not technique.process_level and technique.usual_start <= _LONGEST_START
        wanted = found.may_be_tried(technique) and "time" in technique.aims
        return wanted and able and not technique.applies(found.facts)

    def rank(technique: Technique) -> tuple[bool, float]:
        return not found.contract.allows(technique.contract), -technique.usual_saving(found.facts)

    chosen: dict[str, Technique] = {}
    for technique in sorted(filter(suits, catalogue().values()), key=rank):
        if conflict(technique.name, chosen) is None:
            chosen[technique.name] = technique
    return {name: chosen[name] for name in catalogue() if name in chosen}
