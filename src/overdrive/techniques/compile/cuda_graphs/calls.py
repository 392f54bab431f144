"""A model's call, forward and backward, as two graphs around which the program's own Python runs on.

Nothing that belongs to a graph is handed to the program, and nothing of the program's is kept by a graph except
its parameters and buffers: inputs and the gradients of results are copied in, results and gradients copied out.
(`torch.cuda.make_graphed_callables` hands its own out, and accumulated gradients come out wrong:
https://github.com/pytorch/pytorch/issues/181723.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from overdrive.core.flag import FlagOfThread
from overdrive.model_state.quiet import quiet
from overdrive.seams.torch.hooks import without_gradient_hooks
from overdrive.seams.torch.internals import graph_is_kept, version_of
from overdrive.seams.torch.modules import swapped
from overdrive.seams.torch.weights import copies_of
from overdrive.techniques.compile.cuda_graphs.captured_graph import CapturedGraph, GraphPool
from overdrive.techniques.compile.cuda_graphs.flat import parts_of, result_of, unflattened
from overdrive.techniques.compile.cuda_graphs.outside import Outside, no_cached_casts
from overdrive.techniques.compile.cuda_graphs.refusal import Refused, leaves_behind

Copied: TypeAlias = Callable[[nn.Module, Sequence[torch.Tensor]], object]

WARM_UPS = 2  # calls carried out in the form in which they are then recorded


class ReplayHandle:
    """A forward pass whose backward pass may still come: until then, its graphs must not run again."""

    def __init__(self, random_state: Any) -> None:
        self.spent = False
        self.random_state = random_state


class RecordedCall:
    """The calls of one model with inputs of one kind, each a step of the program's: first carried out, then recorded.

    Raises:
        Refused: it cannot be replayed; nothing of the program has changed.
    """

    def __init__(
        self,
        graph_pool: GraphPool,
        model: nn.Module,
        call: Callable[..., Any],
        leaves: list[Any],
        form: Any,
        copied: Copied = lambda model, inputs: None,
    ) -> None:
        """`leaves`, `form`: of the arguments (see `flat`)."""
        self._copied = copied
        self.recorded = False
        self.failed = ""  # why its backward pass was carried out by the program's own forward pass, if it was
        self.warm_ups = 0
        self._recording = False
        self._graph_pool, self._model, self._call = graph_pool, model, call
        self._form = form
        self._constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._inputs = [
            torch.empty_like(leaves[place]).requires_grad_(leaves[place].requires_grad) for place in self._places
        ]
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        # Leaves of their own, of the same memory: hooks on the program's parameters are not called in here, and
        # no node of its older steps, which live on another stream, is reached.
        self._aliases = {id(each): each.detach().requires_grad_(each.requires_grad) for each in model.parameters()}
        self._wanted = [each for each in self._inputs if each.requires_grad]
        self._wanted += [self._aliases[id(each)] for each in self.parameters]
        self._made: list[Any] = []  # what the last forward pass that was carried out gave
        self._made_form: Any = None
        self._results: list[torch.Tensor] = []
        # Gradients of the results that may have one; None: of a result that the loss does not hang on, such as the
        # logits of a model that returns its loss as well.
        self._given: list[torch.Tensor | None] = []
        self._gradients: list[torch.Tensor | None] = []
        self._captured: tuple[CapturedGraph, CapturedGraph] | None = None
        self._handle: weakref.ref[ReplayHandle] | None = None
        self._draws = True  # random numbers, in the forward pass
        self._flags: list[bool] = []  # which results have a gradient
        self._result_leaves: list[Any] = []
        self._versions: list[int] = []

    @property
    def busy(self) -> bool:
        handle = self._handle() if self._handle else None
        return handle is not None and not handle.spent

    def __call__(self, call: Callable[..., Any], leaves: list[Any]) -> Any:
        if self.failed:
            raise Refused(self.failed)
        self._call = call
        if not self.recorded:
            if self.warm_ups < WARM_UPS:
                return self._warm_up([leaves[place] for place in self._places])
            self._record([leaves[place] for place in self._places])
        return self._run([leaves[place] for place in self._places])

    # -- before it is recorded --------------------------------------------------------------------

    def _warm_up(self, inputs: list[torch.Tensor]) -> Any:
        outside, state = Outside(self._model), self._graph_pool.random_state()
        buffers = [(buffer, buffer.detach().clone()) for buffer in self._model.buffers()]
        try:
            with self._graph_pool.watched() as noted, quiet(outside.state.reach.loggers) as said:
                result = self._run(inputs)
            self._refuse([*noted, *("the model prints in its call" for _ in said)], outside)
        except Exception:  # as if nothing had been called: the program's own call is to follow
            outside.restore()
            self._graph_pool.set_random_state(state)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            raise
        self._draws = not torch.equal(state, self._graph_pool.random_state())
        self.warm_ups += 1
        return result

    def _refuse(self, noted: Sequence[str], outside: Outside) -> None:
        changes = noted[0] if noted else outside.changes()
        if changes:
            raise Refused(changes)
        if any(version_of(each) != version for each, version in zip(self._inputs, self._versions, strict=True)):
            raise Refused("the model changes its inputs")
        known = {id(each) for each in self._wanted}
        if any(id(leaf) not in known for leaf in leaves_behind(self._differentiable())):
            raise Refused("a trained tensor is no parameter of the model")

    def _record(self, inputs: list[torch.Tensor]) -> None:
        # What the last call made keeps the aliases' nodes of autograd, which belong to the program's stream: PyTorch
        # 2.13 ends a recording that comes to one of another stream, older ones fail in CUDA (pytorch#180090).
        asked = _which(self._given)
        self._made, self._given = [], []
        self._copy_in(inputs)
        forward, backward = self._graph_pool.captured(), self._graph_pool.captured()
        self._recording = True
        self._results = forward.record(self._forward)
        results = self._differentiable()
        asked = asked if len(asked) == len(results) else [True] * len(results)
        self._given = [torch.zeros_like(each) if due else None for each, due in zip(results, asked, strict=True)]
        self._gradients = backward.record(self._backward)
        # The results stay, the graph of autograd that led to them is of no more use.
        self._results = [each.detach() for each in self._results]
        self._captured, self.recorded, self._made = (forward, backward), True, []

    # -- the work ---------------------------------------------------------------------------------

    def _copy_in(self, inputs: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for own, theirs in zip(self._inputs, inputs, strict=True):
                own.copy_(theirs)
        self._versions = [version_of(own) for own in self._inputs]

    def _forward(self) -> list[torch.Tensor]:
        leaves = list(self._constants)
        for place, tensor in zip(self._places, self._inputs, strict=True):
            leaves[place] = tensor
        args, kwargs = unflattened(leaves, self._form)
        with torch.enable_grad(), swapped(list(self._model.modules()), self._aliases), no_cached_casts(self._inputs):
            made, self._made_form = parts_of(self._call(*args, **kwargs))
        self._made = made
        for each in made:
            if isinstance(each, torch.Tensor):
                if type(each) not in (torch.Tensor, nn.Parameter):
                    raise Refused(f"the model returns a {type(each).__name__}")
            elif not isinstance(each, (bool, int, float, str, type(None))):
                raise Refused(f"the model returns a {type(each).__name__}")
        if not self._differentiable():
            raise Refused("the model's results have no gradient")
        return [each for each in made if isinstance(each, torch.Tensor)]

    def _backward(self) -> list[torch.Tensor | None]:
        keep = not self._recording and graph_is_kept()
        results, given = _asked_for(self._differentiable(), self._given)
        return list(torch.autograd.grad(results, self._wanted, given, retain_graph=keep, allow_unused=True))

    def _differentiable(self) -> list[torch.Tensor]:
        return [each for each in self._made if isinstance(each, torch.Tensor) and each.requires_grad]

    # -- a call of the program's ------------------------------------------------------------------

    def _run(self, inputs: list[torch.Tensor]) -> Any:
        results = _Recorded.apply(self, len(inputs), *inputs, *self.parameters)  # type: ignore[no-untyped-call]
        tensors = iter(results)
        leaves = [next(tensors) if leaf is _TENSOR else leaf for leaf in self._result_leaves]
        return result_of(leaves, self._made_form)

    def run_forward(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[bool], ReplayHandle]:
        """Copies of the results, which of them have a gradient, and the replay handle for the backward pass."""
        handle = ReplayHandle(self._graph_pool.random_state() if self._draws else None)
        self._copy_in(inputs)
        if self._captured:
            self._copied(self._model, self._inputs)
            self._captured[0].replay()
            results, flags = self._results, self._flags
        else:
            results = self._forward()
            flags = self._flags = [each.requires_grad for each in results]
            self._result_leaves = [_TENSOR if isinstance(each, torch.Tensor) else each for each in self._made]
        self._handle = weakref.ref(handle)
        return [each.detach().clone() for each in results], flags, handle

    def can_run_backward(self, given: Sequence[torch.Tensor | None]) -> bool:
        """Whether it was recorded for gradients of these results."""
        return not self._captured or _which(given) == _which(self._given)

    def run_backward(self, given: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Copies of the gradients of the inputs that have one, and of the parameters."""
        if not self._captured:
            self._given = list(given)
            return [None if each is None else each.detach() for each in self._backward()]
        torch._foreach_copy_(_those_there(self._given), _those_there(given))
        self._captured[1].replay()
        copies = iter(copies_of(_those_there(self._gradients)))
        return [None if each is None else next(copies) for each in self._gradients]

    def run_again(
        self,
        inputs: Sequence[torch.Tensor],
        given: Sequence[torch.Tensor | None],
        handle: ReplayHandle,
        create: bool = True,
    ) -> list[torch.Tensor | None]:
        """The gradients by way of the program's own forward pass: for a derivative of the gradient itself (`create`),
        and where the recorded backward pass fails or is one for other results."""
        leaves = list(self._constants)
        for place, tensor in zip(self._places, inputs, strict=True):
            leaves[place] = tensor
        args, kwargs = unflattened(leaves, self._form)
        now = self._graph_pool.random_state()
        # Put right afterwards, the model's own would be found changed by batch normalisation's backward pass.
        buffers = {id(each): each.detach().clone() for each in self._model.buffers()}
        if handle.random_state is not None:
            self._graph_pool.set_random_state(handle.random_state)
        with runs_again, torch.enable_grad(), swapped(list(self._model.modules()), buffers):
            made = parts_of(self._call(*args, **kwargs))[0]
        self._graph_pool.set_random_state(now)
        outputs = [each for each in made if isinstance(each, torch.Tensor) and each.requires_grad]
        wanted = [*(each for each in inputs if each.requires_grad), *self.parameters]
        outputs, due = _asked_for(outputs, given)
        with without_gradient_hooks(wanted):  # they are called with what is handed on from here
            return list(torch.autograd.grad(outputs, wanted, due, create_graph=create, allow_unused=True))


def _asked_for(
    results: Sequence[torch.Tensor], given: Sequence[torch.Tensor | None]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results that have a gradient, and these."""
    asked_for = [result for result, each in zip(results, given, strict=True) if each is not None]
    return asked_for, _those_there(given)


def _which(tensors: Sequence[torch.Tensor | None]) -> list[bool]:
    return [each is not None for each in tensors]


def _those_there(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [each for each in tensors if each is not None]


runs_again = FlagOfThread()  # the layers' calls within it are no calls of models
_TENSOR = object()


class _Recorded(torch.autograd.Function):
    """One node of autograd in the place of all those of the model."""

    @staticmethod
    def forward(ctx: Any, recording: RecordedCall, inputs: int, *tensors: torch.Tensor) -> Any:
        results, flags, ctx.handle = recording.run_forward(tensors[:inputs])
        ctx.recording, ctx.inputs, ctx.flags = recording, inputs, flags
        ctx.mark_non_differentiable(*(each for each, flag in zip(results, flags, strict=True) if not flag))
        ctx.save_for_backward(*tensors)
        # Zeros in the place of none would be sent through the model: those of logits are the largest gradient of all.
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> Any:
        recording: RecordedCall = ctx.recording
        if ctx.handle.spent:
            raise RuntimeError(
                "Trying to backward through the graph a second time. Specify retain_graph=True if you need to "
                "backward through the graph a second time."
            )
        due = [each for each, flag in zip(given, ctx.flags, strict=True) if flag]
        inputs = ctx.saved_tensors[: ctx.inputs]
        if torch.is_grad_enabled() or not recording.can_run_backward(due):
            gradients = recording.run_again(inputs, due, ctx.handle, create=torch.is_grad_enabled())
        else:
            try:
                gradients = recording.run_backward(due)
            except Exception as error:
                recording.failed = f"its backward pass failed ({type(error).__name__}: {error})"
                with torch.enable_grad():
                    gradients = recording.run_again(inputs, due, ctx.handle, create=False)
        # Not merely a kept reference: `loss` is still there when the next step begins.
        ctx.handle.spent = not graph_is_kept()
        following = iter(gradients)
        needed = ctx.needs_input_grad[2:]
        return (None, None, *(next(following) if needs else None for needs in needed))
