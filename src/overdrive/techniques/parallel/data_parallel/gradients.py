"""Gradients of what was used inside of divided calls, averaged over ranks before anything can look at them.

Hooks put them into buckets, in the order of the backward pass before; a full bucket is summed beside the pass, and its
end waits for all. Which parameters have a gradient on any rank is told then: one that has none in one process has none.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.core.flag import Flag
from overdrive.machine.pool.shared_memory import SharedSum
from overdrive.model_state.division.exchange import Mean
from overdrive.model_state.sharded.held import Held
from overdrive.model_state.sharded.kept import Kept
from overdrive.model_state.sharded.share import flat as flat_of
from overdrive.ranks.group import Group
from overdrive.seams.torch.hooks import accumulation_hooks, gradient_hooks
from overdrive.seams.torch.internals import after_backward, in_backward

_BUCKET = 4 << 20  # bytes: by gloo a sum of 4 MB takes 4 ms between two processes of one machine, one of 4 kB 0.2
_AT_ONCE = 1  # of these under way, where memory is spared: the others are finished, and theirs is free
_PATIENCE = 1.0  # seconds for such an end, which usually takes some ms
_EVERY = 1e-4
_FP32 = (torch.float16, torch.bfloat16)  # a sum over ranks would round them once more than one process does


class Gradients:
    """
    Args:
        kept: parameters of whose gradients each rank keeps its share; None where all are whole.
        sparing: of memory: of what is summed over ranks, little is there at once.
    """

    def __init__(self, group: Group, kept: Kept | None = None, sparing: bool = False) -> None:
        self._group, self._kept, self._sparing = group, kept, sparing
        self._known: dict[int, int] = {}  # by id: its number, the same on all ranks
        # By number. When a tensor goes is another time on each rank: its number is not given again.
        self._leaves: list[weakref.ref[torch.Tensor]] = []
        self._hooks: dict[int, list[Any]] = {}
        self._early: set[int] = set()  # those whose gradient the program's own hooks look at
        self._came: dict[int, None] = {}  # numbers, in this backward pass, in their order
        self._plan: list[list[int]] = []  # buckets, by the order of the last pass
        self._begun: list[_Bucket] = []
        self._under_way = False
        self._waits = True
        self._hooking = Flag()
        self.unheard = Flag()  # while a rank alone makes backward passes of its own, to find out something

    def watch(self, leaves: Iterable[torch.Tensor]) -> None:
        """Have the gradients of these averaged from now on; all ranks say it of the same, in the same order."""
        if self._under_way and not in_backward():  # the last pass ended in an error, which the program has taken
            self._came, self._begun, self._under_way = {}, [], False
        for leaf in leaves:
            number = self._known.get(id(leaf))
            if number is not None and self._leaves[number]() is not leaf:
                number = None
            if number is None and leaf.requires_grad and leaf.is_leaf:
                number = self._known[id(leaf)] = len(self._leaves)
                self._leaves.append(weakref.ref(leaf))
                self._hook(leaf, number)
            elif number is not None and number not in self._early and self._has_other_hooks(leaf, number):
                self._hook(leaf, number)

    def watches(self, leaf: torch.Tensor) -> bool:
        number = self._known.get(id(leaf))
        return number is not None and self._leaves[number]() is leaf and number in self._hooks

    def hooked(self, leaf: torch.Tensor) -> None:
        """The program has put a hook on one that is watched; a call may be still to be sent back."""
        number = self._known[id(leaf)]
        if number not in self._early and not self._hooking and not self._under_way:
            self._hook(leaf, number)

    def forget(self) -> None:
        for hooks in self._hooks.values():
            for each in hooks:
                each.remove()
        self._hooks.clear()

    def _has_other_hooks(self, leaf: torch.Tensor, number: int) -> bool:
        own = {each.id for each in self._hooks[number]}
        return any(key not in own for hooks in (gradient_hooks(leaf), accumulation_hooks(leaf)) for key in hooks or ())

    def _hook(self, leaf: torch.Tensor, number: int) -> None:
        for each in self._hooks.pop(number, ()):
            each.remove()
        if gradient_hooks(leaf) or accumulation_hooks(leaf):
            # They are to see what they would see in one process: it is averaged before them, and alone.
            self._early.add(number)
            others = dict(gradient_hooks(leaf) or {})
            with self._hooking:
                handle = leaf.register_hook(self._at_once)  # type: ignore[no-untyped-call]
            for key, hook in others.items():  # PyTorch calls them as they were put in, not in this dict's own order
                del gradient_hooks(leaf)[key]
                gradient_hooks(leaf)[key] = hook
        else:
            with self._hooking:
                handle = leaf.register_post_accumulate_grad_hook(lambda _: self._arrived(number))  # type: ignore[no-untyped-call]
        self._hooks[number] = [handle]

    def _at_once(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.unheard:
            return gradient
        mean: torch.Tensor = Mean.apply(gradient, self._group)  # type: ignore[no-untyped-call]
        return mean

    def _arrived(self, number: int) -> None:
        """The gradient of this leaf is in its place, with this rank's part alone."""
        if self.unheard:
            return
        if not self._under_way:
            self._under_way = True
            after_backward(self._backward_over)
            if self._sparing and not self._plan:  # else all gradients would be there at once, in the first pass
                known = [
                    n
                    for n in reversed(range(len(self._leaves)))
                    if n not in self._early and self._leaves[n]() is not None
                ]
                self._plan = self._buckets(known)
        self._came[number] = None
        with self._aside():
            while len(self._begun) < len(self._plan) and self._all_came(self._plan[len(self._begun)]):
                self._begin(self._plan[len(self._begun)])

    def _all_came(self, bucket: list[int]) -> bool:
        """The last one usually is what is missing: a look at it, for each gradient, and not at all of them."""
        return all(number in self._came for number in reversed(bucket))

    def _aside(self) -> AbstractContextManager[None]:
        return nullcontext() if self._kept is None else self._kept.gradients.aside()

    def _begin(self, numbers: list[int]) -> None:
        held = [self._kept.gradients.takes(self._leaf(each)) if self._kept is not None else None for each in numbers]
        gradients = [self._gradient(each) for each in numbers]
        parts = [
            each.reshape(-1) if place is None else flat_of(place.share.laid(each))
            for place, each in zip(held, gradients, strict=True)
        ]
        kind = torch.float32 if parts[0].dtype in _FP32 else parts[0].dtype
        work: Any = None if self._sparing else self._group.begin_shared_sum(parts, kind)
        flat = None
        if work is None:
            flat = parts[0] if self._sparing and len(parts) == 1 else torch.cat(parts)
            flat = flat.to(kind)
            work = self._group.begin_sum(flat)
        for number, place in zip(numbers, held, strict=True):
            if place is not None:
                self._leaf(number).grad = None
        self._begun.append(_Bucket(numbers, held, flat, work))
        if self._sparing:
            for bucket in self._begun[:-_AT_ONCE]:
                if bucket.work is not None and self._comes(bucket.work):
                    self._put_back(bucket)

    def _comes(self, work: Any) -> bool:
        """Wait for it, as long as that is sure to end: a rank that has no gradient for one of them begins it last."""
        until = time.monotonic() + _PATIENCE
        while self._waits and not work.is_completed():
            if time.monotonic() > until:
                self._waits = False
            time.sleep(_EVERY)
        return bool(work.is_completed())

    def _leaf(self, number: int) -> torch.Tensor:
        leaf = self._leaves[number]()
        assert leaf is not None  # it is in the graph
        return leaf

    def _gradient(self, number: int) -> torch.Tensor:
        """Of zeros, where another rank has one and this one none."""
        leaf = self._leaf(number)
        if leaf.grad is None:
            held = self._kept.of(leaf) if self._kept is not None else None
            leaf.grad = torch.zeros_like(leaf) if held is None else held.share.blank(held.like).zero_()
        return leaf.grad.detach()

    def _backward_over(self) -> None:
        with self._aside():
            self._average_all()
        if self._kept is not None:
            self._kept.give_back()

    def _average_all(self) -> None:
        came, self._came, self._under_way = [*self._came], {}, False
        begun = len(self._begun)
        mask = torch.zeros(len(self._leaves) + 1, dtype=torch.int32)
        mask[came] = 1
        mask[-1] = begun
        # The ranks may have begun different numbers of buckets, where one of them has no gradient for some parameter.
        told = self._group.of_all(_packed(mask.tolist()), "which gradients there are")
        masks = [_unpacked(each, len(mask)) for each in told]
        for place in range(begun, max(each[-1] for each in masks)):
            self._begin(self._plan[place])
        done = {number for bucket in self._begun for number in bucket.numbers}
        wanted = [n for n in range(len(self._leaves)) if n not in done and any(each[n] for each in masks)]
        order = {number: place for place, number in enumerate(came)}
        if all(each[:-1] == masks[0][:-1] for each in masks):
            wanted.sort(key=order.__getitem__)
        for numbers in self._buckets([each for each in wanted if not self._apart(each)]):
            self._begin(numbers)
        self._group.finish([each.work for each in self._begun if isinstance(each.work, SharedSum)])
        for bucket in self._begun:
            self._put_back(bucket)
        self._begun.clear()
        self._group.sums_read()
        self._add_late(came)
        for number in wanted:
            if self._apart(number):
                self._alone(number)
        seen = [number for number in came if not self._apart(number)]
        same = all(each[:-1] == masks[0][:-1] for each in masks)
        self._plan = self._buckets(seen) if same else []

    def _add_late(self, came: list[int]) -> None:
        """What has come to a gradient that was in parts already: from a checkpoint's own pass within this one."""
        for number in came:
            leaf = self._leaf(number)
            if self._kept is None or self._kept.gradients.takes(leaf) is None or self._apart(number):
                continue
            if leaf.grad is not None:
                self._begin([number])
                self._put_back(self._begun.pop())

    def _put_back(self, bucket: _Bucket) -> None:
        if bucket.work is None:
            return
        self._group.finish([bucket.work])
        with torch.no_grad():
            first = 0
            for number, held in zip(bucket.numbers, bucket.held, strict=True):
                elements = self._leaf(number).numel()
                parts = [each.narrow(0, first, elements) for each in bucket.summands]
                first += elements
                if held is not None and self._kept is not None:
                    self._kept.gradients.add(held, parts[0].div_(self._group.size))
                else:
                    self._put_mean(self._gradient(number), parts)
        bucket.flat = bucket.work = None  # that holds it, too

    def _put_mean(self, place: torch.Tensor, parts: list[torch.Tensor]) -> None:
        """Of one that is summed already, or of two that others read, too."""
        if len(parts) == 2 and place.dtype == parts[0].dtype and place.is_contiguous():
            torch.add(*parts, out=place.view(-1)).div_(self._group.size)
            return
        total = parts[0].div_(self._group.size) if len(parts) == 1 else torch.add(*parts).div_(self._group.size)
        place.copy_(total.view(place.shape))

    def _apart(self, number: int) -> bool:
        gradient = self._leaf(number).grad
        return gradient is not None and (gradient.layout is not torch.strided or gradient.grad_fn is not None)

    def _alone(self, number: int) -> None:
        leaf = self._leaf(number)
        gradient = leaf.grad
        assert gradient is not None
        if gradient.layout is torch.strided:
            leaf.grad = Mean.apply(gradient, self._group)  # type: ignore[no-untyped-call]
        else:
            leaf.grad = self._sparse(gradient)

    def _sparse(self, gradient: torch.Tensor) -> torch.Tensor:
        """Of an embedding, say: the rows of all ranks."""
        own = gradient.coalesce()
        sizes = [each[0] for each in self._group.of_all([own.indices().shape[1]], "rows of a gradient")]
        indices = self._group.gather(own.indices(), 1, sizes, "rows of a gradient")
        values = self._group.gather(own.values(), 0, sizes, "rows of a gradient")
        whole = torch.sparse_coo_tensor(indices, values / self._group.size, gradient.shape)
        return whole.coalesce()

    def _buckets(self, numbers: list[int]) -> list[list[int]]:
        found: list[list[int]] = []
        size, kind = 0, None
        for number in numbers:
            leaf = self._leaf(number)
            full = size + (leaf.nbytes if self._sparing else 0) > _BUCKET  # a large one is summed in its place
            if not found or full or (leaf.dtype, leaf.device) != kind:
                found.append([])
                size, kind = 0, (leaf.dtype, leaf.device)
            found[-1].append(number)
            size += leaf.nbytes
        return found


@dataclass
class _Bucket:
    """Gradients that are summed together; `work` is None once they are where they belong."""

    numbers: list[int]
    held: list[Held | None]  # of those that are kept in parts
    flat: torch.Tensor | None  # None where the sum is in memory that ranks share
    work: Any

    @property
    def summands(self) -> list[torch.Tensor]:
        """Flat; of a finished sum they are one, or two that are still to be added."""
        return self.work.parts if self.flat is None else [self.flat]


def _packed(flags: list[int]) -> list[int]:
    """31 flags a number; the last, which is a count, as it is."""
    bits = flags[:-1]
    words = [sum(bit << place for place, bit in enumerate(bits[n : n + 31])) for n in range(0, len(bits), 31)]
    return [*words, flags[-1]]


def _unpacked(words: list[int], size: int) -> list[int]:
    bits = [words[n // 31] >> (n % 31) & 1 for n in range(size - 1)]
    return [*bits, words[-1]]
