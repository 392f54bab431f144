"""`Shards` of all ranks in one process, which take turns."""

from __future__ import annotations

from collections.abc import Collection

import torch

from overdrive.model_state.turns import Turns
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.roles import Roles


class InTurns(Turns):
    """For one call of a model. Weights are whole here: a rank takes its part."""

    def __init__(self, size: int, roles: Roles) -> None:
        super().__init__(size)
        self._roles = roles
        self._given: list[list[torch.Tensor]] = [[] for _ in range(size)]

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchanged(tensor)).sum(0)

    def gather(self, tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
        # As it is now: who gave it may write to it before the others have their turn.
        return cut.joined(torch.cat(self._exchanged(tensor.clone()), cut.dim), self.size)

    def weight(self, parameter: torch.Tensor, cut: Cut) -> torch.Tensor:
        return cut.part(self._roles.whole(parameter), self.rank, self.size)

    def open_cut(self, name: str, cut: Cut, makers: Collection[str]) -> Cut | None:
        return self._roles.open_cut(name, cut, makers)

    def gathered(self, makers: Collection[str], why: str, segments: tuple[int, ...]) -> None:
        if not self.failed:  # else this comes of that
            self._roles.gathered(makers, why, segments)

    def _exchanged(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What all ranks give here."""
        place = len(self._given[self.rank])
        self._given[self.rank].append(tensor)
        self.wait()
        if self.failed or any(len(each) <= place for each in self._given):
            raise RuntimeError("its ranks do not meet")
        return [each[place] for each in self._given]
