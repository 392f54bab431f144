"""What the stages of a tune take, in seconds, as far as can be reckoned from what was seen so far."""

from __future__ import annotations

import statistics

from overdrive.core.contract import Contract
from overdrive.evidence.registration import LOOKS
from overdrive.proof.prover import Prover
from overdrive.trials.duel import Rules, pair_seconds, profile_steps, steps_after_costs
from overdrive.trials.sequential import blocks_seconds, in_turn
from overdrive.trials.warming import WARM_UP_STEPS
from overdrive.tuner.duel_runner import SCREENED, confirmation
from overdrive.tuner.findings import Findings

FACTORIAL_ROUNDS = 20  # blocks of every configuration that the contributions are made of
_FIELD_WARM_UP_SECONDS = 2.5
_FACTORIAL_BLOCK_SECONDS = 0.15  # or one step, where that takes longer
_PROCESS_SECONDS = 4.0  # that a process pair of a duel needs beside its start and its blocks
_MOST_PROMISED = 0.5


def hoped(promise: float) -> float:
    """Times as fast, of what promises to save this share of a step; never more than twice."""
    return 1 / (1 - min(promise, _MOST_PROMISED))


class Durations:
    """Each of one stage, were it to begin now."""

    def __init__(self, found: Findings, prover: Prover) -> None:
        self._found = found
        self._prover = prover

    def of_duel(self, rules: Rules) -> float:
        """What a duel of the whole plan takes by these rules, to its last look."""
        slow = self._plain_step()
        gain = max(1.0, self._found.gain())
        pair, looked = pair_seconds(slow, gain), profile_steps(slow)  # by the first pair
        both, blocks = slow + slow / gain, rules.looks_at(pair)[-1] * pair
        if self._found.control and self._found.control.sequential:
            rules, blocks, looked = in_turn(rules), blocks_seconds(slow, gain), looked + WARM_UP_STEPS
        elif rules.patient:
            looked += steps_after_costs(slow)
        return rules.processes * (self._beside_blocks(both) + blocks) + looked * both

    def of_confirmation(self, pairs: int) -> float:
        """By so many pairs of processes."""
        return self.of_duel(confirmation(pairs))

    def of_proof(self, level: Contract, promise: float, seeds: int = LOOKS[0]) -> float:
        """What the proof of a candidate of this level takes; a first one that is exact is proved in its duel.

        Args:
            seeds: to the look at so many, where it is a proof at `statistical`.
        """
        if level is Contract.EXACT:
            return 0.0
        gain = self._found.gain_in_proof() * hoped(promise)
        return self._prover.seconds_needed(level, self._found.quick_plain(), gain, seeds)

    def to_adopt(self, level: Contract, promise: float, start: float = 0.0) -> float:
        """What a screened candidate of this level takes: its duel, and the proof for which it would be the first.

        One that is exact is proved in its duel.

        Args:
            start: seconds that it adds to the start of a process.
        """
        duel = self.of_duel(SCREENED) + start
        return duel + self.of_proof(level, promise) + (start if level is not Contract.EXACT else 0.0)

    def of_rest(self) -> float:
        """Seconds for the proof of those that joined a statistical plan, should its own proof establish nothing."""
        joined = [each.joined for each in self._found.adopted if each.joined not in (None, Contract.STATISTICAL)]
        levels = sorted((each for each in joined if each), key=lambda level: level.rank)
        return self.of_rest_at(levels[-1]) if levels else 0.0

    def of_rest_at(self, level: Contract) -> float:
        """The same of what joins at this level. At `exact` a digest log more: those of the statistical proof were made
        under other threads; at `rounding` they tell where something rare happens, which saves one."""
        again = self._prover.trial_seconds() if level is Contract.EXACT else 0.0
        return self._prover.seconds_needed(level) + again

    def of_field(self, configurations: int) -> float:
        """What it takes to measure so many configurations side by side."""
        step = self._plain_step()
        step = (step + step / max(1.0, self._found.gain())) / 2  # some are as plain, some as the whole plan
        blocks = FACTORIAL_ROUNDS * max(_FACTORIAL_BLOCK_SECONDS, step)
        return configurations * (self.of_start() / 2 + _FIELD_WARM_UP_SECONDS + blocks)

    def of_steps(self, steps: int) -> float:
        """So many of the program, and of the plan."""
        return steps * self._plain_step() * (1 + 1 / max(1.0, self._found.gain()))

    def _plain_step(self) -> float:
        plain = self._found.of_plain()
        return plain.old_side.seconds_per_step if plain else 0.0

    def _beside_blocks(self, both: float) -> float:
        """Of a pair of processes, for starting, warming up and ending: as the duels so far had it.

        Reckoned before the first of them. Of `make demo`, 9 s for each pair of its confirmation, and 4.6 it took: 34 s
        of 150 were left over in the end, and three candidates that promised 8 to 11 % had had no duel.

        Args:
            both: seconds of a step of either side.
        """
        seen = [seconds for duel in self._found.duels() if duel.pairs for seconds in duel.beside]
        start = self.of_start()
        if seen:
            return max(statistics.median(seen), start / 2)
        return start + max(_PROCESS_SECONDS, WARM_UP_STEPS * both)

    def of_start(self) -> float:
        """Start-up of two processes, the program's own and one with all that is adopted, one after the other."""
        if self._found.control is None:
            return 0.0
        control = self._found.control.old_side.setup_seconds
        return control + max([control, *(each.duel.new_side.setup_seconds for each in self._found.adopted)])
