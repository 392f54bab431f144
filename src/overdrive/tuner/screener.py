"""Screens candidates: all that can be switched are on and off at random in live trials, and each block tells of all.

What has to be there before a process starts is on and off from process to process, in pairs of a row and its mirror
image; each process carries the switching of the others inside. What is found decides which candidates make the plan
to begin with, which get a duel, and in which order: one that does nothing here needs none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from overdrive.core.contract import Contract
from overdrive.core.json_data import from_json, to_json
from overdrive.core.records import TrialOver
from overdrive.core.settings import Chosen
from overdrive.core.units import several
from overdrive.evidence.screening import (
    Alternative,
    Design,
    Effects,
    Observation,
    Row,
    carry_over,
    estimate,
    labels_of,
    learned,
    next_look,
    on_in,
    on_off,
    pairs_of_process,
    race,
)
from overdrive.trials.duel import FEWEST_SECONDS, SLOW_STEP
from overdrive.trials.screen import ScreeningTrial, failed
from overdrive.tuner.duel_runner import DuelRunner
from overdrive.tuner.findings import Findings
from overdrive.tuner.process_rows import WANTED, ProcessRows
from overdrive.tuner.racers import Racers
from overdrive.tuner.schedule import Schedule
from overdrive.tuner.screened import Gain, Screened
from overdrive.tuner.switchable import affordable, in_turns, that_go_together

_LEAST_SECONDS = 20.0  # below which nothing can be said of a dozen candidates
_PLACEBOS = 3
_FEWEST_PAIRS = 8  # with which anything is said at all
_FEWEST_OF_PROCESS = 4  # pairs of blocks
_WARM_UP_SECONDS = 2.5
# Probability of being worth it that what distinguishes processes must have: nothing later would tell it from luck.
_SURE = 0.98
_LONGEST_LEAD = 8  # times the usual untimed steps before a block
_USUAL_NOISE = 0.05  # standard deviation of a block's log time, where the control could not tell


@dataclass(frozen=True)
class _State:
    """How far a screening has come."""

    within: tuple[str, ...]
    around: tuple[str, ...]
    blocks: tuple[Observation, ...]
    made: tuple[Row, ...]
    active: tuple[str, ...]
    racing: tuple[str, ...]  # of `around`
    failed: Mapping[str, str]
    pairs: int
    over: bool
    apart: tuple[str, ...] = ()  # that are not screened, since they died together
    absent: Mapping[str, str] = field(default_factory=dict)  # that left themselves out, with the reason


class Screener:
    """Screens a program that has no plan yet, once."""

    def __init__(
        self, found: Findings, duels: DuelRunner, schedule: Schedule, elsewhere: Mapping[str, Sequence[Gain]]
    ) -> None:
        """`elsewhere`: what techniques gained in other programs."""
        self._found = found
        self._duels = duels
        self._progress = duels.progress
        self._began = time.monotonic()
        self._schedule = schedule
        self._deadline = schedule.screening_ends(self._began)
        self._start_seconds = _WARM_UP_SECONDS + (found.control.old_side.setup_seconds if found.control else 0.0)
        self._rng = np.random.default_rng(0)
        techniques = that_go_together(found)
        stiff = [each for each in techniques.values() if each.process_level]
        processes = (self._deadline - self._began) / self._start_seconds
        self._around = ProcessRows(affordable(stiff, processes, found), self._rng)
        within = [name for name, each in techniques.items() if not each.process_level]
        self._techniques = {name: each for name, each in techniques.items() if name in {*within, *self._around.racing}}
        self._beyond = {name for name, each in self._techniques.items() if not found.contract.allows(each.contract)}
        self._inside = [
            Alternative(name, each.contract, prior=learned(elsewhere.get(name, ())))
            for name, each in self._techniques.items()
            if name not in self._beyond
        ]
        placebos = [on_off(f"placebo {number}", placebo=True) for number in range(1, _PLACEBOS + 1)]
        self._design = Design([*in_turns(within), *placebos])
        self._racers = Racers(self._design, self._around)
        self._blocks: list[Observation] = []
        self._pairs = 0
        self._look = self._quota = next_look(0)  # pairs: of all at the next look, and of a process
        self._pair_seconds = 0.0
        self._lead_factor = 1
        self._slow = False  # its steps
        self._decided = False  # nothing more is to be learned of what is switched within processes
        self._noise = math.sqrt(found.spread().block_variance / 2) or _USUAL_NOISE

    def run(self) -> Screened:
        """Nothing is in it where there is too little to screen, or no time."""
        found = self._found
        if len(self._inside) < 2 or found.wanted() != "time" or found.adopted:
            return Screened()
        if self._deadline - self._began < self._least_seconds() and not self._duels.checkpoint.screening():
            return Screened()
        self._progress.stage(f"screening: {len(self._techniques)} candidates switched on and off in live trials")
        over = self._go_on()
        while not over and self._time_for_a_process() and (self._racers.racing() or self._around.racing):
            over = not self._process()
            self._keep()
        self._keep(over=True)
        screened = self._screened()
        self._tell(screened)
        return screened

    def _least_seconds(self) -> float:
        """With less it would end before anything is said: of steps of 5 s it came to 4 of 8 pairs in its minute."""
        step = self._found.control.old_side.seconds_per_step if self._found.control else 0.0
        return max(_LEAST_SECONDS, self._start_seconds + 2 * _FEWEST_PAIRS * step)

    def _time_for_a_process(self) -> bool:
        """Whether one more would come to its first pair: the first is tried in any case."""
        return time.monotonic() + (self._start_seconds if self._blocks else 0.0) < self._deadline

    def _process(self) -> bool:
        """One process more; whether another is wanted."""
        number = len(self._around.made)
        around = self._around.next_names()
        spec = self._found.spec(self._chosen([*around, *self._racers.racing()]))
        trial = ScreeningTrial(self._duels.pool, spec, number, self._began)
        before = self._pairs
        try:
            until = max(self._deadline, time.monotonic() + FEWEST_SECONDS)
            rows = self._racers.one_by_one() or self._next_rows()
            self._slow = trial.warm_up(rows, self._design.factors, until) > SLOW_STEP
            self._look = min(self._look, next_look(self._pairs, self._slow))
            self._start_seconds = trial.start_seconds
            while not self._enough(self._pairs - before) and time.monotonic() < self._deadline:
                self._pair(trial)
            return self._wanted()
        except TrialOver as ended:
            if failed(ended) is None:  # the program came to its end: another process goes on
                return self._pairs > before and self._wanted()
            if ended.exit_reason.kind == "late":  # no candidate is to blame, and the time is over
                return False
            lived = [on_in(block.row, self._design.factors) for block in self._blocks]
            return self._racers.blame(around, trial.on, str(ended.exit_reason), lived)
        finally:
            self._racers.leave(trial.left_out)
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
        self._racers.leave(trial.left_out)
        began = time.monotonic()
        # Beside a slow step what a switch leaves behind is little: untimed steps would take half of the time.
        trial.lead_factor = self._lead_factor // 2 if self._slow else self._lead_factor
        self._blocks += trial.pair(self._pairs, self._next_rows(), self._design.factors)
        self._pairs += 1
        self._pair_seconds = time.monotonic() - began
        if self._pairs >= self._look:
            self._judge()

    def _next_rows(self) -> Sequence[Row]:
        return self._design.next_pair(self._racers.active, self._rng)

    def _judge(self) -> None:
        """Look at all blocks: hopeless candidates leave, and the choice may be clear."""
        factors = self._design.factors
        self._look = next_look(self._pairs, self._slow)
        effects = self._effects()
        active = self._racers.active
        verdict = race(effects, active, self._inside, factors)
        active -= verdict.drop
        active -= {name for name in self._beyond & set(effects.labels) if effects.speedup(name).high < 1.0}
        late = carry_over(self._blocks, factors)
        if late is not None and late.longer_lead:
            self._lead_factor = min(_LONGEST_LEAD, 2 * self._lead_factor)
        self._leave_time_for_seeds(verdict.plan, effects)
        left = self._deadline - time.monotonic()
        self._quota = pairs_of_process(effects, self._pair_seconds, self._start_seconds, left)
        so_far = f"{self._pairs} pairs of blocks, {several(len(self._around.made), 'process', 'processes')}"
        # Of those that left themselves out only the prior is known.
        shown = self._techniques.keys() - self._racers.left_out.keys()
        speedups = {name: effects.speedup(name) for name in effects.labels if name in shown}
        self._progress.candidates(so_far, speedups)
        self._decided = verdict.stop or not self._racers.racing()
        self._keep()

    def _leave_time_for_seeds(self, plan: Collection[str], effects: Effects) -> None:
        """What is chosen by now may need a long proof."""
        loose = [name for name in plan if self._techniques[name].contract is Contract.STATISTICAL]
        if loose:
            saved = 1 - 1 / math.prod(effects.speedup(name).estimate for name in loose)
            ends = self._schedule.screening_ends(self._began, Contract.STATISTICAL, saved)
            self._deadline = min(self._deadline, ends)

    def _keep(self, over: bool = False) -> None:
        """What a tune that is broken off goes on from."""
        within, racers = labels_of(self._design.factors), self._racers
        state = _State(
            within,
            labels_of(self._around.design.factors),
            tuple(self._blocks),
            tuple(self._around.made),
            tuple(name for name in within if name in racers.active),
            tuple(self._around.racing),
            racers.failed,
            self._pairs,
            over,
            tuple(racers.apart),
            racers.left_out,
        )
        self._duels.checkpoint.remember_screening(to_json(state))

    def _go_on(self) -> bool:
        """Go on where a tune that was broken off stood; whether its screening was over."""
        known = self._duels.checkpoint.screening()
        state = from_json(_State, known) if known else None
        if state is None or state.within != labels_of(self._design.factors):
            return False
        if state.around != labels_of(self._around.design.factors):
            return False
        self._progress.outcome("(known in part from a tune that was broken off)")
        self._blocks, self._around.made = list(state.blocks), list(state.made)
        self._around.racing, self._pairs = list(state.racing), state.pairs
        racers = self._racers
        racers.active, racers.failed = set(state.active), dict(state.failed)
        racers.left_out, racers.apart = dict(state.absent), set(state.apart)
        self._look = self._quota = next_look(self._pairs)
        if len(self._around.made) % 2:  # the other half of this pair of processes is not to be had any more
            self._around.made.append((0,) * len(self._around.design.factors))
        self._began -= max((block.at for block in self._blocks), default=0.0)  # what comes is later
        return state.over

    def _effects(self) -> Effects:
        return estimate(self._blocks, self._design.factors, noise=self._noise)

    def _chosen(self, names: Collection[str]) -> tuple[Chosen, ...]:
        """With their first settings, in the order of the catalogue."""
        return tuple(
            (name, each.candidates(self._found.facts)[0]) for name, each in self._techniques.items() if name in names
        )

    def _screened(self) -> Screened:
        screened = Screened(
            failed=self._racers.failed,
            left_out=self._racers.left_out,
            pairs=self._pairs,
            processes=len(self._around.made),
            seconds=time.monotonic() - self._began,
            disturbed=len({block.pair for block in self._blocks if block.disturbed}),
            beyond=frozenset(self._beyond),
        )
        if not self._blocks or (within := self._effects()).pairs < _FEWEST_PAIRS:
            return screened
        runs = self._around.runs(self._blocks, self._design.factors, within)
        around = None
        for _ in range(2):  # how much processes differ shows when their effects are taken off
            around = self._around.effects(runs, max(math.sqrt(self._found.spread().variance / 2), 1e-3))
            self._found.processes_vary(self._around.variance(runs, around))
        settings = dict(self._chosen(self._techniques.keys() - self._racers.apart))
        inside = [each for each in self._inside if each.label in settings]
        screened = screened.taken_in(within, self._design.factors, inside, settings)
        if around is not None:
            screened = screened.taken_in(around, self._around.design.factors, inside, settings, _SURE)
        if not screened.busy():  # what a neighbour had a part in is no knowledge of the next program
            self._duels.checkpoint.remember_gains(screened.gains())
        return screened

    def _tell(self, screened: Screened) -> None:
        self._progress.outcome(screened.sentence())
        beyond = screened.beyond_the_contract()
        absent = [f"{name} left itself out beside the others: {why}" for name, why in screened.absent().items()]
        for sentence in (*absent, *beyond):
            self._progress.outcome(sentence)
        self._found.note(*beyond)
