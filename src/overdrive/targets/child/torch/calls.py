"""What a program's models are called with: copies of the last calls of each shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from overdrive.engines.signature import Signature, signature, takes
from overdrive.seams.torch.layouts import bytes_of
from overdrive.seams.torch.tracing import uncompiled
from overdrive.targets.child.kept import KeptCalls
from overdrive.targets.child.torch.losses import Losses


@dataclass(frozen=True)
class Call:
    """What one call was given: a copy, on the CPU."""

    leaves: tuple[Any, ...]
    spec: Any  # of `torch.utils._pytree`

    @property
    def size(self) -> int:
        return sum(bytes_of(each) for each in self.leaves if isinstance(each, torch.Tensor))


@dataclass
class CalledModel(KeptCalls):
    framework = "torch"

    evaluated: bool = False  # it has been called in evaluation mode
    autocasts: set[str] = field(default_factory=set)  # of the program, that it was called in: what they compute in
    training: set[str] = field(default_factory=set)  # its modules that are in training mode where it is not
    compiled: bool = False
    losses: Losses | None = None  # of the program, for what they show of outputs

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any], compiled: bool = False) -> None:
        """`compiled`: it is called through `torch.compile`."""
        self.count += 1
        if self.model.training and self.evaluated:
            return
        if not self.model.training and not self.evaluated:
            self.evaluated = True
            self.forget()
            self.autocasts.clear()
            self.compiled = False
        self.autocasts |= _autocasts(self.model)
        self.compiled |= compiled
        call, given = _copied(args, kwargs)
        if given is None:
            self.left[f"it is given {_odd(call)}"] += 1
            return
        shape = self.keep(given.key, given.form, tuple(each.shape for each in given.tensors), call)
        if shape is not None and shape.count == 1 and not self.model.training:
            parts = self.model.named_modules()
            self.training.update(name for name, each in parts if each.training and not any(each.children()))

    def of_classes(self, outputs: int) -> bool:
        return self.losses is not None and self.losses.of_classes(outputs)


def _autocasts(model: Any) -> set[str]:
    """What the program's own autocast, where one is on for this model's device, has it compute in."""
    first = next(model.parameters(), None)
    if first is None or not torch.is_autocast_enabled(first.device.type):
        return set()
    return {str(torch.get_autocast_dtype(first.device.type)).removeprefix("torch.")}


def own_model(model: Any) -> Any:
    """The program's own model, in wrappers that give the same answers on other devices or compiled."""
    inner = uncompiled(model)
    if isinstance(inner, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        inner = inner.module
    return model if inner is model else own_model(inner)


def _copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Signature | None]:
    leaves, spec = tree_flatten((args, kwargs))
    call = Call(
        tuple(
            each.detach().to("cpu", copy=True).contiguous() if isinstance(each, torch.Tensor) else each
            for each in leaves
        ),
        spec,
    )
    found = signature(*_whole(call))
    return call, found if isinstance(found, Signature) else None


def _whole(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = tree_unflatten(list(call.leaves), call.spec)
    return args, kwargs


def _odd(call: Call) -> str:
    """What it is of an input that no artefact takes, in words."""
    for leaf in call.leaves:
        if isinstance(leaf, torch.Tensor):
            if not leaf.numel():
                return "an empty tensor"
            if not takes(leaf):
                return f"a tensor of {str(leaf.dtype).removeprefix('torch.')} that NumPy cannot hand over"
        elif not isinstance(leaf, (bool, int, float, str, type(None))):
            return f"a {type(leaf).__name__}"
    return "no tensor"
