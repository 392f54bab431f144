"""How each weight is divided: found out by calling the model in parts, again and again until nothing changes.

A layer that is given whole numbers has a part of its outputs (a column of the classic pair), one that is given parts
has what it needs for these (a row). A function that needs all of a layer's outputs makes that layer whole, or has its
outputs divided in another way: by heads in each of three segments, say.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from overdrive.techniques.parallel.tensor_parallel.cuts import Cut


class Roles:
    """
    Attributes:
        cuts: of weights that are divided, by name.
        reasons: of those that stay whole, why.
        fed: of weights that take parts, by whom these were made.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.cuts: dict[str, Cut] = {}
        self.reasons: dict[str, str] = {}
        self.fed: dict[str, frozenset[str]] = {}
        # In which weights are divided that one segment did not do for, with what was said of that; those of this call.
        self._segments: dict[str, tuple[Cut, str]] = {}
        self._learned: dict[str, tuple[Cut, str]] = {}
        self._before: dict[str, str] = {}
        self._changed = False
        self._wholes: dict[int, tuple[Any, torch.Tensor]] = {}  # by the id of a parameter that is hidden

    def begin(self) -> None:
        """Another call is made, with nothing decided but what must stay whole, and in what segments to divide.

        Where segments were learned, or shown to be wrong, nothing else that this call came to counts.
        """
        wrong = {name: self.reasons[name] for name in self._segments if name in self.reasons}
        self._segments.update(self._learned)
        if self._learned or wrong.keys() - self._before.keys():
            self.reasons = {**self._before, **wrong}
        self._before = dict(self.reasons)
        self.cuts, self.fed, self._learned, self._changed = {}, {}, {}, False

    def settled(self) -> bool:
        """Whether the call that was made took nothing back."""
        return not self._changed

    # -- what a call in parts asks and tells ------------------------------------------------------

    def open_cut(self, name: str, cut: Cut, makers: Collection[str]) -> Cut | None:
        """How this weight is divided; None: it stays whole."""
        if name in self._before:  # what was found since, not all ranks have come to
            return None
        learned, _ = self._segments.get(name, (cut, ""))
        if not makers and learned.dim == cut.dim and learned.size == cut.size:
            cut = learned
        if self.cuts.setdefault(name, cut) != cut:
            self.refuse([name], "it is used in two ways")
            return None
        if min(cut.segments) < self._ranks:
            self.refuse([name], f"it has less than one row for each of {self._ranks} ranks")
            return None
        if makers:
            self.fed[name] = self.fed.get(name, frozenset()) | frozenset(makers)
        return cut

    def gathered(self, makers: Collection[str], why: str, segments: tuple[int, ...]) -> None:
        """What these made had to be whole. Where it is one, and it was not divided so yet, these segments are tried.

        Where a weight is divided in segments, that was a guess: it is to blame before others, for what came first.
        """
        name = next(iter(makers)) if len(makers) == 1 else ""
        role = self.cuts.get(name)
        if role is not None and name not in self._segments and sum(segments) == role.size and len(segments) > 1:
            self._learned.setdefault(name, (Cut(role.dim, segments), why))
            self._changed = True
            return
        guessed = [each for each in makers if each in self._segments]
        for each in guessed or makers:
            self.refuse([each], self._segments[each][1] if each in self._segments else why)

    def refuse(self, names: Collection[str], why: str) -> None:
        for name in names:
            self._changed |= name in self.cuts and name not in self.reasons
            self.reasons.setdefault(name, why)

    # -- weights in the place of parameters -------------------------------------------------------

    def whole(self, parameter: Any) -> torch.Tensor:
        """What a parameter held before it was hidden, or itself."""
        known = self._wholes.get(id(parameter))
        return parameter if known is None else known[1]

    def hide(self, parameter: Any, cut: Cut) -> None:
        """Leave not-a-number of a part's shape in it: who takes it by another way than its module is found out."""
        whole = parameter.detach().requires_grad_(parameter.requires_grad)
        self._wholes[id(parameter)] = parameter, whole
        parameter.data = whole.new_full(cut.shape(whole.shape, 0, self._ranks), float("nan"))

    def show(self) -> None:
        """Parameters have again what was hidden."""
        for parameter, whole in self._wholes.values():
            parameter.data = whole.detach()
        self._wholes.clear()
