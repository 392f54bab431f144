"""Stands around models' outermost calls, and divides those that can be."""

from __future__ import annotations

import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from overdrive.core.by_identity import ByIdentity
from overdrive.core.flag import Flag
from overdrive.model_state.division.by_hand import ByHand
from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.chance import Chance, Deviation
from overdrive.model_state.division.exchange import Gathered, Mean, Part, Shared, part_of, shares
from overdrive.model_state.division.likeness import SUMMED
from overdrive.model_state.division.losses import Losses, Summed
from overdrive.model_state.division.norms import Norms
from overdrive.model_state.division.results import gradients_of, watch
from overdrive.model_state.division.tree import flatten
from overdrive.model_state.division.trial import find_way
from overdrive.model_state.division.values import OtherAnswers, Values, Watching
from overdrive.model_state.division.way import Way
from overdrive.ranks.group import Group
from overdrive.ranks.requests import PartFailed
from overdrive.seams.points import Again, Failing
from overdrive.seams.torch.hooks import sees_its_batch
from overdrive.seams.torch.modules import first_parameter, still_lazy
from overdrive.seams.torch.tracing import compiled, traced
from overdrive.techniques.parallel.data_parallel.counts import ENOUGH, Calls, saved_nothing
from overdrive.techniques.parallel.data_parallel.gradients import Gradients
from overdrive.techniques.parallel.data_parallel.known import Kind, Known, kind_of
from overdrive.techniques.parallel.data_parallel.leaves import behind
from overdrive.techniques.parallel.data_parallel.sharding import Sharding

_MOST_TRIALS = 12  # of a model: each takes 0.1 s and more


class Divided:
    """All that one run does about its models' calls.

    Args:
        say: tells the user a sentence, on rank 0.
        aside: within it, what is read of tensors is read by this rank alone.
        sharding: of the models whose parameters are divided; None where none are.
        sparing: see `Gradients`.
    """

    def __init__(
        self,
        group: Callable[[], Group],
        say: Callable[[str], None],
        aside: Callable[[], AbstractContextManager[None]],
        sharding: Sharding | None = None,
        sparing: bool = False,
    ) -> None:
        self._group_of, self._say, self._aside = group, say, aside
        self._sharding, self._sparing = sharding, sparing
        self.chance, self.norms, self.losses = Chance(), Norms(None), Losses()
        self._gradients: Gradients | None = None
        self._models: ByIdentity[Known] = ByIdentity()
        self._told: set[tuple[str, str]] = set()
        self._calls: dict[str, Calls] = {}  # by the model's name
        self._within = Flag()  # a call that is tried or divided
        self.divided = 0  # calls

    @property
    def group(self) -> Group:
        group = self._group_of()
        if self._gradients is None:
            kept = self._sharding.kept if self._sharding is not None else None
            self._gradients, self.norms.group = Gradients(group, kept, self._sparing), group
            self.losses.group = group
        return group

    def close(self) -> None:
        if self._gradients is not None:
            self._gradients.forget()

    def asked(self, outputs: Any, call: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """What `torch.autograd.grad` gives, with the parts of all ranks."""
        if self._within or not self.divided or not self.group.mine():
            return call(inputs, *args, **kwargs)
        mean: Callable[[Any], Any] = lambda each: Mean.apply(each, self.group)  # type: ignore[no-untyped-call]  # noqa: E731
        return gradients_of(inputs, call, args, kwargs, mean)

    def watched(self, tensor: Any, hook: Any, plain: Callable[[Any], Any]) -> Any:
        """An answer to the seam *gradient watched*."""
        if hook is None or self._gradients is None or not self._gradients.watches(tensor):
            return watch(tensor, hook, plain)
        handle = plain(hook)
        self._gradients.hooked(tensor)
        return handle

    def told(self) -> str:
        """For the end of the run."""
        return saved_nothing(self._calls, self.group.size) if self._calls else ""

    def trained_by(self, model: Any) -> None:
        """Keras has made what it trains that model by."""
        if model.jit_compile:
            self._tell(model, "its steps are compiled (jit_compile)")

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if traced() or first_parameter(model) is None or not self.group.mine():
            return call(*args, **kwargs)
        if self._sharding is not None:
            call = self._sharding.around(model, call)
        leaves, build = flatten((args, kwargs))
        known = self._models.setdefault(model, Known())
        asked = CallToDivide(
            *(model, call, leaves, build, self.group.size, self.chance, self.norms, self.losses),
            values=True,
            objects=True,
            by_hand=True,
        )
        calls = self._calls.setdefault(type(model).__name__, Calls())
        way = self._way(known, asked)
        rows = way.rows(leaves) if way else 0
        if way is None or rows < self.group.size * (2 if way.norms else 1):
            refused = known.by_kind.get(kind_of(model, leaves))
            if known.untold or (refused is not None and not refused.ways):
                calls.whole += 1
            else:
                calls.few += 0 < _samples(leaves) < ENOUGH * self.group.size
            return self._whole(model, known, call, *args, **kwargs)
        kind, astray = known.by_kind[kind_of(model, leaves)], False
        self.group.may_undo, self.group.may_differ = True, kind.asks
        try:
            result = self._divide(kind, way, asked, rows)
        except PartFailed as failed:
            reason = str(failed)
        except (Exception, Deviation, Failing) as error:
            reason = error.reason if isinstance(error, Failing) else str(error).strip().split("\n", 1)[0]
            # Where a technique inside of this one is to go, on all ranks alike, the call is divided again.
            alike = self.group.part_failed(reason, _how(error))
            if alike and isinstance(error, (Again, Failing)):
                raise
            astray = alike and isinstance(error, OtherAnswers)
        else:
            self.divided += 1
            calls.divided += 1
            return result
        finally:
            self.group.may_undo = self.group.may_differ = False
        if astray:
            kind.astray = True
        else:
            known.whole(kind_of(model, leaves), reason)
        if self._sharding is not None:
            self._sharding.kept.give_back()  # ranks have come to different places: what is gathered is the same again
        raise Again

    def _whole(self, model: Any, known: Known, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Where the call failed in parts, and fails whole too, the error is the program's, which tells it itself."""
        reason, known.untold = known.untold, ""
        result = call(*args, **kwargs)
        if self._sharding is not None and torch.is_grad_enabled() and self.group.mine():
            assert self._gradients is not None  # alike on all ranks, so that they are summed only to be parted
            kept = self._sharding.kept
            self._gradients.watch([each for each in model.parameters() if kept.of(each) is not None])
        if reason:
            self._tell(model, reason)
        return result

    def _divide(self, kind: Kind, way: Way, asked: CallToDivide, rows: int) -> Any:
        group, sizes, model = self.group, shares(rows, self.group.size), asked.model
        ways = kind.suiting(way, asked.leaves)
        values = Values(
            group,
            [each.asks for each in ways],
            sizes[group.rank],
            rows,
            lambda: [*model.parameters(), *model.buffers()],
        )
        by_hand = ByHand(group, way.by_hand or (), way.numbers, sizes[group.rank], rows)
        own = [self._inward(leaf, dim, sizes) for leaf, dim in zip(asked.leaves, way.split, strict=True)]
        self.losses.whole = None if way.by_hand is None else by_hand.total
        self.losses.sums = way.numbers is not None
        self.chance.begin(way.drawn, sum(sizes[: group.rank]), sizes[group.rank], rows)
        try:
            with (
                self._within,
                self.norms.active,
                self.losses.active,
                by_hand.watched(kind.asks) if way.by_hand or way.numbers else nullcontext(),
                Watching(values) if kind.asks else nullcontext(),
            ):
                results, together = flatten(asked.made(own), objects=True)
        finally:
            self.losses.whole, self.losses.sums = None, False
            self.chance.end()
        by_hand.over()
        if kind.asks:
            asks = values.asked()
            way = next(each for each in ways if each.asks is asks)
        if len(results) != len(way.joined):
            raise Deviation("its result has another structure than before")
        if torch.is_grad_enabled():
            self._watch(model, kind, way, results, own)
        made: dict[Any, Any] = {}  # what is there twice is there twice again
        for leaf, joined in zip(results, way.joined, strict=True):
            if (id(leaf), joined) not in made:
                made[id(leaf), joined] = self._outward(leaf, joined, sizes)
        return together([made[id(leaf), joined] for leaf, joined in zip(results, way.joined, strict=True)])

    def _watch(self, model: Any, kind: Kind, way: Way, results: Sequence[Any], own: Sequence[Any]) -> None:
        """Have the gradients averaged of all that is trained in this call."""
        assert self._gradients is not None
        others = kind.others.get(way.asks.answers)
        if others is None:
            given = [each for each in own if isinstance(each, torch.Tensor)]
            others = [weakref.ref(each) for each in behind(results, given, model.parameters())]
            kind.others[way.asks.answers] = others
        self._gradients.watch(model.parameters())
        self._gradients.watch(each for ref in others if (each := ref()) is not None)

    def _inward(self, leaf: Any, dim: int | None, sizes: Sequence[int]) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        recorded = leaf.requires_grad and torch.is_grad_enabled()
        if dim is None:
            return Shared.apply(leaf, self.group) if recorded else leaf  # type: ignore[no-untyped-call]
        if recorded:
            return Part.apply(leaf, self.group, dim, sizes, 1)  # type: ignore[no-untyped-call]
        return part_of(leaf, dim, self.group.rank, sizes)

    def _outward(self, leaf: Any, joined: tuple[int, int] | None, sizes: Sequence[int]) -> Any:
        if joined is None:
            return leaf
        if joined == SUMMED:
            return Summed.apply(leaf, self.group)  # type: ignore[no-untyped-call]
        dim, per_row = joined
        sizes = [each * per_row for each in sizes]
        if isinstance(leaf, torch.Size):
            return torch.Size((*leaf[:dim], sum(sizes), *leaf[dim + 1 :]))
        if leaf.dim() <= dim or leaf.shape[dim] != sizes[self.group.rank]:
            raise Deviation("its result has another shape than before")
        return Gathered.apply(leaf, self.group, dim, sizes, 1)  # type: ignore[no-untyped-call]

    # -- how ------------------------------------------------------------------------------------

    def _way(self, known: Known, asked: CallToDivide) -> Way | None:
        """How this call is divided; None where it is to be made whole."""
        leaves = asked.leaves
        found = known.by_kind.get(kind_of(asked.model, leaves))
        if found is not None:
            way = found.way(asked.model, leaves)
            if way is not None or not found.ways:
                return way
        if _samples(leaves) < ENOUGH * self.group.size or still_lazy(asked.model):
            return None  # nothing to divide, or too few to find out, or a call that makes the parameters
        return self._try(known, asked)

    def _try(self, known: Known, asked: CallToDivide) -> Way | None:
        model, kind = asked.model, kind_of(asked.model, asked.leaves)
        known.trials += 1
        told: dict[str, Any]
        if known.trials > _MOST_TRIALS:
            told = {"reason": "it is called in many ways"}
        elif sees_its_batch(model):
            told = {"reason": "the program has hooks on it"}
        else:
            told = {}
            assert self._gradients is not None
            whole = nullcontext() if self._sharding is None else self._sharding.kept.for_a_fork(model)
            with self._within, self._gradients.unheard, whole:
                if self.group.tells:
                    began = time.monotonic()
                    with self._aside():  # where it is made in this very process, what the model reads in it
                        told = find_way(asked)
                    self.group.waited += time.monotonic() - began  # no part of its steps: it is not slow for that
            told = self.group.told_by_first(told, "how a model's call is divided")
        way = None if "reason" in told else Way.of_plain(told)
        if way is not None and compiled(model) and (way.norms or way.drawn):
            way, told = None, {"reason": "it is compiled, with random numbers or batch norm"}
        if way is None:
            if kind in known.by_kind and known.by_kind[kind].beyond(asked.leaves):
                known.untold = told["reason"]  # of this call alone: with as many samples as were tried it is divided
            else:
                known.whole(kind, told["reason"])
            return None
        try:
            known.by_kind[kind] = known.by_kind.get(kind, Kind()).with_(way, model, asked.leaves)
        except ValueError as error:
            known.whole(kind, str(error))
            return None
        return way

    def _tell(self, model: Any, reason: str) -> None:
        name = type(model).__name__
        self._calls.setdefault(name, Calls()).reason = reason
        if (name, reason) not in self._told:
            self._told.add((name, reason))
            self._say(f"{name} is called whole on every rank: {reason}")


def _samples(leaves: Sequence[Any]) -> int:
    """That a call may have, by the first tensor it is given."""
    return next((len(each) for each in leaves if isinstance(each, torch.Tensor) and each.dim()), 0)


def _how(error: BaseException) -> str:
    """In what way a part failed, so that ranks can tell whether all did so in the same."""
    if isinstance(error, OtherAnswers):
        return f"other answers {zlib.crc32(repr(error.answers).encode())}"
    if isinstance(error, Failing):
        return f"failing {error.owner}"
    return type(error).__name__
