"""Technique `micro_batch`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.contract import Contract
from overdrive.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams


class MicroBatch(Technique):
    """Calls the model on parts of a batch, so that only one part's activations are in memory at a time.

    What it does: the model's outermost call in training runs part by part without recording anything, and its
    results are put together; the program computes its loss of the whole batch as before. In the backward pass each
    part is called again, now recorded, and its share of the loss's gradient is sent through it. Random states are
    put back for each part, so that the second call draws what the first drew.

    When it helps: a batch that does not fit into memory, whatever the loss is and however it is averaged: memory
    for activations falls to about one part's.

    When it hurts: always in time: every part goes forward twice, which is a third more work, and small parts use
    the machine less well. Left out, with the reason, for models that do more than make one row a sample: batch
    normalisation in training (which averages over the batch), models that return their loss, that keep tensors on
    themselves, or that carry the program's hooks. Whether a sample's result depends on its batch is tried first, on
    two parts.

    Contract: rounding. The same products are summed in another order. It falls to statistical where the model draws
    random numbers: dropout draws other masks for parts than for the whole.

    Source: Huang et al., GPipe, NeurIPS 2019 (micro-batches); Chen et al., Training Deep Nets with Sublinear Memory
    Cost, 2016 (making activations again)
    """

    name = "micro_batch"
    family = "memory"
    contract = Contract.ROUNDING
    falls_to = Contract.STATISTICAL
    relieves = ("forward", "backward")
    aims = ("memory",)
    order = 46  # outside of activation_checkpointing (45), which then works on the parts
    knobs = (Knob("parts", 2, "into how many parts a batch is split", low=2, high=1024),)

    def applies(self, facts: Facts) -> str | None:
        if not facts.modules:
            return "the trained parameters belong to no nn.Module"
        if 0 < facts.samples_per_step < 2:
            return "a batch is a single sample"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        size = facts.samples_per_step
        return [{"parts": parts} for parts in (2, 4, 8, 16) if size == 0 or parts <= size]

    def install(self, seams: Seams, settings: Settings) -> None:
        splitting = _Splitting(seams, self.name, int(settings["parts"]))
        seams.model_called.subscribe(splitting.called)
        seams.step_ends.subscribe(splitting.first_step)  # its end: a closure is called inside of it


class _Splitting:
    def __init__(self, seams: Seams, name: str, parts: int) -> None:
        self._seams = seams
        self._name = name
        self._parts = parts
        # By model and kind of call: how to split it, or why it cannot be.
        self._ways: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self._reason = "no model was called with a batch that can be split"
        self._split = False

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_flatten

        from overdrive.activations.parts import call_in_parts
        from overdrive.samples.randomness import States

        parameters = list(model.parameters())
        if not torch.is_grad_enabled() or not parameters or torch._C._functorch.peek_interpreter_stack() is not None:
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
        chance = States.now()
        try:
            result = call_in_parts(way, call, leaves, spec, self._parts, trained)
        except Exception as error:
            # Said here: the hub would take the last part's result for that of the whole call.
            self._seams.leave_out(self._name, f"the model's call on a part of a batch failed ({error})")
            chance.restore()
            return call(*args, **kwargs)
        self._split = True
        return result

    def _way(self, model: Any, call: Callable[..., Any], leaves: list[Any], spec: Any, size: int) -> Any:
        """How to split this kind of call; None where it is to be made as it is."""
        import torch

        from overdrive.activations.separable import Inseparable, find_way

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
                ways[kind], self._reason = None, str(reason)
            except Exception as error:
                ways[kind], self._reason = None, f"the model could not be called on a part of its batch ({error})"
        return ways[kind]

    def first_step(self, optimizer: Any) -> None:
        self._seams.step_ends.unsubscribe(self.first_step)
        if not self._split:
            raise CannotInstall(self._reason)
