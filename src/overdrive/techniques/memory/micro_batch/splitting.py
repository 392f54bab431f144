"""Calls of models that are made in parts of their batch: which of them can be, is found out by trying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from overdrive.core.by_identity import ByIdentity
from overdrive.core.rng import States
from overdrive.model_state.division.kinds import of_leaf
from overdrive.model_state.quiet import quiet
from overdrive.model_state.state import State
from overdrive.seams.torch.internals import version_of
from overdrive.seams.torch.tracing import traced
from overdrive.techniques.memory.micro_batch.parts import Way, call_in_parts
from overdrive.techniques.memory.micro_batch.separable import Inseparable, find_way

_MOST_TRIALS = 8  # kinds of calls that are tried in a run: each takes 0.1 s and more
_MOST_CHANGES = 3  # of a model; then its calls are made as they are


class Splitting:
    """
    Attributes:
        done: whether a call has been made in parts.
        reason: why none has, for people.
    """

    def __init__(self, parts: int, leave_out: Callable[[str], None]) -> None:
        self._parts = parts
        self._leave_out = leave_out
        self._models: ByIdentity[_Ways] = ByIdentity()
        self.reason = "no model was called with a batch that can be split"
        self.done = False
        self._trials = 0
        self._hooked = False  # a hook was put on a gradient, since a call began to be tried

    def enter(self, seams: Any, refusal: type[Exception]) -> None:
        """Stand around models' calls; `refusal` is raised with the reason where the first step had none in parts."""

        def first_step(optimizer: Any) -> None:
            seams.step_ends.unsubscribe(first_step)
            if not self.done:
                raise refusal(self.reason)

        seams.model_called.subscribe(self.called)
        seams.gradient_watched.subscribe(self._gradient_watched)
        seams.step_ends.subscribe(first_step)  # its end: a closure is called inside of it

    def _gradient_watched(self, *_: Any) -> None:
        self._hooked = True

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Stands around a model's outermost call."""
        parameters = list(model.parameters())
        if not torch.is_grad_enabled() or not parameters or traced():
            return call(*args, **kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        sizes = [len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
        trained = [each for each in parameters if each.requires_grad]
        differentiable = trained or any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
        if not differentiable or not sizes or sizes[0] < 2:
            return call(*args, **kwargs)
        ways, kind = self._models.setdefault(model, _Ways()), _kind(model, leaves, sizes[0])
        found = self._found(ways, kind, model, call, leaves, spec, sizes[0])
        if found is None:
            return call(*args, **kwargs)
        way, state = found
        chance = States.now()
        buffers = [(each, version_of(each), each.clone()) for each in model.buffers()]
        try:
            with quiet(state.reach.loggers) as said:
                result = call_in_parts(way, state, call, leaves, spec, self._parts, trained, self._leave_out)
        except Exception as error:  # no error of the program's, which may be none for the whole batch
            state.put_back()
            raise RuntimeError(f"the model's call on a part of a batch failed ({error})") from error
        if said or state.changed() or any(version_of(each) != version for each, version, _ in buffers):
            # From now on it does more than compute: as if no part had been called, and once more as it is written.
            ways.by_kind[kind] = None
            state.put_back()
            for each, _, before in buffers:
                each.data.copy_(before)
            chance.restore()
            return call(*args, **kwargs)
        self.done = True
        return result

    def _found(
        self, ways: _Ways, kind: Any, model: Any, call: Callable[..., Any], leaves: list[Any], spec: Any, size: int
    ) -> tuple[Way, State] | None:
        """How to split this kind of call; None where it is to be made as it is."""
        known = ways.by_kind.get(kind)
        if kind in ways.by_kind and (known is None or not known[1].changed()):
            return known
        ways.by_kind[kind] = None
        if known is not None:
            ways.changes += 1
        self._trials += 1
        if ways.changes > _MOST_CHANGES or self._trials > _MOST_TRIALS:
            return None
        self._hooked = False
        try:
            ways.by_kind[kind] = find_way(model, call, leaves, spec, size, self._parts, lambda: self._hooked)
        except Inseparable as reason:
            self.reason = str(reason)
        except Exception as error:
            self.reason = f"the model could not be called on a part of its batch ({error})"
        return ways.by_kind[kind]


class _Ways:
    """Of one model."""

    def __init__(self) -> None:
        # By kind of call: how to split it, and what the model was then; None where it is to be made as it is.
        self.by_kind: dict[Any, tuple[Way, State] | None] = {}
        self.changes = 0  # how often the model was found to be another


def _kind(model: Any, leaves: list[Any], size: int) -> Any:
    """A flag or a mode may couple samples."""
    has_samples = [isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and len(leaf) == size for leaf in leaves]
    return model.training, *has_samples, *map(of_leaf, leaves)
