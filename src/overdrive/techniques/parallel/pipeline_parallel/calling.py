"""A call in stages and micro-batches, and its results, which all ranks have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch

from overdrive.core.rng import States
from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.chance import Chance, Deviation
from overdrive.model_state.division.exchange import Gathered, Shared, part_of, shares
from overdrive.model_state.division.tree import Build, flatten
from overdrive.model_state.division.way import Way
from overdrive.techniques.parallel.pipeline_parallel.stages import Stages
from overdrive.techniques.parallel.pipeline_parallel.transfers import Delivered, Entered, Links, packed


@dataclass(frozen=True)
class Batches:
    """How a batch is split: into `count` micro-batches."""

    way: Way
    rows: int
    count: int

    @property
    def sizes(self) -> list[int]:
        return shares(self.rows, self.count)

    def of_replicas(self, replicas: int) -> list[range]:
        """The micro-batches of each."""
        ends = [*accumulate(shares(self.count, replicas), initial=0)]
        return [range(*each) for each in pairwise(ends)]


@dataclass
class _Leaf:
    """A leaf of the results of one micro-batch."""

    value: Any
    wait: Callable[[], None] | None = None  # for what another rank sends
    recorded: bool = False  # it has a gradient, on the rank that made it


@dataclass
class _Result:
    """A leaf of the results of all micro-batches."""

    whole: Any
    recorded: bool  # it has a gradient
    own: list[torch.Tensor]  # what it is made of, where that was made on this rank
    dim: int  # along which


class StagedCall:
    """Args: see `Stages`; `reached`: is told of each backward pass."""

    def __init__(
        self,
        links: Links,
        owners: Mapping[int, tuple[int, bool]],
        device: torch.device,
        reached: Callable[[], None],
        written: Collection[int] = (),
    ) -> None:
        self._links, self._reached, self._chance = links, reached, Chance()
        anchor = torch.zeros((), device=device, requires_grad=True)
        self._stages = Stages(links, owners, self._chance, anchor, written)

    @property
    def wrote(self) -> dict[int, int]:
        """By the id of a buffer that was written to, the stage that did."""
        return self._stages.wrote

    def make(self, asked: CallToDivide, batches: Batches | None) -> Any:
        """What the call returns, on all ranks.

        Raises:
            Unstaged: it cannot be made so. All ranks raise it at the same place.
        """
        replicas = self._links.replicas
        alone = batches is None or replicas.size == 1
        leaves = asked.leaves if alone else [self._shared(each) for each in asked.leaves]
        asked = replace(asked, leaves=[self._entered(each) for each in leaves])
        if batches is None:
            results, together = self._one(asked, asked.leaves)
            return together(self._delivered([self._whole([each], None) for each in results]))
        made, together = self._all(asked, batches)
        joined = batches.way.joined
        if any(len(each) != len(joined) for each in made):
            raise Deviation("its result has another structure than before")
        columns = zip(zip(*made, strict=True), joined, strict=True)
        delivered = self._delivered([self._whole(column, each) for column, each in columns])
        if replicas.size > 1:
            delivered = [self._of_replicas(*each, batches) for each in zip(delivered, joined, strict=True)]
        return together(delivered)

    def _all(self, asked: CallToDivide, batches: Batches) -> Any:
        way, sizes = batches.way, batches.sizes
        made, together = [], None
        began = States.now()
        replicas = self._links.replicas
        for number in batches.of_replicas(replicas.size)[replicas.rank]:
            size = sizes[number]
            began.restore()  # each draws for the whole batch
            own = [
                leaf if dim is None else part_of(leaf, dim, number, sizes)
                for leaf, dim in zip(asked.leaves, way.split, strict=True)
            ]
            self._chance.begin(way.drawn, sum(sizes[:number]), size, batches.rows)
            try:
                results, together = self._one(asked, own)
            finally:
                self._chance.end()
            made.append(results)
        return made, together

    def _one(self, asked: CallToDivide, leaves: Sequence[Any]) -> tuple[list[_Leaf], Build]:
        self._stages.given = set(map(id, leaves))
        with self._stages:
            result = asked.made(leaves)
        results, together = flatten(result)
        return [self._sent(each) for each in results], together

    def _shared(self, leaf: Any) -> Any:
        """What the program gives with a gradient, to all replicas."""
        return Shared.apply(leaf, self._links.replicas) if _recorded(leaf) else leaf  # type: ignore[no-untyped-call]

    def _of_replicas(self, leaf: Any, joined: tuple[int, int] | None, batches: Batches) -> Any:
        """A result, of the samples of all of them."""
        if joined is None:
            return leaf
        dim, per_row = joined
        replicas, sizes = self._links.replicas, batches.sizes
        rows = [per_row * sum(sizes[each] for each in own) for own in batches.of_replicas(replicas.size)]
        return Gathered.apply(leaf, replicas, dim, rows, 1)  # type: ignore[no-untyped-call]

    def _entered(self, leaf: Any) -> Any:
        if not _recorded(leaf):
            return leaf
        made, token = Entered.apply(leaf, self._links)  # type: ignore[no-untyped-call]
        self._stages.tokens.append(token)
        self._stages.anchor = self._stages.anchor + token
        return made

    # -- results ----------------------------------------------------------------------------------

    def _sent(self, leaf: Any) -> _Leaf:
        """To all ranks, from the one that made it."""
        if not isinstance(leaf, torch.Tensor):
            return _Leaf(leaf)
        stages, links, placed = self._stages, self._links, self._stages.placed(leaf)
        if placed is None:
            recorded = leaf.requires_grad
            if recorded and stages.current != links.rank:
                leaf = leaf.detach()  # its gradient counts once
            return _Leaf(leaf, recorded=recorded)
        number, like = links.number(), stages.shape(leaf, placed)
        if placed.stage == links.rank:
            value = stages.value(leaf, placed)
            for other in range(links.size):
                if other != links.rank:
                    links.send(packed(value.expand(like.shape).contiguous()), other, number)
            return _Leaf(value, recorded=value.requires_grad)
        room = torch.empty(like.shape, dtype=like.dtype, device=self._stages.anchor.device)
        return _Leaf(room, links.later(room, placed.stage, number), like.requires_grad)

    def _whole(self, parts: Sequence[_Leaf], joined: tuple[int, int] | None) -> _Result:
        for each in parts:
            if each.wait is not None:
                each.wait()
        dim, values = 0 if joined is None else joined[0], [each.value for each in parts]
        if joined is None:
            values = values[:1]  # all have the same
        recorded = torch.is_grad_enabled() and any(each.recorded for each in parts)
        own = [each for each in values if isinstance(each, torch.Tensor) and each.requires_grad] if recorded else []
        with torch.no_grad():
            whole = torch.cat(values, dim) if len(values) > 1 else values[0].clone() if own else values[0]
        return _Result(whole, recorded, own, dim)

    def _delivered(self, results: Sequence[_Result]) -> list[Any]:
        """With the graph of the gradients behind them, on every rank."""
        tracked = [each for each in results if each.recorded]
        if tracked:
            pieces = [(len(each.own), each.dim) for each in tracked]
            given = (*(part for each in tracked for part in each.own), *self._stages.tokens, self._stages.anchor)
            made = Delivered.apply(self._reached, [each.whole for each in tracked], pieces, *given)  # type: ignore[no-untyped-call]
            for each, whole in zip(tracked, made, strict=True):
                each.whole = whole
        return [each.whole for each in results]


def _recorded(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and torch.is_grad_enabled()
