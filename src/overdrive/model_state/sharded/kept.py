"""Parameters of which each rank keeps its share, and which are whole while somebody uses them.

A parameter stays the program's own object. While it is not whole its class is another one, which PyTorch tells of each
function that is called with it: what needs its values gathers it first. Its memory is given back when other parameters
are gathered, unless somebody else holds it (a view, a graph): as in one process, that goes on to be the parameter's. So
what a program does to a parameter never finds a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from overdrive.model_state.sharded.held import Held, Sharded, Unit, keepers, set_data
from overdrive.model_state.sharded.parts import GradientParts, may_gather
from overdrive.model_state.sharded.rounded import Sent, exchange_rounded
from overdrive.model_state.sharded.saved import Saved
from overdrive.model_state.sharded.share import Share, exchange
from overdrive.ranks.group import Group
from overdrive.seams.torch.internals import as_plain_tensors, storage_owners, unseen_by_modes

# What these tell is right while a parameter is not whole.
_TOLD_ATTRIBUTES = frozenset(
    (
        *("shape", "dtype", "device", "layout", "ndim", "nbytes", "itemsize", "requires_grad", "is_leaf", "grad_fn"),
        *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "_version", "_backward_hooks", "names"),
        *("_post_accumulate_grad_hooks", "output_nr", "retains_grad", "is_xla", "is_mps", "is_xpu", "is_nested"),
    )
)
TOLD_METHODS = frozenset(
    (
        *("size", "dim", "numel", "nelement", "element_size", "ndimension", "is_floating_point", "is_complex"),
        *("is_signed", "get_device", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_"),
        *("__hash__", "__len__", "is_inference"),
    )
)
_ACCESS = ("__get__", "__set__", "__delete__")
_OWNERS = 2  # of the memory of a parameter that nobody else uses: it, and the handle that asks


class Kept:
    """All parameters that one run keeps its share of.

    Attributes:
        in_step: they are this rank's shares, and nothing else.
        in_stages: a call in which each rank uses what is its own, and the others' nowhere.
    """

    def __init__(self, group: Callable[[], Group], rounds: bool = False) -> None:
        """`rounds`: a model's call gathers them with fewer digits (see `rounded`)."""
        self._group_of, self._rounds = group, rounds
        self._held: dict[int, Held] = {}  # by the parameter's id
        self._open: list[Unit] = []
        self._within = False  # a model's call
        self.in_step = self.in_stages = False
        self._saved = Saved(self.gather)
        self.gradients = GradientParts(group, self.of, lambda: [*self._held.values()], self.settle)
        keepers.append(self)

    def __len__(self) -> int:
        return len(self._held)

    def of(self, parameter: Any) -> Held | None:
        held = self._held.get(id(parameter))
        return held if held is not None and held.parameter is parameter else None

    def own(self, parameter: Any) -> torch.Tensor | None:
        """All of it, where this rank is the one that has it."""
        held = self.of(parameter)
        if held is None or not held.share.is_whole:
            return None
        with as_plain_tensors():
            return parameter.data if held.part is None else held.part

    def settle(self, held: Held) -> None:
        held.settle(self._within)

    def take(self, parameters: Sequence[nn.Parameter], owner: int | None = None) -> None:
        """Keep a share of these, which are gathered together; they are whole until they are given back.

        `owner`: the rank that has all of them.
        """
        group, unit = self._group_of(), Unit()
        for each in parameters:
            held = Held(each, Share(each, group.rank, group.size, owner), unit, partial(self._gone, id(each)))
            unit.all.append(held)
            self._held[id(each)] = held
            self._saved.whole(held)
        self._open.append(unit)

    def _gone(self, key: int, reference: Any) -> None:
        self._held.pop(key, None)

    # -- who asks -------------------------------------------------------------------------------

    def asked(self, function: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(function, "__name__", "")
        attribute = getattr(getattr(function, "__self__", None), "__name__", "") if name in _ACCESS else ""
        if attribute == "grad" and (held := self.of(args[0])) is not None:
            if name == "__get__" and (part := self.gradients.shown(held)) is not None:
                return part
            with torch.no_grad(), _unseen():
                self.gradients.asked(held, args[0], name, args[1] if name == "__set__" else None)
        elif not (name in TOLD_METHODS or attribute in _TOLD_ATTRIBUTES):
            return self._answered(function, args, kwargs)
        with as_plain_tensors():
            return function(*args, **kwargs)

    def _answered(self, function: Any, args: Any, kwargs: Any) -> Any:
        """With whole parameters."""
        given = pytree.tree_leaves((args, kwargs))
        self.gather([held for each in given if (held := self.of(each)) is not None], for_call=self._within)
        if not any(type(each) is Sharded for each in given):
            return function(*args, **kwargs)
        with as_plain_tensors(), self._saved.hooks():
            return function(*args, **kwargs)

    @contextmanager
    def as_it_was(self, parameter: Any) -> Iterator[None]:
        held = self.of(parameter)
        if held is not None:
            self.gather([held])
        parameter.__class__ = nn.Parameter
        try:
            yield
        finally:
            if held is not None:
                self.settle(held)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Around a model's call: within it, parameters that are whole cost nothing more."""
        before = self._within
        self._set_within(True)
        try:
            with self._saved.hooks():
                yield
        finally:
            self._set_within(before)

    def again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What a checkpoint calls in the call, and again in the backward pass, where that is a part of it too."""

        def called(*args: Any, **kwargs: Any) -> Any:
            with self.calling():
                return function(*args, **kwargs)

        return called

    @contextmanager
    def staged(self) -> Iterator[None]:
        """Around a model's call in stages: what this rank has whole is as in one process."""
        own = [held for held in self._held.values() if held.share.is_whole and held.parameter is not None]
        for held in own:
            held.parameter.__class__ = nn.Parameter
        self.in_stages = True
        try:
            yield
        finally:
            self.in_stages = False
            for held in own:
                self.settle(held)

    def _set_within(self, within: bool) -> None:
        self._within = within
        for unit in self._open:
            for held in unit.all:
                self.settle(held)

    # -- gathered and given back ----------------------------------------------------------------

    def gather(self, wanted: Iterable[Held], for_call: bool = False) -> None:
        """
        Args:
            for_call: of a model, or its backward pass.

        Raises:
            RuntimeError: there are no other ranks here to have them from.
        """
        all_wanted = dict.fromkeys(each.unit for each in wanted)
        units = [each for each in all_wanted if not each.serves(for_call)]
        if not units:
            return
        group = self._group_of()
        if self.in_step:
            raise RuntimeError("a parameter that is divided over ranks is not whole within an optimizer's step")
        if self.in_stages:
            raise RuntimeError("a parameter of another stage is used where its stage does not see it")
        may_gather(group)
        self.give_back([each for each in all_wanted if each not in units])
        with torch.no_grad(), _unseen():
            for unit in units:
                if not (for_call and self._rounds and self._gather_rounded(unit, group)):
                    self._gather(unit, group)

    @contextmanager
    def for_a_fork(self, model: nn.Module) -> Iterator[None]:
        """Within it all of a model is whole at once, and gradients are nobody's: a forked process cannot gather."""
        self.gather(held for each in model.parameters() if (held := self.of(each)) is not None)
        with self.gradients.aside():
            yield

    def give_back(self, but: Sequence[Unit] = ()) -> None:
        """Let go of what is whole and not needed now."""
        with torch.no_grad(), _unseen():
            for unit in self._open:
                if unit not in but:
                    unit.is_open = False
                    for held in unit.all:
                        self._give_back(held)
        self._open = [each for each in self._open if each.is_open]

    def give_back_the_rest(self) -> None:
        """Try again what somebody else held at that time."""
        self.give_back()
        with torch.no_grad(), _unseen():
            for held in [*self._held.values()]:
                self._give_back(held)

    def _gather(self, unit: Unit, group: Group) -> None:
        """All of it: of what is in memory here, another rank may have its share alone."""
        made = [(held.room(), held.share) for held in unit.all]
        exchange(made, group, "a layer's parameters")
        for held, (whole, _) in zip(unit.all, made, strict=True):
            held.part, held.rounded = None, False
            self._place(held, whole)
        self._opened(unit, rounded=False)

    def _gather_rounded(self, unit: Unit, group: Group) -> bool:
        """The same with fewer digits. False where a rank has found that the program writes to it: to change what all
        digits are kept of elsewhere would change nothing."""
        if unit.in_full:
            return False
        made = []
        for held in unit.all:
            whole = held.room()
            own = held.share.of(whole) if held.part is None else held.part
            made.append(Sent(own, whole, held.share, stays=held.part is None))
        unit.in_full = exchange_rounded(made, group, "a layer's parameters, rounded", unit.written)
        if unit.in_full:
            return False
        for held, sent in zip(unit.all, made, strict=True):
            held.rounded = held.part is not None
            self._place(held, sent.whole)
        self._opened(unit, rounded=True)
        return True

    def _place(self, held: Held, whole: torch.Tensor) -> None:
        if held.parameter is not None:
            set_data(held.parameter, whole)
            self._saved.whole(held)

    def _opened(self, unit: Unit, rounded: bool) -> None:
        unit.is_open, unit.is_rounded = True, rounded
        self._open.append(unit)
        for held in unit.all:
            self.settle(held)

    def _give_back(self, held: Held) -> None:
        parameter = held.parameter
        if parameter is None or (held.part is not None and not held.rounded):
            return
        parameter.__class__ = nn.Parameter
        if held.rounded and held.is_written():  # that it is, from here on
            held.part, held.rounded, held.unit.written = None, False, True
        if parameter.shape != held.share.shape or parameter.stride() != held.share.stride:
            ranks = len(held.share.sizes)  # the program gave it other data
            held.share = Share(parameter, held.share.rank, ranks, held.share.owner)
        held.like = parameter.data.new_empty(0)
        if storage_owners(parameter.untyped_storage()) == _OWNERS:
            self._saved.gone(held)
            if held.part is None:
                part = held.share.of(parameter.data)
                held.part = part if held.share.is_whole else part.clone()
            held.rounded = False
            held.hide()
        self.settle(held)


@contextmanager
def _unseen() -> Iterator[None]:
    """What we do with parameters is no call of the program's, and no part of what it computes."""
    with unseen_by_modes(), torch.inference_mode(False):
        yield
