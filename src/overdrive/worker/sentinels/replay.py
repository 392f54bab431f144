"""One step that is made again, from its fork to what it says.

How a step is compared is a conversation: a generator that yields the next `Way` in which the step is to be made, is
sent what it came to, and returns a `Verdict`. It begins before the program's own step is over, which is `mine` by the
time that the first answer comes.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from overdrive.core.contract import Contract
from overdrive.evidence.sentinels import DISTURBED, Doubt, StepSums, Values, distance, is_plainly_rounding
from overdrive.worker.sentinels.processes import CopyResult, ForkServer, Repetition

_MOST_SUSPECTS = 6  # techniques that are tried one by one


@dataclass(frozen=True)
class Picture:
    """What a step came to: hashes of all, and elements of what is told in numbers; either only where it is needed."""

    where: str  # the step was looked at
    losses: tuple[float, ...]
    chance: str  # a digest of the random states
    bits: Mapping[str, str] = field(default_factory=dict)
    values: Values = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """For JSON. What is not finite comes through, as it would not as text everywhere."""
        values = {name: each.astype(np.float32).tobytes().hex() for name, each in self.values.items()}
        losses = [loss.hex() for loss in self.losses]
        return {"where": self.where, "losses": losses, "chance": self.chance, "bits": self.bits, "values": values}

    @classmethod
    def of_plain(cls, told: Mapping[str, Any]) -> Picture:
        values = {name: np.frombuffer(bytes.fromhex(each), np.float32) for name, each in told["values"].items()}
        losses = tuple(map(float.fromhex, told["losses"]))
        return cls(told["where"], losses, told["chance"], told["bits"], values)


@dataclass(frozen=True)
class StepVerdict:
    """`difference`: the first thing that came out otherwise, in words; "" where nothing did. `unlike`: the same of the
    step made again as it was: then a forked process computes otherwise, and nothing can be said. `certain`: this one
    step alone shows that all is well; `doubtful`: it speaks against it, but not enough."""

    difference: str = ""
    culprits: Sequence[str] = ()
    unlike: str = ""
    certain: bool = False
    doubtful: bool = False


Conversation: TypeAlias = Generator[Repetition, Picture, StepVerdict]


class NotCompared(Exception):
    """Nothing can be said; the message is the reason."""


@dataclass
class SentinelHistory:
    """What is known from the sentinels before."""

    doubt: Doubt = field(default_factory=Doubt)
    sums: StepSums = field(default_factory=StepSums)


class SentinelReplay:
    """Compares the program's step with copies of it, and orders more of them as long as they are needed.

    Attributes:
        fork_server: of the copies; None in these.
        levels: of the techniques that are switched off in copies.
        mine: what the program came to; None until its step ends.
        verdict: once `look` says so; None where nothing can be said, for the reason `failed`.
    """

    def __init__(self, levels: Mapping[str, Contract], memory: SentinelHistory, step: int) -> None:
        """`levels`: of the techniques that can be switched off, what they are to keep."""
        self.fork_server: ForkServer | None = None
        self.step = step
        self.mine: Picture | None = None
        self.verdict: StepVerdict | None = None
        self.failed = ""
        self.in_program = 0.0  # seconds that it took the program
        self.levels = levels
        loosest = max(levels.values(), key=lambda level: level.rank)
        exact = tuple(name for name in levels if levels[name] is Contract.EXACT)
        self.needs_bits, self.needs_values = bool(exact), loosest is not Contract.EXACT
        self._memory = memory
        self._conversation = self._all(exact, loosest)
        self.first = next(self._conversation)

    def look(self) -> bool:
        """Take in what was told; whether all is known."""
        if self.failed:
            return True
        if self.mine is None or self.fork_server is None:
            return False
        told = self.fork_server.told()
        if told is None:
            self.failed = "the processes in which it was made ended"
            return True
        return any(self._take(each) for each in told)

    def _take(self, told: CopyResult) -> bool:
        assert self.mine is not None and self.fork_server is not None
        try:
            if told.failed:
                raise NotCompared(told.failed)
            self.fork_server.order(self._conversation.send(self._comparable(Picture.of_plain(told.found))))
            return False
        except StopIteration as end:
            self.verdict = end.value
        except NotCompared as reason:
            self.failed = str(reason)
        return True

    def _comparable(self, picture: Picture) -> Picture:
        assert self.mine is not None
        if not self.mine.losses:
            raise NotCompared("no loss was sent backward in it")
        if picture.where != self.mine.where or len(picture.losses) != len(self.mine.losses):
            raise NotCompared("it took another way")
        return picture

    def _all(self, exact: Sequence[str], loosest: Contract) -> Conversation:
        """What is exact is so beside all others, as in its duel; then all together, as in the plan's proof."""
        verdict = StepVerdict(certain=True)
        if exact:
            verdict = yield from self._in_bits(exact)
        if verdict.difference or verdict.unlike or loosest is Contract.EXACT:
            return verdict
        compare = self._within_rounding if loosest is Contract.ROUNDING else self._on_average
        return (yield from compare())

    def _in_bits(self, exact: Sequence[str]) -> Conversation:
        plain = yield Repetition(tuple(exact))
        difference = first_difference(self._mine, plain)
        if not difference:
            return StepVerdict(certain=True)
        again = yield Repetition(())
        if unlike := first_difference(self._mine, again):
            return StepVerdict(unlike=unlike)
        for name in _suspects(exact):
            alone = yield Repetition((name,))
            if not first_difference(plain, alone):
                return StepVerdict(difference, (name,))
        return StepVerdict(difference, exact)

    def _within_rounding(self) -> Conversation:
        plain = yield Repetition(tuple(self.levels))
        if is_plainly_rounding(self._mine.values, plain.values):
            self._memory.doubt.take(None)
            return StepVerdict(certain=True)
        disturbed = []
        for number in range(DISTURBED):
            made = yield Repetition(tuple(self.levels), seed=1 + DISTURBED * self.step + number)
            disturbed.append(made.values)
        found = distance(self._mine.values, plain.values, disturbed)
        if not self._memory.doubt.take(found):
            return StepVerdict(certain=not found.worst, doubtful=found.worst)
        again = yield Repetition(())
        if not _same_values(self._mine, again):
            return StepVerdict(unlike=found.name)
        for name in _suspects(tuple(self.levels)):
            alone = yield Repetition((name,))
            nearer = distance(alone.values, plain.values, disturbed)
            if not (nearer.worst or nearer.wild):
                return StepVerdict(found.name, (name,))
        return StepVerdict(found.name, tuple(self.levels))

    def _on_average(self) -> Conversation:
        plain = yield Repetition(tuple(self.levels))
        mine = self._mine
        losses = float(np.mean(mine.losses)), float(np.mean(plain.losses))
        same_chance = mine.chance == plain.chance
        difference = self._memory.sums.take(mine.values, plain.values, losses, same_chance)
        if difference is None:
            raise NotCompared("nothing of it is finite without the techniques, either")
        if not difference:
            return StepVerdict()
        again = yield Repetition(())
        if not _same_values(mine, again):
            return StepVerdict(unlike=difference)
        return StepVerdict(difference, tuple(self.levels))

    @property
    def _mine(self) -> Picture:
        assert self.mine is not None
        return self.mine


def first_difference(mine: Picture, other: Picture) -> str:
    """The first thing that is not the same in every bit, in words; "" where all is."""
    if mine.losses != other.losses and repr(mine.losses) != repr(other.losses):  # NaN is the same as NaN
        return "the loss"
    for name in (*mine.bits, *other.bits):
        if mine.bits.get(name) != other.bits.get(name):
            return name
    return "" if mine.chance == other.chance else "random numbers"


def _same_values(one: Picture, other: Picture) -> bool:
    return one.values.keys() == other.values.keys() and all(
        values.tobytes() == other.values[name].tobytes() for name, values in one.values.items()
    )


def _suspects(names: Sequence[str]) -> Sequence[str]:
    return names if 1 < len(names) <= _MOST_SUSPECTS else ()
