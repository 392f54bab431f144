"""Technique `buffer_reuse`."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.seams.parameters import parameters_of
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_AS_WRITTEN = "as written"


class BufferReuse(Technique):
    """Takes fewer or the same buffers for gradients and activations: set to none, kept, or written in place.

    What it does: where the program calls `zero_grad`, lets go of gradients instead of filling them with zeros
    (`none`), or fills the same buffers again instead of letting go of them (`kept`). What the optimizer sees is what
    it would have seen: a parameter that got no gradient has zeros or none as the program asked for. With
    `in_place`, `nn.ReLU` modules write their result over their argument in training, in models whose result and
    gradients were first seen to come out the same to the bit.

    When it helps: `none`: scripts with `zero_grad(set_to_none=False)`, which hold all gradients through the forward
    pass, and write, read and add zeros. `kept`: where taking fresh memory in every step costs more than zeroing
    it. `in_place`: one buffer less for every ReLU.

    When it hurts: nothing to gain where the program does so itself; `kept` holds on to the gradients' memory. Zeroing
    by hand (`parameter.grad.zero_()`) is left alone. A program that reads gradients between `zero_grad` and the
    backward pass finds none there.

    Contract: exact. It falls to rounding where the sign of a gradient's zero matters (0 + -0 is +0).

    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    name = "buffer_reuse"
    contract = Contract.EXACT
    fallback_contract = Contract.ROUNDING
    targets = ("forward", "backward", "optimizer")
    expected_saving = 0.05
    aims = ("time", "memory")
    switchable = True
    order = 35
    knobs = (
        Knob("gradients", "none", "what zero_grad does with them", choices=("none", "kept", _AS_WRITTEN)),
        Knob("in_place", True, "whether ReLU modules write over their argument"),
    )

    def applies(self, facts: Facts) -> str | None:
        return None if facts.modules else "the trained parameters belong to no nn.Module"

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        # Of the first, what the program offers no place for is left undone: neither half needs a duel of its own.
        return [{"gradients": "none", "in_place": True}, {"gradients": "kept", "in_place": False}]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        in_place, gradients = bool(settings["in_place"]), str(settings["gradients"])
        parts: list[_InPlace | _Gradients] = []
        buffers = _Gradients(to_none=gradients == "none")
        if in_place:
            activations = _InPlace()
            parts.append(activations)
            seams.model_called.subscribe(activations.called)
        if gradients != _AS_WRITTEN:
            parts.append(buffers)
            seams.gradients_zeroed.subscribe(buffers.zeroed)
            seams.backward_done.subscribe(buffers.backward_done)
            seams.step_begins.subscribe(buffers.backward_done)
            seams.on_undo(buffers.settle)
        stepped: weakref.WeakSet[Any] = weakref.WeakSet()

        def second_step(optimizer: Any) -> None:
            # An optimizer's second: before its first there are no gradients to zero.
            if optimizer not in stepped:
                stepped.add(optimizer)
                return
            seams.step_ends.unsubscribe(second_step)
            if not any(part.used for part in parts):
                raise CannotInstall("; ".join(part.why_not for part in parts) or "all is as the program wrote it")

        seams.step_ends.subscribe(second_step)
        return seams.handle(off=buffers.settle)


class _Gradients:
    """`zero_grad` the other way, with the outcome that the program asked for."""

    def __init__(self, to_none: bool) -> None:
        self.used = False
        self.why_not = f"no gradients to {'set to none' if to_none else 'keep'} where the program zeroes them"
        self._to_none = to_none
        # Zeroed, and not seen by a backward pass since: the parameter and its buffer's version as zeros.
        self._waiting: dict[int, tuple[Any, int]] = {}

    def zeroed(self, owner: Any, call: Callable[[bool], None], set_to_none: bool = True) -> None:
        import torch

        if set_to_none == self._to_none:
            call(set_to_none)
            return
        parameters = _parameters_of(owner)
        ours = [each for each in parameters if _reusable(each)]
        self.used |= bool(ours)
        if self._to_none:
            for parameter in ours:
                parameter.grad = None
                self._waiting[id(parameter)] = weakref.ref(parameter), 0
            call(set_to_none)
            return
        if ours:
            with torch.no_grad():
                torch._foreach_zero_([each.grad for each in ours])
        for parameter in ours:
            self._waiting[id(parameter)] = weakref.ref(parameter), parameter.grad._version
        for parameter in parameters:
            if id(parameter) not in self._waiting:
                parameter.grad = None

    def backward_done(self, _: Any) -> None:
        """What got no gradient has what the program would find there."""
        import torch

        for reference, version in self._waiting.values():
            parameter = reference()
            if parameter is None:
                continue
            if self._to_none and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif not self._to_none and parameter.grad is not None and parameter.grad._version == version:
                parameter.grad = None
        self._waiting.clear()

    def settle(self) -> None:
        self.backward_done(None)


class _InPlace:
    """`nn.ReLU` in place while a model is called in training, where that was seen to make no difference."""

    def __init__(self) -> None:
        self.used = False
        self.why_not = "no ReLU module whose argument nobody else needs"
        # By model: weak references to its modules, none where it makes a difference.
        self._modules: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        if not torch.is_grad_enabled() or not model.training:
            return call(*args, **kwargs)
        if model not in self._modules:
            self._modules[model] = [weakref.ref(each) for each in self._try(model, call, args, kwargs)]
        modules = [module for each in self._modules[model] if (module := each()) is not None]
        with _writing_over(modules):
            return call(*args, **kwargs)

    def _try(self, model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
        import torch

        from overdrive.seams.torch.rehearsal import own_hooks

        modules = [each for each in model.modules() if type(each) is torch.nn.ReLU and not each.inplace]
        if not modules or own_hooks(model):
            return []
        try:
            before = _outcome(model, call, args, kwargs)
            with _writing_over(modules):
                after = _outcome(model, call, args, kwargs)
            same = _same(before, after)
        except Exception:  # autograd counts what is written to, and refuses
            return []
        self.used |= same
        return modules if same else []


@contextmanager
def _writing_over(modules: Sequence[Any]) -> Iterator[None]:
    for module in modules:
        module.inplace = True
    try:
        yield
    finally:
        for module in modules:
            module.inplace = False


def _outcome(model: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    """The results of a call, what it was given afterwards, and all gradients; the call leaves no trace."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    from overdrive.seams.torch.moment import Circumstances
    from overdrive.seams.torch.rehearsal import Rehearsal

    def apart(tensor: Any) -> Any:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    args, kwargs = tree_map_only(torch.Tensor, apart, (args, kwargs))
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    trained = [each for each in (*model.parameters(), *given) if each.requires_grad]
    with Circumstances().again(), Rehearsal(model):
        leaves = tree_leaves(call(*args, **kwargs))
        results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        ends = [leaf for leaf in results if leaf.requires_grad]
        # A gradient that differs from place to place, so that none is lost in a sum.
        sent = [
            torch.linspace(-1, 1, each.numel(), device=each.device).view(each.shape).to(each.dtype) for each in ends
        ]
        gradients = torch.autograd.grad(ends, trained, sent, allow_unused=True) if ends and trained else ()
    return [*(leaf.detach() for leaf in (*results, *given)), *gradients]


def _same(one: list[Any], other: list[Any]) -> bool:
    import torch

    return len(one) == len(other) and all(
        a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def _parameters_of(owner: Any) -> list[Any]:
    if hasattr(owner, "param_groups"):
        return parameters_of(owner)
    return list(owner.parameters())


def _reusable(parameter: Any) -> bool:
    """Whether its gradient is a plain tensor that the program holds by no other way: it would find zeros in it."""
    import torch

    gradient = parameter.grad
    if gradient is None or gradient.layout is not torch.strided or gradient.requires_grad:
        return False
    del gradient
    (references, owners), (no_references, no_owners) = _holders(parameter), _nobody()
    return owners is not None and no_owners is not None and references <= no_references and owners <= no_owners


def _holders(parameter: Any) -> tuple[int, int | None]:
    from overdrive.seams.torch.internals import storage_owners

    gradient = parameter.grad  # and whatever else holds it, or shares its memory
    return sys.getrefcount(gradient), storage_owners(gradient.untyped_storage())


@cache
def _nobody() -> tuple[int, int | None]:
    """What `_holders` counts for a gradient that only its parameter holds."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    return _holders(parameter)
