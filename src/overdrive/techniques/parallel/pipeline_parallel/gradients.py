"""Gradients of weights of which one rank has all: it has the gradient, and the others what a script may ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from overdrive.model_state.sharded.held import Held
from overdrive.model_state.sharded.kept import Kept
from overdrive.model_state.sharded.share import flat
from overdrive.ranks.group import Group
from overdrive.ranks.mesh import Mesh
from overdrive.seams.torch.internals import after_backward


class StageGradients:
    """What comes to `.grad` by another way than a call in stages (a penalty, a call that is made whole) comes to all
    ranks alike: the owner's counts. What comes of a call is of this replica's samples, times the replicas: the mean
    over replicas is right for both.

    Args: `group`: all ranks.
    """

    def __init__(self, group: Group, mesh: Mesh, kept: Kept) -> None:
        self._group, self._mesh, self._kept = group, mesh, kept
        self._held: list[Held] = []  # in the same order on all ranks
        self._hooks: list[Any] = []
        self._under_way = False
        self.over = lambda: None  # what else is to be done after a backward pass

    def watch(self, parameters: Iterable[Any]) -> None:
        for each in parameters:
            held = self._kept.of(each)
            if held is not None:
                self._held.append(held)
                if each.requires_grad:
                    self._hooks.append(each.register_post_accumulate_grad_hook(self._arrived))

    def forget(self) -> None:
        for each in self._hooks:
            each.remove()

    def reached(self) -> None:
        """A backward pass has come to a call, or to a weight."""
        if not self._under_way:
            self._under_way = True
            after_backward(self._pass_over)

    def _arrived(self, leaf: Any) -> None:
        self.reached()
        held = self._kept.of(leaf)
        if held is None or held.looked:
            return
        with torch.no_grad(), self._kept.gradients.aside():
            self._take(held, leaf)

    def _take(self, held: Held, leaf: Any) -> None:
        if held.share.is_whole and leaf.grad is not None:
            self._kept.gradients.add(held, flat(held.share.laid(leaf.grad.detach())))
        leaf.grad = None

    def _pass_over(self) -> None:
        self._under_way = False
        self.over()  # type: ignore[no-untyped-call]
        self._held = [each for each in self._held if each.parameter is not None]
        with torch.no_grad(), self._kept.gradients.aside():
            mine = [int(each.gradient is not None or each.parameter.grad is not None) for each in self._held]
            told = self._group.of_all(mine, "which gradients there are")
            there = [self._at_owner(held, [each[place] for each in told]) for place, held in enumerate(self._held)]
            self._average([held for held, known in zip(self._held, there, strict=True) if known])
            for held, known in zip(self._held, there, strict=True):
                self._settle(held, held.parameter, known)
        self._kept.give_back()

    def _at_owner(self, held: Held, told: Sequence[int]) -> bool:
        """Whether who has it all has a gradient, in any replica."""
        assert held.share.owner is not None
        return any(told[held.share.owner :: self._mesh.row.size])

    def _average(self, held: Sequence[Held]) -> None:
        """Over replicas, in their place: one that is the same in all stays what it is."""
        column = self._mesh.column
        if column.size == 1:
            return
        gradients = [self._own(each) for each in held if each.share.is_whole]
        column.finish([column.begin_sum(each) for each in gradients])
        for each in gradients:
            each.div_(column.size)

    def _own(self, held: Held) -> torch.Tensor:
        """All of its gradient in one piece, in its place: of zeros, where another rank has one alone."""
        if held.looked:
            leaf = held.parameter
            leaf.grad = held.share.blank(held.like).zero_() if leaf.grad is None else held.share.laid(leaf.grad)
            return flat(leaf.grad)
        self._take(held, held.parameter)
        if held.gradient is None:
            held.gradient = held.like.new_zeros(held.share.size)
        return held.gradient

    def _settle(self, held: Held, leaf: Any, there: bool) -> None:
        """Args: `there`: its owner has a gradient."""
        if held.looked and there:
            self._mesh.row.broadcast(self._own(held), held.share.owner or 0, "a gradient that is looked at")
        elif not held.looked:
            self._take(held, leaf)
            if not held.share.is_whole:
                held.gradient = held.like.new_empty(0) if there else None
        self._kept.settle(held)
