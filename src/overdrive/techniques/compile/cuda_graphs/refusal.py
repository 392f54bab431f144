"""What cannot be recorded, and how it is found out before anything is recorded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from overdrive.core.rng import States

_PLAIN = (bool, int, float, str, bytes)
_OWN_BUSINESS = ("_parameters", "_buffers", "_modules", "_flat_weights", "_flat_weight_refs")
_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")


class Refused(Exception):
    """This is not recorded; the message is the reason, for people."""


def refuse_model(module: nn.Module) -> None:
    """
    Raises:
        Refused: what this model is made of cannot be replayed.
    """
    for part in module.modules():
        if type(part).__name__ in _PARALLEL:
            raise Refused(f"{type(part).__name__} talks to other processes in its calls")
        if isinstance(part, torch.jit.ScriptModule):
            raise Refused("the model is a TorchScript module")
        if part._compiled_call_impl is not None or hasattr(part, "_orig_mod"):
            raise Refused("the model is compiled")
    for each in (*module.parameters(), *module.buffers()):
        if type(each) not in (torch.Tensor, nn.Parameter, nn.Buffer):
            raise Refused(f"the model's tensors are of the class {type(each).__name__}")


class Outside:
    """All that a call may change besides the tensors on the GPU, which a replay would not change."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._held = self._held_now()
        self._states = States.now(with_cuda=False)

    def changes(self) -> str:
        """What has changed since this was made, as the reason for a refusal; empty where nothing has."""
        for place, (value, inside) in self._held_now().items():
            before = self._held.get(place)
            if before is None or not _alike(before[0], value) or not _same(before[1], inside):
                owner, _, name = place
                return f"a call changes {name!r} of a {type(owner).__name__}, which a replay would not"
        if not self._states.same(States.now(with_cuda=False)):
            return "the model draws random numbers on the CPU, which a replay would not"
        return ""

    def restore(self) -> None:
        self._states.restore()
        for place in self._held_now().keys() - self._held.keys():
            owner, attributes, name = place
            getattr(owner, attributes).pop(name, None)
        for (owner, attributes, name), (value, inside) in self._held.items():
            getattr(owner, attributes)[name] = value
            if isinstance(value, list):
                value[:] = inside
            elif type(value) is dict:
                value.clear()
                value.update(inside)

    def _held_now(self) -> dict[tuple[nn.Module, str, str], tuple[Any, Any]]:
        """Each attribute and buffer of the modules, with what is in it where it is a list or the like."""
        found: dict[tuple[nn.Module, str, str], tuple[Any, Any]] = {}
        for part in self._module.modules():
            for key, value in vars(part).items():
                if key not in _OWN_BUSINESS:
                    found[part, "__dict__", key] = value, _inside(value)
            for key, tensor in part._buffers.items():
                found[part, "_buffers", key] = tensor, None
        return found


def _alike(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, _PLAIN) and type(one) is type(other) and one == other)


def _inside(value: Any) -> Any:
    if isinstance(value, (list, set)):
        return list(value)
    return dict(value) if type(value) is dict else None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(value is other[key] for key, value in one.items())
    return one is other or (len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True)))


def leaves_behind(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that a backward pass from `outputs` would give gradients to."""
    waiting: list[Any] = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen: set[Any] = set()
    leaves = [output for output in outputs if output.grad_fn is None and output.requires_grad]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        waiting += [each for each, _ in node.next_functions if each is not None]
    return leaves
