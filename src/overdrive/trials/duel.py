"""A duel: two live trials stepped in turn, in random order, block by block."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from overdrive.evidence.speed import Pair, Verdict, decided, speedup, verdict
from overdrive.facts import Facts
from overdrive.interval import Interval
from overdrive.trials.host import House, Trial
from overdrive.trials.order import Block, Ending, Order, Trace, TrialOver

# A block lasts this long on the faster side, so that timer and hand-over (about 50 us) vanish ...
BLOCK_SECONDS = 0.2
# ... unless the slower side then needed more than this: a gain that large is seen in shorter blocks too.
_LONGEST_BLOCK_SECONDS = 1.0
_SHORTEST_BLOCK_SECONDS = 0.02
_WARM_UP_SECONDS = 0.5
_WARM_UP_STEPS = 3  # at the least: the first steps build caches of their own
_PROFILE_STEPS = 8
_FEWEST_SECONDS = 20.0  # that any process is given for its first step, however small the budget
_FEWEST_PAIRS = 10
_SPARE_PAIRS = 6  # that a short program has room for: the next process may warm up longer than the last
# After this many pairs that all lose by more than a tenth, nobody needs to see the rest.
_HOPELESS_PAIRS = 5
_HOPELESS = -0.1
# A gain below this is fought for again by fresh processes: the place of code and data in memory alone
# has been seen to make a process a few per cent faster or slower for all its life.
CLEAR_GAIN = 1.10


def block_steps(fast: float, slow: float) -> int:
    """Training steps in a block, from the seconds of a step on the faster and on the slower side."""
    fast, slow = max(fast, 1e-6), max(slow, 1e-6)
    seconds = min(BLOCK_SECONDS, max(_SHORTEST_BLOCK_SECONDS, _LONGEST_BLOCK_SECONDS * fast / slow))
    return max(1, round(seconds / fast))


def pair_seconds(slow: float, gain: float) -> float:
    """How long one pair of blocks will take where the slower side needs `slow` seconds a step."""
    fast = slow / max(gain, 1.0)
    return block_steps(fast, slow) * (fast + slow)


@dataclass(frozen=True)
class Side:
    """What one side of a duel did in all its blocks."""

    seconds: float = 0.0
    steps: int = 0
    samples: float = 0.0
    setup_seconds: float = 0.0  # from process start to the first step done, shortest of its processes

    def add(self, block: Block) -> Side:
        return Side(
            self.seconds + block.seconds,
            self.steps + block.steps,
            self.samples + block.samples,
            self.setup_seconds,
        )

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / self.steps if self.steps else 0.0


@dataclass
class Duel:
    """The outcome of fighting `new` against `old`, as data."""

    old: Order
    new: Order
    pairs: list[Pair] = field(default_factory=list)
    verdict: Verdict = Verdict.INCONCLUSIVE
    interval: Interval | None = None
    old_side: Side = field(default_factory=Side)
    new_side: Side = field(default_factory=Side)
    old_trace: Trace | None = None
    new_trace: Trace | None = None
    old_facts: Facts | None = None
    new_facts: Facts | None = None
    ending: Ending | None = None  # why `new` could not fight (on), where it could not
    old_ending: Ending | None = None
    total_steps: int | None = None  # the program's length, where both came to its end

    def told(self) -> str:
        """Its interval for people; there must be one."""
        interval = self.interval
        assert interval is not None
        return f"{interval.estimate:.2f}x [{interval.low:.2f}, {interval.high:.2f}]"


@dataclass(frozen=True)
class Rules:
    """How long a duel goes on."""

    looks: tuple[int, ...] = (10, 20, 40)  # pairs per process pair after which it may be over
    processes: int = 1  # fresh process pairs, at least
    most_processes: int = 2
    patient: bool = False  # keep fighting though one side is hopeless (controls and confirmations)


def fight(
    house: House,
    old: Order,
    new: Order,
    rules: Rules,
    deadline: float,
    on_pair: Callable[[Duel], None] = lambda duel: None,
) -> Duel:
    """Duel until the outcome is clear, the rules say stop, or `deadline` (time.monotonic()) has come."""
    duel = Duel(old, new)
    size: int | None = None  # steps in a block, where the program's length dictates it
    process, most = 0, rules.most_processes
    while process < most:
        pace = _one_process_pair(house, duel, process, rules, deadline, size, on_pair)
        process += 1
        if duel.ending or duel.old_ending:
            if pace is None or pace.total_steps is None:
                break
            duel.total_steps = pace.total_steps
            # Both came to the program's end: a short one. Fresh processes, with blocks short enough for it.
            if size is None:
                most += 1
            size = max(1, (pace.total_steps - pace.warm_steps) // (_FEWEST_PAIRS + _SPARE_PAIRS))
            if len(duel.pairs) < _FEWEST_PAIRS and size * pace.step_seconds < _SHORTEST_BLOCK_SECONDS:
                duel.ending = Ending("ended", f"it is over after {pace.total_steps} steps, too few to measure")
                break
            duel.ending = duel.old_ending = None
        _judge(duel, rules)
        if time.monotonic() > deadline:
            break
        if not rules.patient and duel.verdict is Verdict.SLOWER:
            break
        if full_processes(duel) >= rules.processes and _is_over(duel, rules):
            break
    _judge(duel, rules)
    return duel


def full_processes(duel: Duel) -> int:
    """How many fresh process pairs gave enough pairs of blocks to count."""
    return sum(count >= _FEWEST_PAIRS for count in Counter(pair.process for pair in duel.pairs).values())


def _is_over(duel: Duel, rules: Rules) -> bool:
    if rules.patient:
        return _precise(duel.interval)
    if duel.verdict is Verdict.FASTER:
        assert duel.interval is not None
        return duel.interval.low > CLEAR_GAIN or len({pair.process for pair in duel.pairs}) > 1
    return True


def _precise(interval: Interval | None) -> bool:
    """Half-width within 1 %, or within a tenth of the gain, both in log-speedup."""
    if interval is None:
        return False
    half = math.log(interval.high / interval.low) / 2
    return half <= max(0.01, 0.1 * abs(math.log(interval.estimate)))


def _judge(duel: Duel, rules: Rules) -> None:
    pairs = duel.pairs
    if not rules.patient:
        # One or two processes cannot know how much processes differ. A selection takes them as they are
        # (its interval is of these processes); what is published comes from a confirmation with more.
        pairs = [replace(pair, process=0) for pair in pairs]
    if len(pairs) >= _HOPELESS_PAIRS:
        duel.interval = speedup(pairs)
        duel.verdict = verdict(duel.interval)
    if len(duel.pairs) < _FEWEST_PAIRS and duel.verdict is Verdict.FASTER:
        duel.verdict = Verdict.INCONCLUSIVE


@dataclass(frozen=True)
class _Pace:
    warm_steps: int
    step_seconds: float  # of the faster side
    slower_step_seconds: float
    total_steps: int | None = None

    @property
    def block_steps(self) -> int:
        return block_steps(self.step_seconds, self.slower_step_seconds)


def _one_process_pair(
    house: House,
    duel: Duel,
    process: int,
    rules: Rules,
    deadline: float,
    short_block: int | None,
    on_pair: Callable[[Duel], None],
) -> _Pace | None:
    chance = random.Random(1000 * process + len(duel.new.techniques))
    old, new = Trial(house, duel.old), Trial(house, duel.new)
    pace: _Pace | None = None
    until = max(deadline, time.monotonic() + _FEWEST_SECONDS)
    try:
        with _blame(duel, new=False):
            duel.old_side = _with_setup(duel.old_side, old.first_step(until))
        with _blame(duel, new=True):
            duel.new_side = _with_setup(duel.new_side, new.first_step(until))
        pace = _warm_up(duel, old, new, process)
        size = short_block or pace.block_steps
        mine: list[Pair] = []
        while True:
            first = chance.random() < 0.5
            blocks: dict[bool, Block] = {}
            for is_old in (first, not first):
                with _blame(duel, new=not is_old):
                    blocks[is_old] = (old if is_old else new).run(size)
            duel.old_side = duel.old_side.add(blocks[True])
            duel.new_side = duel.new_side.add(blocks[False])
            pair = Pair(process, size, blocks[True].seconds, blocks[False].seconds, first)
            mine.append(pair)
            duel.pairs.append(pair)
            on_pair(duel)
            if time.monotonic() > deadline or len(mine) >= rules.looks[-1]:
                break
            if rules.patient:
                if len(mine) >= rules.looks[0]:
                    break
            elif _hopeless(mine) or (len(mine) in rules.looks and decided(mine, rules.looks) is not None):
                break
        with _blame(duel, new=True):
            duel.new_trace = new.trace()
            duel.new_facts = new.facts() if process == 0 else duel.new_facts
        with _blame(duel, new=False):
            duel.old_trace = old.trace()
    except TrialOver as over:
        if over.ending.kind == "ended" and over.report.get("steps"):
            pace = _both_to_the_end(duel, old, new, over, pace)
    finally:
        old.stop()
        new.stop()
    return pace


def _warm_up(duel: Duel, old: Trial, new: Trial, process: int) -> _Pace:
    """Step both until they are at their usual pace; the same number of steps on both sides."""
    seconds = [0.0, 0.0]
    last = [0.0, 0.0]
    steps, chunk = 0, _WARM_UP_STEPS
    while steps < 2 * _WARM_UP_STEPS or max(seconds) < _WARM_UP_SECONDS:
        for index, trial in enumerate((old, new)):
            with _blame(duel, new=trial is new):
                block = trial.run(chunk)
            seconds[index] += block.seconds
            last[index] = block.seconds / block.steps
        steps += chunk
        chunk = min(steps, 64)
    if process == 0:
        for trial in (old, new):
            with _blame(duel, new=trial is new):
                trial.run(_PROFILE_STEPS, profile=True)
        with _blame(duel, new=False):
            duel.old_facts = old.facts()
        steps += _PROFILE_STEPS
    return _Pace(steps + 1, min(last), max(last))


def _both_to_the_end(duel: Duel, old: Trial, new: Trial, over: TrialOver, pace: _Pace | None) -> _Pace | None:
    """The program is over on one side; let the other side come to its end too, and keep both traces."""
    reports = {duel.ending is not None: over.report}
    missing = old if duel.ending is not None else new
    try:
        with _blame(duel, new=missing is new):
            missing.run(1_000_000_000)
    except TrialOver as other:
        if other.ending.kind == "ended" and other.report.get("steps"):
            reports[missing is new] = other.report
    duel.new_trace = Trace.from_report(reports[True]) if True in reports else None
    duel.old_trace = Trace.from_report(reports[False]) if False in reports else None
    if pace is None or duel.old_trace is None:
        return pace
    return replace(pace, total_steps=duel.old_trace.steps)


def _hopeless(pairs: list[Pair]) -> bool:
    return len(pairs) >= _HOPELESS_PAIRS and all(
        math.log(pair.seconds_a / pair.seconds_b) < _HOPELESS for pair in pairs
    )


def _with_setup(side: Side, first: Block) -> Side:
    shortest = min(side.setup_seconds or first.seconds, first.seconds)
    return Side(side.seconds, side.steps, side.samples, shortest)


class _blame:
    """Notes on the duel which side a `TrialOver` came from, and lets it pass."""

    def __init__(self, duel: Duel, new: bool) -> None:
        self._duel = duel
        self._new = new

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TrialOver):
            if self._new:
                self._duel.ending = error.ending
            else:
                self._duel.old_ending = error.ending
