"""Plays what ranks noted of their steps over a network: when each would come to what, and how long a step would take.

A rank computes as long as it did; what it begins goes on beside that, and it stands still where it waits. An exchange
begins when the last of its members is there (a ring is not over sooner, whatever it carries before that). One channel,
or one way between two ranks, carries one thing at a time. A rank that was noted may stand for many, each with times of
its own: then all that is reckoned of it are arrays, with a place for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from overdrive.core.rank_notes import STEP, Note
from overdrive.machine.pool.curve import Network

_TO_ONE = ("send", "receive")
_Seconds = npt.NDArray[np.float64]  # of each rank that one which was noted stands for: (copies,)
Lasting = Callable[[int, int], "float | _Seconds"]  # by rank and place of a note: what is computed before it


@dataclass(frozen=True)
class Played:
    """Of each step its seconds, and the seconds of it that a rank computes, in the mean over ranks."""

    steps: tuple[float, ...]
    computing: tuple[float, ...]


@dataclass
class _Exchange:
    began: dict[int, _Seconds] = field(default_factory=dict)  # by rank, when it was there
    start: Any = 0.0  # of all copies alike, or of each
    done: Any = None  # None: not all are there


@dataclass
class _Rank:
    notes: Sequence[Note]
    now: _Seconds
    computed: _Seconds
    place: int = 0
    under_way: dict[int, _Exchange] = field(default_factory=dict)  # by number
    ends: list[tuple[float, float]] = field(default_factory=list)  # of steps: of all copies when, of one what computed


def played(
    notes: Mapping[int, Sequence[Note]], network: Network, copies: int = 1, lasting: Lasting | None = None
) -> Played:
    """
    Args:
        notes: by rank, from the end of one step to that of a later one. Ranks without notes are as the others.
        copies: ranks that each of these stands for, in this play.
        lasting: what each of them computes before each note; None: what was noted.

    Raises:
        ValueError: the ranks wait for each other for ever.
    """
    return _Play(notes, network, copies, lasting or (lambda rank, place: notes[rank][place].computed)).result()


class _Play:
    def __init__(self, notes: Mapping[int, Sequence[Note]], network: Network, copies: int, lasting: Lasting) -> None:
        self._network, self._lasting = network, lasting
        self._ranks = {rank: _Rank(each, np.zeros(copies), np.zeros(copies)) for rank, each in notes.items()}
        self._exchanges: dict[Any, _Exchange] = {}
        self._count: dict[tuple[str, int], int] = {}  # by channel and rank: of exchanges that all members make
        self._free: dict[Any, Any] = {}  # by channel or way: when it has carried all so far

    def result(self) -> Played:
        moved = True
        while moved:
            moved = False
            for number, rank in self._ranks.items():
                while rank.place < len(rank.notes) and self._takes(number, rank, rank.notes[rank.place]):
                    rank.place += 1
                    moved = True
        if any(rank.place < len(rank.notes) for rank in self._ranks.values()):
            raise ValueError("the ranks wait for each other")
        ends = [*zip(*(rank.ends for rank in self._ranks.values()), strict=True)]
        over = [max(when for when, _ in each) for each in ends]
        computed = [sum(by_then for _, by_then in each) / len(each) for each in ends]
        return Played(_differences(over), _differences(computed))

    def _takes(self, number: int, rank: _Rank, note: Note) -> bool:
        """Whether this rank can go on beyond this note."""
        lasted = self._lasting(number, rank.place)
        came = rank.now + lasted
        if not note.operation:
            exchange = rank.under_way.pop(note.number, _Exchange(done=0.0))  # else it began before the first note
            if exchange.done is None:
                rank.under_way[note.number] = exchange
                return False
            # What carries it took from what computes.
            beside = np.maximum(0.0, np.minimum(came, exchange.done) - exchange.start)
            rank.now = np.maximum(came + self._network.busy * beside, exchange.done)
        else:
            rank.now = came
            if note.operation != STEP:
                self._begin(number, rank, note)
        rank.computed = rank.computed + lasted
        if note.operation == STEP:
            rank.ends.append((float(rank.now.max()), float(rank.computed.mean())))
        return True

    def _begin(self, number: int, rank: _Rank, note: Note) -> None:
        key, way, needed = self._of(number, note)
        exchange = self._exchanges.setdefault(key, _Exchange())
        rank.under_way[note.number] = exchange
        exchange.began[number] = rank.now
        if exchange.done is None and needed <= exchange.began.keys():
            came = np.maximum.reduce([exchange.began[each] for each in needed])
            to_one = note.operation in _TO_ONE
            with_copies = not to_one and len(note.members) > len(needed)
            exchange.start = np.maximum(came.max() if with_copies else came, self._free.get(way, 0.0))
            operation = "point_to_point" if to_one else note.operation
            exchange.done = exchange.start + self._network.seconds(operation, note.bytes, len(note.members))
            self._free[way] = exchange.done

    def _of(self, number: int, note: Note) -> tuple[Any, Any, set[int]]:
        """What tells it from others, what carries it, and which ranks have to be there: of a message, who sends it."""
        there = {each for each in note.members if each in self._ranks}
        if note.operation in _TO_ONE:
            way = (note.channel, note.members)
            sender = {note.members[0]} & there
            return (*way, note.tag), way, sender or {number}
        count = self._count[note.channel, number] = self._count.get((note.channel, number), 0) + 1
        return (note.channel, count), note.channel, there


def _differences(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(after - before for before, after in zip([0.0, *values], values, strict=False))
