"""Calls of models that are made in parts of their batch: which of them can be, is found out by trying."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from overdrive.seams.torch.tracing import transformed
from overdrive.techniques.memory.micro_batch.parts import Way, call_in_parts
from overdrive.techniques.memory.micro_batch.separable import Inseparable, find_way


class Splitting:
    """
    Attributes:
        done: whether a call has been made in parts.
        reason: why none has, for people.
    """

    def __init__(self, parts: int, leave_out: Callable[[str], None]) -> None:
        self._parts = parts
        self._leave_out = leave_out
        # By model and kind of call: how to split it, or why it cannot be.
        self._ways: weakref.WeakKeyDictionary[Any, dict[Any, Way | None]] = weakref.WeakKeyDictionary()
        self.reason = "no model was called with a batch that can be split"
        self.done = False

    def enter(self, seams: Any, refusal: type[Exception]) -> None:
        """Stand around models' calls; `refusal` is raised with the reason where the first step had none in parts."""

        def first_step(optimizer: Any) -> None:
            seams.step_ends.unsubscribe(first_step)
            if not self.done:
                raise refusal(self.reason)

        seams.model_called.subscribe(self.called)
        seams.step_ends.subscribe(first_step)  # its end: a closure is called inside of it

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Stands around a model's outermost call."""
        parameters = list(model.parameters())
        if not torch.is_grad_enabled() or not parameters or transformed():
            return call(*args, **kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        sizes = [len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
        trained = [each for each in parameters if each.requires_grad]
        differentiable = trained or any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
        if not differentiable or not sizes or sizes[0] < 2:
            return call(*args, **kwargs)
        way = self._way(model, call, leaves, spec, sizes[0])
        if way is None:
            return call(*args, **kwargs)
        try:
            result = call_in_parts(way, call, leaves, spec, self._parts, trained, self._leave_out)
        except Exception as error:  # no error of the program's, which may be none for the whole batch
            raise RuntimeError(f"the model's call on a part of a batch failed ({error})") from error
        self.done = True
        return result

    def _way(self, model: Any, call: Callable[..., Any], leaves: list[Any], spec: Any, size: int) -> Way | None:
        """How to split this kind of call; None where it is to be made as it is."""
        kind = (
            model.training,
            *(
                (leaf.dim(), leaf.dtype, leaf.dim() > 0 and len(leaf) == size, leaf.requires_grad)
                if isinstance(leaf, torch.Tensor)
                else type(leaf)
                for leaf in leaves
            ),
        )
        ways = self._ways.setdefault(model, {})
        if kind not in ways:
            try:
                ways[kind] = find_way(model, call, leaves, spec, size, self._parts)
            except Inseparable as reason:
                ways[kind], self.reason = None, str(reason)
            except Exception as error:
                ways[kind], self.reason = None, f"the model could not be called on a part of its batch ({error})"
        return ways[kind]
