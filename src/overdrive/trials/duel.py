"""A duel between two trial specs, as data: what was measured of each side, and what may be said of it."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from overdrive.core.contract import Contract
from overdrive.core.exchanged import Exchanged
from overdrive.core.facts import Facts
from overdrive.core.interval import Interval
from overdrive.core.records import Block, ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.neighbours import counted
from overdrive.evidence.speed import Pair, Verdict
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.trial import Trial
from overdrive.trials.warming import WARM_UP_STEPS

# A block lasts this long on the faster side, so that timer and hand-over (about 50 us) vanish ... On a shared machine,
# whose pace wanders within seconds, the same time in blocks of 0.1 s gives intervals 1.2 to 2 times as narrow as in
# blocks of 0.2 s; below that little is gained.
BLOCK_SECONDS = 0.1
# ... unless the slower side then needed more than this: a gain that large is seen in shorter blocks too.
_LONGEST_BLOCK_SECONDS = 0.5
SHORTEST_BLOCK_SECONDS = 0.02
# The other side has left the caches cold: that costs some 2.5 ms at the beginning of a block, whatever its length.
_LEAD_FROM = 4  # calls in a block, from which on another one, before it, is made and not timed
LONGEST_LOOK_SECONDS = 12.0  # of one process pair's blocks; beyond that only for the first look
SLOW_STEP = 0.3  # seconds, beside which what a fork or a switch leaves behind is little: some milliseconds
_PROFILE_STEPS, _FEWEST_PROFILE_STEPS, _PROFILE_SECONDS = 8, 3, 3.0  # fewer of a program whose steps take long
TO_THE_END = 1_000_000_000  # steps, more than any program makes
FEWEST_SECONDS = 20.0  # that any process is given for its first step, however small the budget
FEWEST_PAIRS = 10  # of a process, for it to count as one ...
_FEWEST_LONG_PAIRS = 6  # ... and where these take longer than 12 s: of a step of 2 s they would take 40.
_ENOUGH_OF_LONG = 9.0  # seconds that so few take at the least: what they will take is reckoned by warming up
# After this many pairs that all lose by more than a tenth, nobody needs to see the rest. With 5, one second of a
# neighbour's noise has called a program slower than itself.
_HOPELESS_PAIRS = 10
_HOPELESS = -0.1


def block_steps(fast: float, slow: float) -> int:
    """Training steps in a block, from the seconds of a step on the faster and on the slower side."""
    fast, slow = max(fast, 1e-6), max(slow, 1e-6)
    seconds = min(BLOCK_SECONDS, max(SHORTEST_BLOCK_SECONDS, _LONGEST_BLOCK_SECONDS * fast / slow))
    return max(1, round(seconds / fast))


def profile_steps(step_seconds: float) -> int:
    """How many steps to look into."""
    fewest = _FEWEST_PROFILE_STEPS if step_seconds < _PROFILE_SECONDS / _FEWEST_PROFILE_STEPS else 1
    return max(fewest, min(_PROFILE_STEPS, round(_PROFILE_SECONDS / max(step_seconds, 1e-6))))


def steps_after_costs(step_seconds: float) -> int:
    """Untimed steps after the fork that measures what data costs: it leaves the memory write-protected for a while."""
    return WARM_UP_STEPS if step_seconds < SLOW_STEP else 1


def lead_steps(size: int, call: int = 1) -> int:
    """Untimed steps before a block of `size`; `call`: the steps between which a trial cannot stand still."""
    return call if size >= _LEAD_FROM * call else 0


def pair_seconds(slow: float, gain: float) -> float:
    """How long one pair of blocks will take where the slower side needs `slow` seconds a step."""
    fast = slow / max(gain, 1.0)
    size = block_steps(fast, slow)
    return (lead_steps(size) + size) * (fast + slow)


@dataclass(frozen=True)
class Side:
    """What one side of a duel did in all its blocks."""

    seconds: float = 0.0
    steps: int = 0
    samples: float = 0.0
    setups: tuple[float, ...] = ()  # seconds of each of its processes, from its start to its first step done
    launches: tuple[float, ...] = ()  # ... and the part of these that was over when the program's code began
    installs: tuple[float, ...] = ()  # ... and the part after that in which we were put in place
    peak_memory: int = 0  # bytes, the most of its processes; 0: not known
    end_seconds: float = 0.0  # that Python took to end one of its processes; 0: not known
    exchanged: Exchanged | None = None  # between its ranks, in all its blocks; None where it is one process

    def add(self, block: Block) -> Side:
        more = block.exchanged
        return replace(
            self,
            seconds=self.seconds + block.seconds,
            steps=self.steps + block.steps,
            samples=self.samples + block.samples,
            peak_memory=max(self.peak_memory, block.peak_memory),
            exchanged=(self.exchanged or Exchanged()).plus(more) if more else self.exchanged,
        )

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / self.steps if self.steps else 0.0

    @property
    def setup_seconds(self) -> float:
        """Of a usual process that starts by itself, as the first of what is published does.

        Those that follow start two at a time, and delay each other: a public RNN's took 3.7 s so, and 1.7 s alone. The
        first may fill a cache or compile, for all that follow.
        """
        return _of_one_alone(self.setups)

    @property
    def first_step_seconds(self) -> float:
        """The same, from the beginning of the program's code: a trial's process gets there by a way of its own."""
        return self._without(self.launches)

    @property
    def own_first_step_seconds(self) -> float:
        """The same, of a program beside which there is nothing of ours.

        Each trial patches the framework once that is imported, as `overdrive run` does and `python` does not. Of a
        public VAE that took 0.3 s of 2.7, and whole runs of it, 9 s long, gained so much less than was stated.
        """
        return self._without(self.launches, self.installs)

    def _without(self, *parts: tuple[float, ...]) -> float:
        noted = [(0.0,) * (len(self.setups) - len(each)) + each for each in parts]  # a checkpoint of before has none
        return _of_one_alone([setup - math.fsum(rest) for setup, *rest in zip(self.setups, *noted, strict=True)])


def _of_one_alone(seconds: Sequence[float]) -> float:
    return min(seconds[0], statistics.median_low(seconds)) if seconds else 0.0


@dataclass
class Duel:
    """The outcome of `new` against `old`, as data."""

    old: TrialSpec
    new: TrialSpec
    pairs: list[Pair] = field(default_factory=list)
    verdict: Verdict = Verdict.INCONCLUSIVE
    interval: Interval | None = None
    old_side: Side = field(default_factory=Side)
    new_side: Side = field(default_factory=Side)
    old_trace: Trace | None = None
    new_trace: Trace | None = None
    old_facts: Facts | None = None
    new_facts: Facts | None = None
    exit_reason: ExitReason | None = None  # why `new` could not start or go on, where it could not
    old_exit_reason: ExitReason | None = None
    total_steps: int | None = None  # the program's length, where both came to its end
    sequential: bool = False  # whole processes in turn: two at once did not fit into the memory
    published: bool = False  # by the rules of a confirmation
    beside: list[float] = field(default_factory=list)  # seconds of each pair of processes: of no block, and no look
    looked: float = 0.0  # seconds in which its first pair was looked into: what it does, what an item of its data costs

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Its processes are looked into meanwhile."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.looked += time.monotonic() - began

    def kept(self) -> list[Pair]:
        """The pairs that what is said of speed comes from: see `evidence.neighbours`.

        Of what is published they are those of whole processes, as soon as there are several: one that the deadline cut
        short after two blocks would count as much as any other. Of the example two at 1.71x and 1.75x, and a single
        pair of blocks of the third, came to 1.21x [0.25, 5.68].
        """
        kept = counted(self.pairs)
        whole = of_full_processes(kept) if self.published or self.sequential else []
        return whole if full_processes(whole) > 1 else kept

    def describe(self) -> str:
        """Its speed-up and the interval, as text; there must be one."""
        assert self.interval is not None
        return self.interval.as_speedup()


@dataclass(frozen=True)
class Rules:
    """How long a duel goes on."""

    looks: tuple[int, ...] = (10, 20, 40, 80)  # pairs per process pair after which it may be over
    processes: int = 1  # fresh process pairs, at least
    most_processes: int = 2
    patient: bool = False  # go on to the last look, though one side is hopeless (controls and confirmations)
    selects: bool = False  # a confirmation of what had no duel before: it ends where nothing is to be confirmed
    alpha: float = 0.05  # what is published is FASTER where the interval of 1 - alpha is

    @property
    def chooses(self) -> bool:
        """Whether it is to tell if something is taken at all."""
        return self.selects or not self.patient

    def looks_at(self, pair_seconds: float) -> tuple[int, ...]:
        """Those that there is time for; the first in any case, or as many as make a process."""
        later = (look for look in self.looks[1:] if look * pair_seconds < LONGEST_LOOK_SECONDS)
        within = max(_FEWEST_LONG_PAIRS, math.ceil(LONGEST_LOOK_SECONDS / max(pair_seconds, 1e-6)))
        return min(self.looks[0], within), *later


def are_enough(pairs: Sequence[Pair]) -> bool:
    """Whether so many pairs of blocks make a process."""
    if len(pairs) < _FEWEST_LONG_PAIRS or len(pairs) >= FEWEST_PAIRS:
        return len(pairs) >= FEWEST_PAIRS
    return math.fsum(pair.seconds_a + pair.seconds_b for pair in pairs) >= _ENOUGH_OF_LONG


def of_full_processes(pairs: Iterable[Pair]) -> list[Pair]:
    """Those of fresh process pairs that gave enough of them to count."""
    processes: dict[int, list[Pair]] = {}
    for pair in pairs:
        processes.setdefault(pair.process, []).append(pair)
    return [pair for each in processes.values() if are_enough(each) for pair in each]


def full_processes(pairs: Iterable[Pair]) -> int:
    """How many fresh process pairs gave enough pairs of blocks to count."""
    return len({pair.process for pair in of_full_processes(pairs)})


def hopeless(pairs: list[Pair]) -> bool:
    """Whether the new side loses all of them, and clearly."""
    return len(pairs) >= _HOPELESS_PAIRS and all(
        math.log(pair.seconds_a / pair.seconds_b) < _HOPELESS for pair in pairs
    )


def comparable(duel: Duel, old: Block, new: Block) -> float:
    """The new side's seconds: for as many steps, or for as many samples where the training itself is changed.

    A side that makes several steps in a call cannot stand still between them: its block is longer than was asked for.
    Where steps have no batch, as those of reinforcement learning, for as many calls of models: after other rounding an
    episode is soon another, of another length. A public actor-critic was "1.72 times as fast" for shorter episodes.
    """
    of_old, of_new = in_a_step((old, new), changes_training(duel.new), bool(old.samples or new.samples))
    return new.seconds * (old.steps / new.steps) * (of_old / of_new)


def in_a_step(blocks: Sequence[Block], by_sample: bool, batches: bool) -> list[float]:
    """How much there is in a step of each, for blocks to be compared by; 1 in each where not all have any.

    Args:
        by_sample: samples are what counts.
        batches: steps of the program have batches; else calls of models in training count.
    """
    amounts = [block.samples if by_sample else 0 if batches else block.training_calls for block in blocks]
    return [amount / block.steps if all(amounts) else 1.0 for amount, block in zip(amounts, blocks, strict=True)]


def changes_training(spec: TrialSpec) -> bool:
    """Whether a technique of it is of the contract open, such as another batch size: a step is no measure then."""
    return any(catalogue()[name].contract is Contract.OPEN for name, _ in spec.techniques)


def nothing_new(duel: Duel, new: Trial | Trace) -> bool:
    """Whether all that the new side has and the old has not was left out: nothing is there to be measured."""
    added = set(new_names(duel))
    return bool(added) and added <= new.left_out.keys()


def new_names(duel: Duel) -> tuple[str, ...]:
    """The techniques that the new side has and the old one has not."""
    old = {name for name, _ in duel.old.techniques}
    return tuple(name for name, _ in duel.new.techniques if name not in old)
