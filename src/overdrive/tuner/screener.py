"""Screens candidates: all that can be switched are on and off at random in live trials, and each block tells of all.

What has to be there before a process starts is on and off from process to process, in pairs of a row and its mirror
image; each process carries the switching of the others inside. What is found decides which candidates make the plan
to begin with, which get a duel, and in which order: one that does nothing here needs none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from overdrive.core.records import TrialOver
from overdrive.core.settings import Chosen
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
    next_look,
    on_off,
    pairs_of_process,
    race,
)
from overdrive.evidence.screening.beliefs import beliefs
from overdrive.techniques.catalogue import catalogue, conflict
from overdrive.techniques.technique import Technique
from overdrive.trials.duel import FEWEST_SECONDS
from overdrive.trials.pool import TrialPool
from overdrive.trials.screen import ScreeningTrial, failed
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.process_rows import WANTED, ProcessRows, affordable
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.screened import Screened

_LEAST_SECONDS = 20.0  # below which nothing can be said of a dozen candidates
_PLACEBOS = 3
_FEWEST_PAIRS = 8  # with which anything is said at all
_FEWEST_KEPT = 0.25  # of the pairs, without which it is no time to measure: others hold the cores
_FEWEST_OF_PROCESS = 4  # pairs of blocks
_WARM_UP_SECONDS = 2.5
_HOPELESS = 0.005  # of log speed: less is expected to be lost without a duel for this candidate
_HOPELESS_BESIDE = 0.05  # likewise: the probability of being worth a per cent in the best company
_LONGEST_START = 10.0  # seconds that one may add to a process's start: compiling comes when the rest is known
_LONGEST_LEAD = 8  # times the usual untimed steps before a block
_MOST_FAILURES = 4  # candidates that fail, each of which costs a process
_USUAL_NOISE = 0.05  # standard deviation of a block's log time, where the control could not tell


class Screener:
    """Screens a program that has no plan yet, once."""

    def __init__(self, found: Findings, pool: TrialPool, schedule: Schedule, progress: Progress) -> None:
        self._found = found
        self._pool = pool
        self._progress = progress
        self._began = time.monotonic()
        self._deadline = schedule.screening_ends()
        self._start_seconds = _WARM_UP_SECONDS + (found.control.old_side.setup_seconds if found.control else 0.0)
        self._rng = np.random.default_rng(0)
        techniques = _that_go_together(found)
        stiff = [each for each in techniques.values() if each.process_level]
        processes = (self._deadline - self._began) / self._start_seconds
        self._around = ProcessRows(affordable(stiff, processes, found), self._rng)
        within = [name for name, each in techniques.items() if not each.process_level]
        self._techniques = {name: each for name, each in techniques.items() if name in {*within, *self._around.racing}}
        self._beyond = {name for name, each in self._techniques.items() if not found.contract.allows(each.contract)}
        self._inside = [
            Candidate(name, each.contract) for name, each in self._techniques.items() if name not in self._beyond
        ]
        placebos = [on_off(f"placebo {number}", placebo=True) for number in range(1, _PLACEBOS + 1)]
        self._design = Design([*map(on_off, within), *placebos])
        self._active = {factor.name for factor in self._design.factors}
        self._blocks: list[Block] = []
        self._failed: dict[str, str] = {}
        self._left_out: set[str] = set()
        self._pairs = 0
        self._look = self._quota = next_look(0)  # pairs: of all at the next look, and of a process
        self._pair_seconds = 0.0
        self._lead_factor = 1
        self._decided = False  # nothing more is to be learned of what is switched within processes
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
        while time.monotonic() < self._deadline and (self._racing() or self._around.racing):
            if not self._process():
                break
        screened = self._screened()
        self._tell(screened)
        return screened

    def _process(self) -> bool:
        """One process more; whether another is wanted."""
        number = len(self._around.made)
        around = self._around.next_names()
        spec = TrialSpec(self._found.program, self._chosen([*around, *self._racing()]))
        trial = ScreeningTrial(self._pool, spec, number, self._began)
        before = self._pairs
        try:
            until = max(self._deadline, time.monotonic() + FEWEST_SECONDS)
            trial.warm_up(self._one_by_one() if self._careful else self._next_rows(), self._design.factors, until)
            self._start_seconds = trial.start_seconds
            while not self._enough(self._pairs - before) and time.monotonic() < self._deadline:
                self._pair(trial)
            return self._wanted()
        except TrialOver as ended:
            if failed(ended) is None:  # the program came to its end: another process goes on
                return self._pairs > before and self._wanted()
            return self._blame(around, trial.on, str(ended.exit_reason))
        finally:
            self._note(trial.left_out)
            trial.stop()

    def _wanted(self) -> bool:
        """Whether another process would tell anything."""
        return not self._decided or self._around.wanted()

    def _enough(self, pairs: int) -> bool:
        """Whether a process with so many pairs of blocks makes place for the next."""
        if self._decided:
            return not self._around.racing or pairs >= _FEWEST_OF_PROCESS
        quota = self._quota
        if self._around.wanted():
            more = WANTED - len(self._around.made)
            left = self._deadline - time.monotonic() - more * self._start_seconds
            share = (left / max(self._pair_seconds, 1e-3) + pairs) / (more + 1)
            quota = min(quota, max(_FEWEST_OF_PROCESS, int(share)))
        return pairs >= quota

    def _pair(self, trial: ScreeningTrial) -> None:
        """One pair of blocks more."""
        self._note(trial.left_out)
        began = time.monotonic()
        trial.lead_factor = self._lead_factor
        self._blocks += trial.pair(self._pairs, self._next_rows(), self._design.factors)
        self._pairs += 1
        self._pair_seconds = time.monotonic() - began
        if self._pairs >= self._look:
            self._judge()

    def _next_rows(self) -> Sequence[Row]:
        return self._design.next_pair(self._active, self._rng)

    def _one_by_one(self) -> Sequence[Row]:
        """Rows with one candidate each: the one with which a process dies."""
        names = [factor.name for factor in self._design.factors]
        return [tuple(int(name == racing) for name in names) for racing in self._racing()]

    def _judge(self) -> None:
        """Look at all blocks: hopeless candidates leave, and the choice may be clear."""
        factors = self._design.factors
        self._look = next_look(self._pairs)
        effects = self._effects()
        if effects.pairs < _FEWEST_KEPT * self._pairs:
            self._decided = True
            return
        verdict = race(effects, self._active, self._inside, factors)
        self._active -= {each.label for each in verdict.drop}
        self._active -= {name for name in self._beyond & set(effects.labels) if effects.speedup(name).high < 1.0}
        late = carry_over(self._blocks, factors)
        if late is not None and late.longer_lead:
            self._lead_factor = min(_LONGEST_LEAD, 2 * self._lead_factor)
        left = self._deadline - time.monotonic()
        self._quota = pairs_of_process(effects, self._pair_seconds, self._start_seconds, left)
        so_far = f"{self._pairs} pairs of blocks, {len(self._around.made)} processes"
        self._progress.detail(f"{so_far}: {self._best(effects)}")
        self._decided = verdict.stop or not self._racing()

    def _effects(self) -> Effects:
        return estimate(self._blocks, self._design.factors, noise=self._noise)

    def _best(self, effects: Effects) -> str:
        speedups = {name: effects.speedup(name) for name in effects.labels if name in self._techniques}
        best = sorted(speedups, key=lambda name: -speedups[name].estimate)[:3]
        return ", ".join(f"{name} {speedups[name].as_speedup()}" for name in best)

    def _racing(self) -> list[str]:
        return [each.name for each in self._design.factors if each.name in self._active and not each.placebo]

    def _chosen(self, names: Collection[str]) -> tuple[Chosen, ...]:
        """With their first settings, in the order of the catalogue."""
        return tuple(
            (name, each.candidates(self._found.facts)[0]) for name, each in self._techniques.items() if name in names
        )

    def _note(self, left_out: Collection[str]) -> None:
        self._left_out |= set(left_out)
        self._active -= set(left_out)
        self._around.leave(left_out)

    def _blame(self, around: Collection[str], on: Collection[str], reason: str) -> bool:
        """A process died with these on; whether another may go on: without the one, or to find out which it was."""
        if around and not on:  # before anything was switched
            self._around.leave(self._around.racing)  # each has a duel of its own
            return True
        suspects = [name for name in on if name in self._racing()]
        if len(suspects) == 1:
            self._failed[suspects[0]] = reason
            self._active.discard(suspects[0])
            return len(self._failed) < _MOST_FAILURES
        careful, self._careful = self._careful, True
        return bool(suspects) and not careful

    def _screened(self) -> Screened:
        screened = Screened(
            failed=self._failed,
            left_out=frozenset(self._left_out),
            pairs=self._pairs,
            processes=len(self._around.made),
            seconds=time.monotonic() - self._began,
            beyond=frozenset(self._beyond),
        )
        if not self._blocks or (within := self._effects()).pairs < max(_FEWEST_PAIRS, _FEWEST_KEPT * self._pairs):
            return screened
        spread = max(math.sqrt(self._found.spread().variance / 2), 1e-3)
        around = self._around.effects(self._blocks, self._design.factors, within, spread)
        screened = self._with(screened, within, self._design)
        return self._with(screened, around, self._around.design) if around else screened

    def _with(self, screened: Screened, effects: Effects, design: Design) -> Screened:
        """The same, and what these effects say."""
        out = self._failed.keys() | self._left_out
        names = [name for name in effects.labels if name in self._techniques and name not in out]
        believed = beliefs(effects)
        inside = [each for each in self._inside if each.label not in out]
        plan = choose(effects, inside, design.factors, believed=believed).plan
        partners = frozenset().union(*effects.interacting)
        # What gains only beside another is believed to gain nothing alone: of these the best company counts.
        idle = {name for name in names if believed.by_label[name].above < _HOPELESS and name not in partners}
        idle |= {name for name in partners & set(names) if believed.best[name] < _HOPELESS_BESIDE}
        return replace(
            screened,
            effects=(*screened.effects, effects),
            settings={**screened.settings, **dict(self._chosen(names))},
            choice=(*screened.choice, *plan),
            beliefs={**screened.beliefs, **{name: believed.by_label[name] for name in names}},
            speedups={**screened.speedups, **{name: effects.beside(name, plan) for name in names}},
            idle=frozenset(screened.idle) | (idle - set(plan)),
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
        able = (technique.switchable or technique.process_level) and technique.usual_start <= _LONGEST_START
        wanted = found.may_be_tried(technique) and "time" in technique.aims
        return wanted and able and not technique.compare_all and not technique.applies(found.facts)

    def rank(technique: Technique) -> tuple[bool, float]:
        return not found.contract.allows(technique.contract), -technique.usual_saving(found.facts)

    chosen: dict[str, Technique] = {}
    for technique in sorted(filter(suits, catalogue().values()), key=rank):
        if conflict(technique.name, chosen) is None:
            chosen[technique.name] = technique
    return {name: chosen[name] for name in catalogue() if name in chosen}
