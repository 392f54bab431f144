"""Keeps ranks in step: what is read (see `reads`) and seeded comes from rank 0, and what they have come to is compared.

Equal code on equal data gives equal bits; where it does not (a clock in the program, other hardware, a defect of ours)
the run stops at the next comparison, and says what differs first.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from overdrive.core.rng import States
from overdrive.ranks.pace import Pace
from overdrive.ranks.reads import Reads
from overdrive.seams.keras.internals import trained_variables
from overdrive.seams.parameters import parameters_of

if TYPE_CHECKING:
    from overdrive.ranks.group import Group
    from overdrive.seams.hub import Seams

_FIRST, _EVERY = 4, 16  # steps: each of the first ones, then every so many; one takes 0.3 ms for a million parameters
_PARAMETERS, _PARTS = "the parameters", "the parts of parameters"
_WHAT = ("the number of steps", "the losses", "random numbers", _PARAMETERS, _PARTS)


class Lockstep:
    """
    Attributes:
        differing: who tell whether it is a parameter of which each rank has another part.
        part_of: gives this rank's part of a parameter, where other ranks have the same, or None.
        places: how many ranks follow each other before one has the same parts again.
        seeded: whether the program has seeded a generator.
    """

    def __init__(self, group_of: Callable[[], Group], say: Callable[[str], None]) -> None:
        """`say`: tells something of this rank."""
        self._group_of, self._say = group_of, say
        self._pace: Pace | None = None
        self.differing: list[Callable[[Any], bool]] = []
        self.part_of: Callable[[Any], Any] = lambda parameter: None
        self.places = 1
        self.seeded = False
        self._reads = Reads(group_of, say, lambda: self.goes, lambda: self._steps, self.differing)
        self._steps = 0
        self._same_at = 0  # the last comparison
        self._losses = 0  # a checksum of all so far
        self._pending: list[Any] = []  # losses that were not read yet
        self._optimizers: list[Any] = []
        self._stopped = False

    def observe(self, seams: Seams) -> None:
        self._reads.observe(seams)
        seams.step_ends.subscribe(self._step_ends)
        seams.loss_backward.subscribe(self._loss)
        seams.seed_set.subscribe(self._seed)

    def alone(self) -> bool:
        """Whether what the program reads now is this rank's own."""
        return self._reads.alone()

    def stop(self) -> None:
        self._stopped = True

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For what is read here, each rank asks nobody: it is not the program that reads."""
        before, self._stopped = self._stopped, True
        try:
            yield
        finally:
            self._stopped = before

    @property
    def goes(self) -> bool:
        """Ranks meet when PyTorch arrives; before that, and without it, nothing is compared."""
        return not self._stopped and "torch" in sys.modules and self._group_of().mine()

    def agree_on_chance(self) -> None:
        """Python's and NumPy's generators become rank 0's: what seeded them before PyTorch came, a clock, say, was
        asked of nobody."""
        own = States.now(with_cuda=False).plain()
        held = [own["python"], own["numpy"] if isinstance(own["numpy"], list) else None]  # NumPy's usual one
        group, found = self._group_of(), zlib.crc32(repr(held).encode())
        if any(told != [found] for told in group.of_all([found], "random numbers")):
            python, numpy = group.told_by_first(held, "random numbers")
            States.of_plain({"python": python, "numpy": numpy, "torch": None, "cuda": []}).restore()

    def _seed(self, seed: Any) -> Any:
        """One that is made of the clock, say."""
        self.seeded = True
        if not self.goes or not -(2**63) <= seed < 2**63:
            return seed
        return self._group_of().from_first(seed if isinstance(seed, float) else int(seed), "a seed")

    def _loss(self, loss: Any) -> Any:
        if self.goes and loss.numel() == 1:
            self._pending.append(loss.detach())
        return loss

    def _step_ends(self, optimizer: Any) -> None:
        if not self.goes:
            return
        self._steps += 1
        if not any(each is optimizer for each in self._optimizers):
            self._optimizers.append(optimizer)
        if self._steps <= _FIRST or self._steps % _EVERY == 0:
            self.compare(f"at step {self._steps}", lap=self._steps % _EVERY == 0)
        self._group_of().monitor.step = self._steps

    def compare(self, when: str, lap: bool = False) -> None:
        """Stop all ranks where one has come to something else.

        Args:
            lap: as many steps were made since this was last said: who is slow is told.
        """
        if not self.goes or not self._steps:
            return
        for loss in self._pending:
            self._losses = zlib.crc32(loss.double().cpu().numpy().tobytes(), self._losses)
        self._pending.clear()
        own = [self._steps, self._losses, int(States.now().digest()[:15], 16)]
        own += [_checksum(self._parameters()), _checksum(self._parts())]
        told = self._group_of().of_all([*own, self._lap() if lap else 0], f"the comparison {when}")
        for place, what in enumerate(_WHAT):
            apart = self.places if what == _PARTS else 1
            others = [rank for rank, each in enumerate(told) if each[place] != told[rank % apart][place]]
            if others:
                where = self._first_parameter() if what == _PARAMETERS else ""
                since = f"after step {self._same_at}" if self._same_at else "from the start"
                self._group_of().end(
                    f"stopped {when}: {what}{where} of rank {others[0]} differ from those of rank {others[0] % apart}, "
                    f"{since}. The program does not do the same on all ranks; run it without --ranks"
                )
        self._same_at = self._steps
        if lap and self._pace and (slow := self._pace.slower([each[-1] for each in told], _EVERY)):
            self._say(slow)

    def _lap(self) -> int:
        """Microseconds; those of the first lap hold what is made once."""
        if self._pace is None:
            group = self._group_of()
            self._pace = Pace(group.rank, lambda: group.waited)
        return self._pace.lap()

    def _parameters(self) -> list[Any]:
        return [each for each in self._trained() if not any(differs(each) for differs in self.differing)]

    def _parts(self) -> list[Any]:
        return [part for each in self._trained() if (part := self.part_of(each)) is not None]

    def _trained(self) -> list[Any]:
        return [each for optimizer in self._optimizers for each in _trained_by(optimizer)]

    def _first_parameter(self) -> str:
        parameters = self._parameters()
        told = self._group_of().of_all([_checksum([each]) for each in parameters], "the parameters")
        for place, each in enumerate(parameters):
            if any(numbers[place] != told[0][place] for numbers in told):
                return f" (first no. {place}, of shape {tuple(each.shape)})"
        return ""


def _trained_by(optimizer: Any) -> list[Any]:
    if hasattr(optimizer, "param_groups"):
        return parameters_of(optimizer)
    return [each.value for each in trained_variables([optimizer])]  # of Keras


def _checksum(tensors: list[Any]) -> int:
    """Of their bits: a sum over each, and these together."""
    import torch

    with torch.no_grad():
        found = 0
        for place, each in enumerate(tensors):
            held = each.detach()
            whole = held.contiguous().view(-1) if held.layout is torch.strided else held.coalesce().values().view(-1)
            kinds: dict[int, Any] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
            bits = whole.view(kinds[whole.element_size()]) if whole.element_size() in kinds else whole.view(torch.int64)
            total = bits.sum(dtype=torch.int64).tolist()  # this rank's own: of `int` rank 0's is given
            found = zlib.crc32(struct.pack("qq", place, total), found)
    return found
