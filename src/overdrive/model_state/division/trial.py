"""How a model's call is divided: found by trying it whole and in parts, in fp64, in calls that nobody sees. Where fp64
fails, or there is no memory for it, they are in the model's own precision.

The parts must make up the whole: results, random draws, buffers, attributes, what is printed. What does not, names the
module that looks at more than its own sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from overdrive.core.out_of_memory import out_of_memory
from overdrive.model_state.division.backward import Added, gradients_alike
from overdrive.model_state.division.by_hand_trial import ByHandTrial
from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.chance import Deviation, Drawn, compared
from overdrive.model_state.division.culprit import culprit
from overdrive.model_state.division.exchange import part_of, shares
from overdrive.model_state.division.likeness import SUMMED, Refused, alike, joined
from overdrive.model_state.division.losses import Losses
from overdrive.model_state.division.unseen_calls import UnseenCalls
from overdrive.model_state.division.value_trial import ValueTrial
from overdrive.model_state.division.values import LOOKS, NOTHING, Asked
from overdrive.model_state.division.way import Way, guesses
from overdrive.model_state.division.whole_trial import look_at_whole
from overdrive.model_state.exact_call import without_zeros
from overdrive.model_state.state import State
from overdrive.model_state.trial_call import NoTrial, may_fork_with, tried
from overdrive.seams.keras.fp64 import to_double
from overdrive.seams.points import reason_of
from overdrive.seams.torch.hooks import without_gradient_hooks
from overdrive.seams.torch.layouts import is_sparse
from overdrive.seams.torch.tracing import compiled

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def find_way(asked: CallToDivide) -> dict[str, Any]:
    """A `Way` as plain data, or `{"reason": why there is none}`."""
    model = asked.model
    # Of what it is given only what can be seen is compared; but in this very process all is to be put back.
    given = [] if may_fork_with(model) else [each for each in asked.leaves if not isinstance(each, torch.Tensor)]
    state = State([model, *given])
    if what := state.reach.hidden or state.reach.outward:
        return {"reason": f"its code can reach {what}"}
    reason = ""
    try:
        for exact in (True, False) if may_fork_with(model) else (False,):
            try:
                found: dict[str, Any] = tried(model, lambda exact=exact: _CallTrial(asked, exact).way()).made  # type: ignore[misc]
            except NoTrial as error:
                reason = f"it could not be tried ({error})"
                continue
            if not found.get("again"):
                return found
            reason = found["reason"]
    finally:
        asked.norms.statistics = asked.chance.noted = None
        if asked.losses is not None:
            asked.losses.totals = None
    return {"reason": reason}


class _CallTrial:
    def __init__(self, asked: CallToDivide, exact: bool) -> None:
        """`exact`: in fp64, which changes the model: in a process of its own."""
        model, leaves = asked.model, asked.leaves
        if exact:
            model.double()
            to_double(model)
            leaves = [each.double() if _is_float(each) else each for each in leaves]
            torch.set_default_dtype(torch.float64)
            if compiled(model):
                torch.compiler.set_stance("force_eager")
        if may_fork_with(model):
            without_zeros(model)
        self._asked, self._exact = asked, exact
        self._model, self._leaves, self._chance, self._norms = model, leaves, asked.chance, asked.norms
        self._losses = Losses() if asked.losses is None or compiled(model) else asked.losses
        self._sums = self._losses is asked.losses
        self._calls = UnseenCalls(asked, leaves)
        self._make, self._restore = self._calls.make, self._calls.restore
        self._values: ValueTrial | None = None
        self._by_hand: ByHandTrial | None = None

    def way(self) -> dict[str, Any]:
        try:
            whole = look_at_whole(self._asked, self._calls, self._losses, self._leaves)
        except Exception as error:  # fp64 is not for every model
            return {"reason": f"it could not be tried ({reason_of(error)})", "again": self._exact}
        except Deviation as error:
            return {"reason": str(error)}
        self._whole, self._drawn, self._values = whole.made, whole.drawn, whole.values
        reason = "no argument has samples"
        for place, (split, rows) in enumerate(guesses(self._leaves)):
            try:
                return self._divided(split, rows).plain()
            except (Refused, Deviation) as error:
                reason = reason if place else str(error)
            except Exception as error:
                if self._exact and out_of_memory(error):
                    return {"reason": reason_of(error), "again": True}
                reason = reason if place else _why_parts_fail(split, self._leaves, error)
            self._restore()
        return {"reason": f"{LOOKS} ({whole.looks})" if reason == LOOKS else reason}

    # -- the parts ------------------------------------------------------------------------------

    def _divided(self, split: tuple[int | None, ...], rows: int) -> Way:
        self._by_hand = None
        try:
            return self._made_up(split, rows, self._whole)
        except (Refused, Deviation) as error:
            if not (self._asked.by_hand and self._sums):
                raise
            reason = error
        self._restore()
        by_hand = self._noted_by_hand(split, rows)
        if by_hand is None:
            raise reason
        for _ in by_hand.tries(rows, shares(rows, self._asked.ranks)[0]):
            self._by_hand = by_hand
            self._norms.replayed = self._losses.replayed = 0
            try:
                whole = self._make(self._leaves, by_hand.of_whole())
                self._restore()
                return self._made_up(split, rows, whole)
            except (Refused, Deviation) as error:
                reason = error
                self._restore()
        raise reason

    def _noted_by_hand(self, split: tuple[int | None, ...], rows: int) -> ByHandTrial | None:
        """What its code sums, and computes with, whole and in a part; None where a part fails."""
        sizes = shares(rows, self._asked.ranks)
        by_hand = ByHandTrial(self._losses, self._values is not None)
        for leaves in (self._leaves, self._part(split, 0, sizes)):
            self._norms.replayed = self._losses.replayed = 0
            try:
                self._make(leaves, by_hand.noting())
            except Exception:  # it is told already
                return None
            finally:
                self._restore()
        return by_hand

    def _made_up(self, split: tuple[int | None, ...], rows: int, whole: list[Any]) -> Way:
        sizes = shares(rows, self._asked.ranks)
        if self._values is not None:
            self._values.begin()
        drawn = self._draws_of_part(split, sizes, rows)
        asks = NOTHING
        if self._values is not None:
            asks = self._what_it_asks(self._values, split, sizes, drawn)
        parts = []
        self._losses.parts = []
        for rank in range(len(sizes)):
            parts.append(self._of_rank(split, rank, sizes, drawn, compared=True))
            self._calls.compare()
            self._restore()
        if len({len(each) for each in (*parts, whole)}) > 1:
            raise Refused("its result for a part of the batch has another structure")
        try:
            made_up = [
                joined([each[n] for each in parts], whole[n], sizes, rows, self._sums) for n in range(len(whole))
            ]
            if (SUMMED in made_up or self._by_hand is not None) and not self._losses.complete():
                raise Refused("it makes one value of the whole batch")
        except Refused as refusal:
            raise Refused(f"{refusal}{self._named(split, sizes, drawn)}") from None
        found = (tuple(made_up), tuple(drawn), bool(self._norms.statistics), self._calls.effects, asks)
        way = Way(split, *found, tried=(rows, rows))
        added: list[list[Added]] = []
        if self._by_hand is not None:
            way = replace(way, by_hand=self._by_hand.known, numbers=self._by_hand.numbers)
            added = self._by_hand.added()
        self._compare_gradients(whole if self._by_hand else self._whole_as_parts(way), parts, way, added)
        return way

    def _compare_gradients(
        self, whole: list[Any], parts: list[list[Any]], way: Way, added: Sequence[Sequence[Added]]
    ) -> None:
        given = [each for each in (*self._model.parameters(), *self._leaves) if _is_trained(each)]
        state = State(self._calls.roots)
        with without_gradient_hooks(given):  # of what is trained: they will be given what one process gives them
            same = gradients_alike(whole, parts, way.joined, given, added)
        if not same:
            raise Refused("a function of its own, or a hook in its call, makes other gradients of a part of its batch")
        if state.changed() and (what := state.change()):
            self._restore()
            raise Refused(f"it keeps something of the backward pass: {what}")

    def _whole_as_parts(self, way: Way) -> list[Any]:
        """With gradients as parts have them here: statistics are numbers of which nothing is a function."""
        if not way.norms:
            return self._whole
        self._norms.replayed = self._losses.replayed = 0
        made = self._make(self._leaves)
        self._restore()
        return made

    def _what_it_asks(
        self, values: ValueTrial, split: tuple[int | None, ...], sizes: Sequence[int], drawn: list[Drawn]
    ) -> Asked:
        values.examine(partial(self._of_any, split, sizes, drawn), split, sizes, self._leaves)
        return values.found(self._leaves)

    def _of_any(
        self,
        split: tuple[int | None, ...],
        sizes: Sequence[int],
        drawn: list[Drawn],
        rank: int | None,
        within: AbstractContextManager[Any] | None = None,
    ) -> None:
        """`rank`: None for the whole."""
        if rank is None:
            self._norms.replayed = self._losses.replayed = 0
            self._make(self._leaves, within or nullcontext())
        else:
            self._of_rank(split, rank, sizes, drawn, within)
        self._restore()

    def _of_rank(
        self,
        split: tuple[int | None, ...],
        rank: int,
        sizes: Sequence[int],
        drawn: list[Drawn],
        within: AbstractContextManager[Any] | None = None,
        compared: bool = False,
    ) -> list[Any]:
        """`compared`: it is one of those that are."""
        self._norms.replayed, self._losses.replayed, self._chance.noted = 0, 0, None
        self._chance.begin(drawn, sum(sizes[:rank]), sizes[rank], sum(sizes))
        try:
            with nullcontext() if self._by_hand is None else self._by_hand.of_part(sizes[rank], compared):
                return self._make(self._part(split, rank, sizes), within or self._of_part())
        finally:
            self._chance.end()

    def _of_part(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._values is None else self._values.of_part()

    def _part(self, split: tuple[int | None, ...], rank: int, sizes: Sequence[int]) -> list[Any]:
        return [
            leaf if dim is None else part_of(leaf, dim, rank, sizes)
            for leaf, dim in zip(self._leaves, split, strict=True)
        ]

    def _draws_of_part(self, split: tuple[int | None, ...], sizes: Sequence[int], rows: int) -> list[Drawn]:
        if not self._drawn:
            return []
        self._norms.replayed, self._losses.replayed, self._chance.noted = 0, 0, []
        self._make(self._part(split, 0, sizes), self._of_part())
        noted = self._chance.noted
        self._restore()
        try:
            return compared(self._drawn, noted, rows, sizes[0])
        except ValueError as reason:
            raise Refused(str(reason)) from None

    def _named(self, split: tuple[int | None, ...], sizes: Sequence[int], drawn: list[Drawn]) -> str:
        name = culprit(self._model, partial(self._of_any, split, sizes, drawn), len(sizes), alike)
        return f": {name}" if name else ""


def _why_parts_fail(split: Sequence[int | None], leaves: Sequence[Any], error: Exception) -> str:
    cut = [leaf for leaf, dim in zip(leaves, split, strict=True) if dim is not None]
    if all(leaf.dim() == 1 and leaf.is_floating_point() for leaf in cut):  # an agent's observation, as a rule
        return "it is called with a single vector, which cannot be divided"
    if any(isinstance(leaf, torch.Tensor) and is_sparse(leaf) for leaf in leaves):
        return "it is given a sparse matrix, as that of a graph, which cannot be divided with the rest"
    return f"a part of its batch fails ({reason_of(error)})"


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype in _FLOATS


def _is_trained(each: Any) -> bool:
    return isinstance(each, torch.Tensor) and each.requires_grad
