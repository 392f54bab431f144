"""Technique `pool_before_relu`."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.seams.torch.deferred import Relu
    from overdrive.techniques.technique import Settings

_WATCHED_CALLS = 2  # of a model, in which a ReLU is computed as written, to see who uses it
_FIT, _UNFIT = -1, -2  # what a ReLU may be after that many


class PoolBeforeRelu(Technique):
    """Computes ReLU after the max pool that follows it, on a quarter of the elements.

    What it does: `max_pool(relu(x))` becomes `relu(max_pool(x))`, which commutes, forward and backward.
    In the first two calls of a model, in training and in evaluation each, it sees which ReLUs are used by
    one max pool and nothing else (no hook, no residual, nothing kept); from then on these return a tensor that
    is not computed, which the pool takes as it is. Anything else that asks for it gets it computed.

    When it helps: convolutional networks with ReLU and max pooling between large images (VGG, the stem of a
    ResNet, small CNNs): ReLU's pass over memory and its backward pass are saved. Training steps of
    examples/cifar_cnn.py's network without its data, on one core of a busy AMD EPYC, alternating in one process:
    1.20 times at batch 512 (quartiles 1.06 and 1.39), 1.08 at batch 64 (1.04 and 1.22), the same bits.

    When it hurts: each such ReLU costs some 10 us of Python, more than ReLU itself where images and batches
    are tiny. A compiled model has the two fused already and is left alone, and so is what is checkpointed.

    Contract: exact. What would differ is computed as written: returned indices, dilated windows, and windows
    with a -0.0 where the device's ReLU keeps it (looked for in the pooled result each time).

    Source: ReLU and maximum are monotone; the arguments are in seams/torch/deferred.py.
    """

    name = "pool_before_relu"
    contract = Contract.EXACT
    targets = ("forward", "backward")
    expected_saving = 0.12
    acts_on = ("max_pool",)
    order = 35

    def applies(self, facts: Facts) -> str | None:
        if facts.own_compile:
            return "the program compiles its model itself, which fuses the two"
        if not facts.modules:
            return "the trained parameters belong to no nn.Module"
        return None

    def install(self, seams: Seams, settings: Settings) -> Handle:
        here = threading.local()  # here.call: the outermost call of a model that this thread is in
        known: dict[int, tuple[weakref.ref[Any], dict[tuple[bool, bool], list[int]] | None]] = {}

        def look_here() -> None:
            from overdrive.seams.torch.deferred import can_tell

            if not can_tell():
                raise CannotInstall("this PyTorch does not show who holds a tensor")

        def call_with_deferred_relus(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            import torch

            from overdrive.seams.torch.deferred import Unsettled
            from overdrive.seams.torch.tracing import traced

            if model._compiled_call_impl is not None or traced():
                return call(*args, **kwargs)
            of_model = known.get(id(model))
            if of_model is None or of_model[0]() is not model:
                gone = functools.partial(_forget, known, id(model))
                of_model = known[id(model)] = (weakref.ref(model, gone), None if _is_compiled(model) else {})
            if of_model[1] is None:
                return call(*args, **kwargs)
            sites = of_model[1].setdefault((model.training, torch.is_grad_enabled()), [])
            if sites and all(site == _UNFIT for site in sites):
                return call(*args, **kwargs)
            here.call = _Call(sites)
            try:
                return call(*args, **kwargs)
            except Unsettled as error:
                raise CannotInstall(f"{error}; the model was called again") from None
            finally:
                before, here.call = here.call, None
                before.end()

        def answer(tensor: Any, in_place: bool) -> Any:
            call = getattr(here, "call", None)
            return None if call is None else call.answer(tensor, in_place)

        def leave_if_useless(optimizer: Any) -> None:
            seams.step_ends.unsubscribe(leave_if_useless)
            sites = [site for _, tables in known.values() for table in (tables or {}).values() for site in table]
            if all(site == _UNFIT for site in sites):
                raise CannotInstall("no ReLU of the model goes into a max pool and nowhere else")

        def undo() -> None:
            call = getattr(here, "call", None)
            if call is not None:
                here.call = None
                call.end()

        seams.framework_arrived.subscribe(look_here)
        seams.model_called.subscribe_innermost(call_with_deferred_relus)
        seams.relu_called.subscribe(answer)
        seams.step_ends.subscribe(leave_if_useless)
        seams.on_undo(undo)
        return seams.handle()


class _Call:
    """One call of a model. A ReLU in it is known by its number in the order in which they are called."""

    def __init__(self, sites: list[int]) -> None:
        self._sites = sites
        self._next = 0
        self._relus: list[tuple[int, Any]] = []  # with the number, and a weak reference to those deferred

    def answer(self, tensor: Any, in_place: bool) -> Any:
        from overdrive.seams.torch.deferred import Relu

        number = self._next
        self._next += 1
        if number == len(self._sites):
            self._sites.append(0)
        state = self._sites[number]
        if state == _UNFIT:
            return None
        if not _is_plain(tensor, in_place):
            self._sites[number] = _UNFIT
            return None
        relu = Relu(tensor, in_place, state != _FIT, functools.partial(self._miss, number))
        # What is watched is kept, to be judged; what is deferred is gone when its result is.
        self._relus.append((number, relu if relu.watched else weakref.ref(relu)))
        return relu.take()

    def _miss(self, number: int) -> None:
        self._sites[number] = _UNFIT

    def end(self) -> None:
        """The model has returned: judge what was watched, and leave nothing deferred."""
        for number, held in self._relus:
            relu: Relu | None = held() if isinstance(held, weakref.ref) else held
            if relu is None:
                continue
            seen = relu.seen_still()
            if seen:
                relu.settle()
            else:
                relu.drop()
            if seen or relu.others or relu.pools != 1:
                self._sites[number] = _UNFIT
            elif self._sites[number] >= 0:
                self._sites[number] += 1
                if self._sites[number] == _WATCHED_CALLS:
                    self._sites[number] = _FIT
        self._relus = []


def _forget(known: dict[int, Any], key: int, _: Any) -> None:
    known.pop(key, None)


def _is_compiled(model: Any) -> bool:
    """Whether parts of it are: they would be compiled anew for a tensor of another class."""
    return any(
        module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
        for module in model.modules()
    )


def _is_plain(tensor: Any, in_place: bool) -> bool:
    """Whether nobody sees the tensor but through the tensor itself, and its ReLU lies in memory as it does."""
    import torch

    if tensor._is_view() or not tensor.is_floating_point() or tensor.device.type not in ("cpu", "cuda"):
        return False
    if in_place and tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad):
        return False
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return False  # checkpointing counts what is kept for the backward pass; offloading keeps it elsewhere
    dense = tensor.is_contiguous() or (
        (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
        or (tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d))
    )
    # One holder is the tensor, the other is the handle made to ask.
    return dense and torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) <= 2
