"""Which call of a model is replayed by which recording, and which is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from overdrive.model_state.state import State
from overdrive.seams.torch.control import product_precision
from overdrive.seams.torch.hooks import all_modules_have_hooks, has_hooks
from overdrive.seams.torch.internals import in_backward
from overdrive.seams.torch.modules import buffers_in, modules_in, parameters_in
from overdrive.techniques.compile.cuda_graphs.calls import Copied, RecordedCall, runs_again
from overdrive.techniques.compile.cuda_graphs.captured_graph import Failures, GraphPool
from overdrive.techniques.compile.cuda_graphs.flat import flattened
from overdrive.techniques.compile.cuda_graphs.held_step import NOTHING
from overdrive.techniques.compile.cuda_graphs.refusal import Refused, refuse_model

EAGER_CALLS = 3  # the program's own first calls, in which libraries choose their kernels
_MOST_RECORDINGS = 4  # of one model; each keeps the memory of a whole forward pass
_MOST_AT_ONCE = 2  # of one kind: forward passes whose backward passes are still to come
_MOST_KINDS = 16  # of calls; a program with ever new ones is not worth the looking
_MOST_CHANGES = 4  # of a model, each of which has all recorded anew
_PRECISIONS = (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))  # which the recorded kernels were chosen by
_CONSTANTS = (bool, int, float, str, type(None))


class WholeCalls(Protocol):
    def model_called(self, recorded: Any, kind: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a call gives that is a part of a whole step; `NOTHING` where it is none."""


class RecordedModel:
    """The calls of one model.

    Raises:
        Refused: none of its calls is replayed from now on.
    """

    def __init__(
        self,
        model: nn.Module,
        graph_pool: Callable[[torch.device], GraphPool],
        device_type: str = "cuda",
        copied: Copied = lambda model, inputs: None,
        whole: WholeCalls | None = None,
    ) -> None:
        """
        Args:
            copied: told of the inputs that a call is replayed on, once they are there.
            whole: makes calls that are a part of a whole step.
        """
        self.module = self._model = model
        self.looks = 0  # how often the model was another one than before
        self._whole = whole
        self._modes: tuple[bool, ...] = ()
        self._tensors: list[torch.Tensor] = []
        self._noted: Any = None
        self._graph_pool = graph_pool
        self._copied = copied
        self._device_type = device_type
        self._seen: dict[Any, int] = {}
        self._recordings: dict[Any, list[RecordedCall]] = {}
        self._structure: Any = None
        self._state: State | None = None
        self._changes = 0
        self._parts: list[nn.Module] = []
        self.replayed = 0

    def __call__(self, around: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """`around`: the techniques that may make the call another one."""
        evaluation = not torch.is_grad_enabled() or torch.is_inference_mode_enabled()
        if evaluation or runs_again or in_backward():
            return call(*args, **kwargs)
        if self._structure_now() != self._structure or self._state is None or self._state.changed():
            self._look()
        leaves, form = flattened(args, kwargs)
        kind = around, self._kind(leaves, form)
        self._seen[kind] = self._seen.get(kind, 0) + 1
        if len(self._seen) > _MOST_KINDS:
            raise Refused(f"the model is called in more than {_MOST_KINDS} ways (shapes, say)")
        if self._whole is not None:
            self._modes = kind[1][-1]
            answer = self._whole.model_called(self, kind, call, args, kwargs)
            if answer is not NOTHING:
                return answer
        if self._seen[kind] <= EAGER_CALLS:
            return call(*args, **kwargs)
        recording = self._free(kind, call, leaves, form)
        if recording is None:
            return call(*args, **kwargs)
        result = recording(call, leaves)
        self.replayed += recording.recorded
        return result

    def call_as_it_was(self, call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
        """A call that a whole step has not made, with the model as it was then."""
        assert self._state is not None
        modes = [part.training for part in self._parts]
        with self._state.as_it_was() if self._state.changed() else nullcontext():
            self._set_modes(self._modes)
            try:
                return call(args, kwargs)
            finally:
                self._set_modes(modes)

    def note(self) -> None:
        """What the model is like in the call that is being made, for `is_as_noted`."""
        self._tensors = [*self._model.parameters(), *self._model.buffers()]
        self._noted = self._glimpse()

    def is_as_noted(self) -> bool:
        """The same as `__call__` looks at, but for what `State` sees as well; False where that is to be looked into."""
        assert self._state is not None
        return self._glimpse() == self._noted and not self._state.changed()

    def _glimpse(self) -> Any:
        return (
            [each.data_ptr() for each in self._tensors],
            [each.requires_grad for each in self._tensors],
            [part.training for part in self._parts],
            [product_precision(*of) for of in _PRECISIONS],
            Failures.count,
        )

    def _set_modes(self, modes: Sequence[bool]) -> None:
        for part, mode in zip(self._parts, modes, strict=True):
            if part.training is not mode:
                part.training = mode

    def _look(self) -> None:
        """At first; or layers, hooks, memory, or anything that the model's code looks at, are others now."""
        change = "" if self._state is None else self._state.change()
        self._changes += bool(change)
        if self._changes > _MOST_CHANGES:
            raise Refused(f"the model changes again and again: {change}")
        self.looks += 1
        refuse_model(self._model)
        self._parts = list(self._model.modules())
        self._structure = self._structure_now()
        self._state = State([self._model])
        if what := self._state.reach.hidden or self._state.reach.outward:
            raise Refused(f"the model's code can reach {what}, which a replay would not")
        self._seen, self._recordings = {}, {}

    def _free(self, kind: Any, call: Callable[..., Any], leaves: list[Any], form: Any) -> RecordedCall | None:
        alike = self._recordings.setdefault(kind, [])
        for recording in alike:
            if not recording.busy:
                return recording
        if len(alike) >= _MOST_AT_ONCE or sum(map(len, self._recordings.values())) >= _MOST_RECORDINGS:
            return None
        device = next(leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor))
        alike.append(RecordedCall(self._graph_pool(device), self._model, call, leaves, form, self._copied))
        return alike[-1]

    def _kind(self, leaves: list[Any], form: Any) -> Any:
        kinds: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                if leaf.device.type != self._device_type:
                    raise Refused(f"an input of the model lies on the device {leaf.device.type}")
                if type(leaf) not in (torch.Tensor, nn.Parameter) or leaf.layout is not torch.strided:
                    raise Refused(f"an input of the model is of the class {type(leaf).__name__}")
                kinds.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad))
            elif isinstance(leaf, _CONSTANTS):
                kinds.append((type(leaf), leaf))
            else:
                raise Refused(f"an input of the model is a {type(leaf).__name__}")
        if not any(isinstance(each[0], torch.Size) for each in kinds):
            raise Refused("the model is called without a tensor")
        modes = [torch.is_autocast_enabled(self._device_type), torch.get_autocast_dtype(self._device_type)]
        modes += [product_precision(*of) for of in _PRECISIONS]
        return tuple(kinds), form, *modes, tuple(part.training for part in self._parts)

    def _structure_now(self) -> Any:
        """What recordings are tied to: layers, hooks, and the memory of parameters and buffers. 0.5 us a layer."""
        if all_modules_have_hooks():
            raise Refused("all modules have hooks, which are Python code")
        found: list[Any] = [Failures.count]
        for part in self._parts:
            if has_hooks(part):
                raise Refused("the model has hooks, which are Python code")
            found.append([id(each) for each in modules_in(part).values()])
            for tensor in (*parameters_in(part).values(), *buffers_in(part).values()):
                found.append(None if tensor is None else (tensor.data_ptr(), tensor.requires_grad))
        return found
