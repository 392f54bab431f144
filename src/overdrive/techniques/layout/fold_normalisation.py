"""Technique `fold_normalisation`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from overdrive.core.callers import Callers
from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings

_PAIRS = {
    "Conv1d": ("BatchNorm1d",),
    "Conv2d": ("BatchNorm2d",),
    "Conv3d": ("BatchNorm3d",),
    "Linear": ("BatchNorm1d",),
}


_MOST_CHANGES = 3  # of a model; then it is left alone


class FoldNormalisation(Technique):
    """Folds batch normalisation into the convolution or linear layer before it while a model is evaluated.

    What it does: in the first call of a model in evaluation mode without gradients, sees which convolutions and
    linear layers give their result to one batch normalisation and to nothing else. In later such calls, for the
    length of the call, these compute with weights that the normalisation has been multiplied into, and it is
    skipped. The weights are folded anew at each call: a program may have written them through `.data`, which no
    version counter tells. A call of another kind, or of a model that has changed in any way since (attributes, hooks,
    modules, globals that its code reads), is watched anew; a model that changes again and again, or whose way depends
    on its data or on chance, is left alone; where models are called in several threads at once, all are, and a call
    that comes while another is folded waits for its end.

    When it helps: evaluation and inference scripts of convolutional networks, where normalising is
    a good part of a call; a pass over each activation is saved. No case has been measured yet where it wins.

    When it hurts: on one core of an AMD EPYC, five convolutions of 32 channels with batch normalisation ran at
    0.90 times the speed for one image of 32x32 and at 0.72 times for 32: a normalisation is 2 % of a convolution
    there, and convolutions with fresh weights took longer, why is not known. Training is not touched, and a tune
    measures training steps: what evaluation gains is seen only if the program evaluates between the steps that
    are measured. Else name it in a plan by hand.

    What it watches: before each call that it changes, all of the model that Python can reach: attributes, hooks,
    modules, globals that its code reads; weights are folded anew at each. What would escape: a state that no Python
    object shows.

    Contract: rounding. The same products with another order of multiplication. It falls to statistical where a
    variance is so small that the folded weights lose what the normalisation would have kept.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.fuse_conv_bn_eval.html
    """

    name = "fold_normalisation"
    programs = ("training", "inference")
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("other",)
    switchable = True
    survives = True
    order = 36

    def applies(self, facts: Facts) -> str | None:
        if facts.own_compile:
            return "the program compiles its model itself"
        if not facts.modules:
            return "the trained parameters belong to no nn.Module"
        if self.own(facts).get("inference_calls") is False:
            return "no evaluation of a model was seen in the measured steps (name it in a plan by hand)"
        if self.own(facts).get("batch_norms") is False:
            return "no model that is evaluated has batch normalisation"
        return None

    def expected_step_saving(self, facts: Facts) -> float:
        return facts.share("forward") * self.expected_saving if facts.inference else super().expected_step_saving(facts)

    def observe(self, seams: Seams) -> Callable[[], Mapping[str, Any]]:
        looked_at: weakref.WeakSet[Any] = weakref.WeakSet()  # models, where they were evaluated
        found: set[bool] = set()  # whether they have batch normalisation

        def called(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            import torch

            from overdrive.seams.torch.internals import is_batch_norm

            if not model.training and not torch.is_grad_enabled() and model not in looked_at:
                looked_at.add(model)
                found.add(any(map(is_batch_norm, model.modules())))
            return call(*args, **kwargs)

        seams.model_called.subscribe(called)
        return lambda: {"inference_calls": bool(found), "batch_norms": True in found or not found}

    def install(self, seams: Seams, settings: Settings) -> Handle:
        models: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()
        callers = Callers()

        def alone(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with callers.calling():
                if callers.crowded:  # not by an error: undone, this call would put back what another had changed
                    seams.leave_out(self.name, "models are called in several threads at once")
                    return call(*args, **kwargs)
                return call_folded(model, call, *args, **kwargs)

        def call_folded(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            import torch

            if model.training or torch.is_grad_enabled() or _is_left_alone(model):
                return call(*args, **kwargs)
            seen, kind = models.setdefault(model, _Seen()), _kind(args, kwargs)
            if seen.left_alone or kind is None:
                return call(*args, **kwargs)
            if not seen.holds(model) or kind not in seen.pairs:
                with _choices() as choices, _watching(model) as pairs:
                    result = call(*args, **kwargs)
                # What depends on the data may be otherwise in the next call.
                seen.pairs[kind] = [] if choices else pairs
                return result
            pairs = [(layer, norm) for layer, norm in seen.pairs[kind] if _can_fold(layer, norm)]
            with callers.changing() as may, _folded(pairs if may else []):
                return call(*args, **kwargs)

        seams.model_called.subscribe_innermost(alone)
        return seams.handle()


class _Seen:
    """What was seen of one model's calls, and what the model was then."""

    def __init__(self) -> None:
        self.pairs: dict[Any, list[tuple[Any, Any]]] = {}  # by kind of call
        self.left_alone = False
        self._state: Any = None
        self._changes = 0

    def holds(self, model: Any) -> bool:
        """Whether the model is what it was; else all is forgotten."""
        from overdrive.model_state.state import State

        if self._state is not None and not self._state.changed():
            return True
        self._changes += self._state is not None
        self._state = State([model])
        self.pairs.clear()
        reach = self._state.reach
        self.left_alone = self._changes > _MOST_CHANGES or bool(reach.hidden or reach.outward)
        return False


def _kind(args: Any, kwargs: Any) -> Any:
    """What a call's way through a model may depend on, besides the model and its data; None where that is not seen."""
    import torch
    from torch.utils._pytree import tree_flatten

    leaves, spec = tree_flatten((args, kwargs))
    found: list[Any] = [spec]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            found.append(
                (type(leaf), leaf.shape, leaf.dtype, leaf.device, leaf.dim() == 0 and leaf.device.type == "cpu")
            )
        elif isinstance(leaf, (bool, int, float, str, type(None))):
            found.append((type(leaf), leaf))
        else:
            return None
    return tuple(found)


@contextmanager
def _choices() -> Iterator[list[str]]:
    """Fills the list with what lets a call's way depend on its data, or on chance."""
    from overdrive.core.rng import States
    from overdrive.seams.torch.reads import noting_reads

    chance = States.now()
    with noting_reads() as reads:
        yield reads
    if not chance.same(States.now()):
        reads.append("random numbers")


@contextmanager
def _watching(model: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Fills the list with pairs, when the model has been called."""
    import torch
    from torch.nn import functional as F

    from overdrive.seams.torch.internals import is_batch_norm
    from overdrive.seams.torch.watched import unwatch, watch

    pairs: list[tuple[Any, Any]] = []
    made: dict[int, tuple[Any, weakref.ref[Any], list[Any]]] = {}  # by id of the result: who made it, its uses
    calls: dict[int, int] = {}  # of modules, by id
    takes: dict[int, Any] = {}  # by id of a norm: the entry in `made` that it was given
    handles: list[Any] = []

    def layer_made(layer: Any, given: Any, result: Any) -> None:
        calls[id(layer)] = calls.get(id(layer), 0) + 1
        if type(result) is torch.Tensor and (type(layer) is not torch.nn.Linear or result.dim() == 2):
            uses: list[Any] = []
            watch(result, uses)
            made[id(result)] = (layer, weakref.ref(result), uses)

    def norm_takes(norm: Any, given: Any) -> None:
        calls[id(norm)] = calls.get(id(norm), 0) + 1
        entry = made.get(id(given[0])) if given else None
        if entry and entry[1]() is given[0] and type(norm).__name__ in _PAIRS[type(entry[0]).__name__]:
            takes[id(norm)] = (norm, entry)

    for module in model.modules():
        if type(module) is getattr(torch.nn, type(module).__name__, None) and not _is_hooked(module):
            if type(module).__name__ in _PAIRS:
                handles.append(module.register_forward_hook(layer_made))
            elif is_batch_norm(module):
                handles.append(module.register_forward_pre_hook(norm_takes))
    try:
        yield pairs
    finally:
        for handle in handles:
            handle.remove()
        for _, result, _ in made.values():
            tensor = result()
            if tensor is not None:
                unwatch(tensor)
    for norm, (layer, result, uses) in takes.values():
        if uses == [F.batch_norm] and calls[id(layer)] == calls[id(norm)] == 1 and result() is None:
            pairs.append((layer, norm))


@contextmanager
def _folded(pairs: list[tuple[Any, Any]]) -> Iterator[None]:
    """The layers compute what their normalisations would have made of it, which hand it on."""
    from overdrive.seams.torch.modules import parameters_in

    before = [(layer, parameters_in(layer)["weight"], parameters_in(layer)["bias"]) for layer, _ in pairs]
    try:
        for layer, norm in pairs:
            weight, bias = _fold(layer, norm)
            parameters_in(layer)["weight"], parameters_in(layer)["bias"] = weight, bias
            norm.__dict__["forward"] = _hand_on
        yield
    finally:
        for layer, weight, bias in before:
            parameters_in(layer)["weight"], parameters_in(layer)["bias"] = weight, bias
        for _, norm in pairs:
            norm.__dict__.pop("forward", None)


def _hand_on(activations: Any) -> Any:
    return activations


def _fold(layer: Any, norm: Any) -> tuple[Any, Any]:
    import torch

    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -norm.running_mean if layer.bias is None else layer.bias - norm.running_mean
    bias = shift * scale if norm.bias is None else torch.addcmul(norm.bias, shift, scale)
    return layer.weight * scale.reshape(-1, *[1] * (layer.weight.dim() - 1)), bias


def _can_fold(layer: Any, norm: Any) -> bool:
    """Whether the pair is still as it was seen: what a program may change at any time."""
    from overdrive.seams.torch.modules import parameters_in

    weight = parameters_in(layer).get("weight")
    return (
        weight is not None
        and weight.is_floating_point()
        and not layer.training
        and not norm.training
        and norm.running_mean is not None
        and norm.running_var is not None
        and norm.num_features == weight.shape[0]
        and weight.dtype == norm.running_var.dtype
        and weight.device == norm.running_var.device
        and "forward" not in norm.__dict__
        and not _is_hooked(layer)
        and not _is_hooked(norm)
    )


def _is_hooked(module: Any) -> bool:
    from overdrive.seams.torch.hooks import has_hooks

    return has_hooks(module) or "forward" in module.__dict__


def _is_left_alone(model: Any) -> bool:
    import torch

    from overdrive.seams.torch.tracing import compiled, traced

    return compiled(model) or isinstance(model, torch.jit.ScriptModule) or traced()
