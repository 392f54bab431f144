"""Whether pairs can be divided: the model's call, whole and in parts, in fp64, with all ranks' parts in one process.

Each rank is a thread here, and only one of them runs at a time: each draws random numbers from where the whole call
began, and they wait for each other where ranks would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from overdrive.core.rng import States
from overdrive.techniques.parallel.tensor_parallel.layers import ColumnLinear, RowLinear, divided_by

_CLOSE = 1e-9  # of fp64, where sums are taken in another order

Pair = tuple[str, str]


class _Ranks:
    """`Parts` of all ranks in one process, which take turns."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._mine = threading.local()
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._given: list[list[torch.Tensor]] = [[] for _ in range(size)]
        self._failed: list[BaseException] = []
        self._over = [False] * size

    @property
    def size(self) -> int:
        return self._size

    @property
    def rank(self) -> int:
        return int(self._mine.rank)

    def part(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return tensor.tensor_split(self.size, dim)[self.rank]

    def gather(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        raise AssertionError("nothing is gathered in a trial")

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        place = len(self._given[rank])
        self._given[rank].append(tensor)
        chance = States.now()
        self._pass_on(rank)
        self._turns[rank].acquire()
        chance.restore()
        if self._failed or any(len(each) <= place for each in self._given):
            raise RuntimeError("its ranks do not meet")
        return torch.stack([each[place] for each in self._given]).sum(0)

    def run(self, work: Callable[[], Any]) -> list[Any]:
        """What `work` makes as each rank.

        Raises:
            Exception: what it raised as the first that failed.
        """
        made: list[Any] = [None] * self.size
        began = States.now()

        def live(rank: int) -> None:
            self._mine.rank = rank
            self._turns[rank].acquire()
            try:
                began.restore()
                made[rank] = work()
            except BaseException as error:
                self._failed.append(error)
            self._over[rank] = True
            self._pass_on(rank)

        threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(self.size)]
        for each in threads:
            each.start()
        self._turns[0].release()
        for each in threads:
            each.join()
        if self._failed:
            raise self._failed[0]
        return made

    def _pass_on(self, rank: int) -> None:
        for step in range(1, self.size + 1):
            other = (rank + step) % self.size
            if not self._over[other]:
                self._turns[other].release()
                return


class ModelTrial:
    """In a process of its own: the model is changed for good."""

    def __init__(self, model: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any, ranks: int) -> None:
        model.double()
        torch.set_default_dtype(torch.float64)
        self._model, self._call, self._ranks = model, call, ranks
        self._args, self._kwargs = pytree.tree_map(_exact, (args, kwargs))
        self._trained = [each for each in model.parameters() if each.requires_grad]
        self._chance = States.now()
        self._whole = self._made()

    def found(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """`pairs` that can be divided, and `reasons` of those that cannot, by the first layer's name."""
        if not pairs or not (why := self._difference(pairs)):
            return {"pairs": [list(each) for each in pairs], "reasons": {}}
        if len(pairs) == 1:
            return {"pairs": [], "reasons": {pairs[0][0]: why}}
        kept: list[Pair] = []
        reasons = {}
        for pair in pairs:
            if why := self._difference([*kept, pair]):
                reasons[pair[0]] = why
            else:
                kept.append(pair)
        return {"pairs": [list(each) for each in kept], "reasons": reasons}

    def _made(self) -> tuple[list[Any], list[Any]]:
        """What the call makes, and the gradients of a sum over it in which each element counts otherwise."""
        outputs = [
            each
            for each in pytree.tree_leaves(self._call(*self._args, **self._kwargs))
            if isinstance(each, torch.Tensor)
        ]
        sums = [
            (each * torch.linspace(0.5, 1.5, each.numel(), dtype=each.dtype).view(each.shape)).sum()
            for each in outputs
            if each.requires_grad
        ]
        return [each.detach() for each in outputs], list(torch.autograd.grad(sums, self._trained, allow_unused=True))

    def _difference(self, pairs: Sequence[Pair]) -> str:
        """What is not the same when these are divided; empty where all is."""
        layers = [(self._model.get_submodule(one), self._model.get_submodule(other)) for one, other in pairs]
        ranks = _Ranks(self._ranks)
        end = divided_by(ranks)
        for first, second in layers:
            first.__class__, second.__class__ = ColumnLinear, RowLinear
        try:
            self._chance.restore()
            made = ranks.run(self._made)
        except Exception as error:
            first_line = str(error).strip().split("\n", 1)[0]
            return f"what lies between needs all of its outputs ({type(error).__name__}: {first_line[:80]})"
        finally:
            end()
            for pair in layers:
                for each in pair:
                    each.__class__ = nn.Linear
        divided = {id(each) for pair in layers for each in (*pair[0].parameters(), pair[1].weight)}
        return self._compared(made, divided)

    def _compared(self, made: Sequence[Any], divided: set[int]) -> str:
        outputs, gradients = self._whole
        for theirs, _ in made:
            if len(theirs) != len(outputs) or not all(map(_alike, outputs, theirs)):
                return "what comes out differs: what lies between looks at several of its outputs, or draws for them"
        for place, parameter in enumerate(self._trained):
            theirs = [each[place] for _, each in made]
            if id(parameter) in divided:
                theirs = [_sum(theirs)]
            if not all(_alike(gradients[place], each) for each in theirs):
                return "its gradients are not the same"
        return ""


def _sum(gradients: Sequence[Any]) -> Any:
    held = [each for each in gradients if each is not None]
    return torch.stack(held).sum(0) if held else None


def _alike(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    scale = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=_CLOSE, atol=_CLOSE * max(scale, 1e-300), equal_nan=True)


def _exact(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point else leaf
