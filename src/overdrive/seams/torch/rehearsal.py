"""A call of a model that leaves no trace, for who must try something on it first."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from overdrive.core.rng import States


class Rehearsal:
    """Random states, buffers and the modules' attributes are afterwards what they were before.

    Attributes are put back by name: a list that the model appends to is not emptied.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __enter__(self) -> Rehearsal:
        self._chance = States.now()
        self._buffers = [(name, each, each.detach().clone()) for name, each in self._model.named_buffers()]
        self._attributes = [(name, each, dict(vars(each))) for name, each in self._model.named_modules()]
        # A buffer that is given another tensor. TorchScript keeps its own by itself.
        self._held = [
            (each, dict(each._buffers))
            for each in self._model.modules()
            if not isinstance(each, torch.jit.ScriptModule)
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, buffers in self._held:
            module._buffers.clear()
            module._buffers.update(buffers)
        for _, module, attributes in self._attributes:
            for name in vars(module).keys() - attributes.keys():
                del vars(module)[name]
            vars(module).update(attributes)
        for _, buffer, before in self._buffers:
            # Through `data`, so that it does not count as a write: a graph of the program's may hold this buffer.
            buffer.data.copy_(before)
        self._chance.restore()

    def changed_buffers(self) -> list[str]:
        """Names of the buffers that the call wrote to or put others in the place of."""
        now = dict(self._model.named_buffers())
        return [
            name
            for name, buffer, before in self._buffers
            if now.get(name) is not buffer or not torch.equal(buffer, before)
        ]

    def replaced_buffers(self) -> list[str]:
        """Names of those that are other tensors now."""
        now = dict(self._model.named_buffers())
        return [name for name, buffer, _ in self._buffers if now.get(name) is not buffer]

    def changed_attributes(self) -> list[str]:
        """Names of the modules' attributes that the call set to something else."""
        return [
            f"{path}.{name}".lstrip(".")
            for path, module, before in self._attributes
            for name, value in vars(module).items()
            if _differs(value, before.get(name))
        ]


def own_hooks(model: torch.nn.Module) -> bool:
    """Whether the program has put hooks on modules of this model, which see every call of them."""
    return any(
        each._forward_hooks or each._forward_pre_hooks or each._backward_hooks or each._backward_pre_hooks
        for each in model.modules()
    )


def _differs(value: Any, before: Any) -> bool:
    if value is before:
        return False
    plain = (int, float, str, bool, tuple, torch.Size, torch.dtype, torch.device)
    return not (isinstance(value, plain) and type(value) is type(before) and repr(value) == repr(before))
