"""An optimizer's step as a graph: the program calls `step()` as before, and all the arithmetic is one launch.

Just before the arithmetic, inside of all other hooks, the graph is replayed and the gradients are put out of the
optimizer's sight, which then finds nothing to do; just after it they are put back. Learning rates live on the GPU,
where the program's schedule is copied to; any other setting that changes makes another recording.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.hooks import step_hooks
from overdrive.techniques.compile.cuda_graphs import captured_graph as captured
from overdrive.techniques.compile.cuda_graphs.captured_graph import GraphPool
from overdrive.techniques.compile.cuda_graphs.recorded_step import RecordedStep, gradients_of
from overdrive.techniques.compile.cuda_graphs.refusal import Refused

EAGER_STEPS = 3  # the program's own first steps, in which optimizers make their state
_MOST_RECORDINGS = 4
# Not RAdam: its correction, computed in fp32 where it can be captured, came out 3e-4 off in the loss at step 6.
_CAPTURABLE = ("SGD", "Adam", "AdamW", "NAdam", "Adamax", "Adadelta", "RMSprop", "Rprop")


class WholeSteps(Protocol):
    prepares: bool  # it looks whether it can make whole steps: nothing else is recorded meanwhile
    trained: list[torch.Tensor]  # the parameters that its steps change

    def made_step_of(self, optimizer: Any) -> bool:
        """Whether what is to come of this step is done."""

    def is_spared(self, optimizer: Any) -> bool:
        """Whether its arithmetic will be left out; else it has to find nothing to do."""


class RecordedOptimizer:
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        graph_pool: Callable[[torch.device], GraphPool],
        whole: WholeSteps | None = None,
    ) -> None:
        """`whole`: who makes this optimizer's steps in one graph with what comes before them."""
        self.refusal = ""  # why the optimizer is left as it is, where it is
        self._optimizer = optimizer
        self._whole = whole
        self._graph_pool = graph_pool
        self._steps = 0
        self._stepped: dict[int, weakref.ref[torch.Tensor]] = {}  # parameters with a step of the program's own, by id
        self._recordings: list[RecordedStep] = []
        self._hidden: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        # Counts of steps, from the CPU, and where they lie on the GPU, which recordings know.
        self._moved: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._handles: list[Any] = []

    @property
    def replayed(self) -> int:
        return sum(each.replayed for each in self._recordings)

    def is_of(self, optimizer: Any) -> bool:
        return optimizer is self._optimizer

    def on(self) -> None:
        self._handles = [
            self._optimizer.register_step_pre_hook(self._safely(self._before)),
            self._optimizer.register_step_post_hook(self._safely(self._after)),
            self._optimizer.register_state_dict_post_hook(self._as_the_program_made_it),
        ]
        for state, key, there in self._moved:
            if isinstance(state.get(key), torch.Tensor):
                state[key] = there.copy_(state[key])

    def off(self) -> None:
        self._put_back()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._counts_to_the_cpu()

    def remove(self) -> None:
        self.off()
        self._moved.clear()
        self._recordings.clear()

    def _counts_to_the_cpu(self) -> None:
        for state, key, _ in self._moved:
            if isinstance(state.get(key), torch.Tensor):
                state[key] = state[key].cpu()

    def _counts_back(self) -> None:
        """For good: left on the GPU, each would be read from there, twice a step, by the optimizer as it is."""
        self._counts_to_the_cpu()
        self._moved.clear()
        self._recordings.clear()

    def _safely(self, hook: Callable[..., None]) -> Callable[..., None]:
        def called(optimizer: Any, args: Any, kwargs: Any) -> None:
            try:
                hook(args, kwargs)
            except Exception as error:
                self._put_back()
                self._counts_back()
                # Its hooks stay until the session ends: this is one of them.
                self.refusal = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"

        return called

    def _before(self, args: Any, kwargs: Any) -> None:
        self._put_back()
        if self._whole is not None and self._whole.made_step_of(self._optimizer):
            if not self._whole.is_spared(self._optimizer):
                self._hide(self._whole.trained)
            return
        if self.refusal:
            return
        self._refuse_optimizer()
        if any(each is not None for each in (*args[1:], *kwargs.values())):
            return  # a closure: the program's Python is part of the step
        self._steps += 1
        parameters = [each for each in parameters_of(self._optimizer) if each.grad is not None]
        ready = self._steps > EAGER_STEPS and not (self._whole is not None and self._whole.prepares)
        if ready and all(self._has_stepped(each) for each in parameters):
            self._step(parameters)
            return
        # The step is the program's own: it makes the state of those that have joined, with their counts on the CPU.
        self._counts_back()
        self._stepped.update({id(each): weakref.ref(each) for each in parameters})

    def _after(self, args: Any, kwargs: Any) -> None:
        self._put_back()

    def for_whole_step(self, parameters: Sequence[torch.Tensor]) -> RecordedStep:
        """The step's arithmetic, as a part of a graph.

        Raises:
            Refused: it cannot be recorded.
        """
        if self.refusal:
            raise Refused(self.refusal)
        self._refuse_optimizer()
        if not all(self._has_stepped(each) for each in parameters):
            raise Refused("the optimizer has not made its state yet")
        self._move_counts(parameters)
        return RecordedStep(self._graph_pool(parameters[0].device), self._optimizer, parameters, [])

    def still_fits(self, step: RecordedStep) -> bool:
        """Whether that would be the optimizer's step now, of the same parameters in the same memory.

        Raises:
            Refused: it cannot be recorded any more.
        """
        if self.refusal:
            raise Refused(self.refusal)
        self._refuse_optimizer()
        return step.has_its_settings()

    def _has_stepped(self, parameter: torch.Tensor) -> bool:
        known = self._stepped.get(id(parameter))
        return known is not None and known() is parameter

    def _step(self, parameters: list[torch.Tensor]) -> None:
        if not parameters:
            return
        recording = next((each for each in self._recordings if each.fits(parameters)), None)
        if recording is None:
            if len(self._recordings) >= _MOST_RECORDINGS:
                raise Refused("the optimizer's settings, or which parameters it steps, change again and again")
            if any(each.device != parameters[0].device or each.device.type != captured.DEVICE for each in parameters):
                devices = ", ".join(sorted({str(each.device) for each in parameters}))
                raise Refused(f"the optimizer's parameters lie on {devices}, not on one GPU")
            self._move_counts(parameters)
            graph_pool = self._graph_pool(parameters[0].device)
            gradients = gradients_of(parameters)
            if any(gradient.layout is not torch.strided for gradient in gradients):
                raise Refused("a gradient is sparse")
            if any(type(gradient) is not torch.Tensor for gradient in gradients):
                raise Refused("the gradients are of a class of their own")
            own = [torch.empty_like(gradient) for gradient in gradients]
            recording = RecordedStep(graph_pool, self._optimizer, parameters, own)
            self._recordings.append(recording)
        recording.step()
        self._hide(parameters)

    def _hide(self, parameters: Sequence[torch.Tensor]) -> None:
        for each in parameters:
            self._hidden.append((each, each.grad))
            each.grad = None

    def _put_back(self) -> None:
        while self._hidden:
            parameter, gradient = self._hidden.pop()
            parameter.grad = gradient

    def _refuse_optimizer(self) -> None:
        optimizer: Any = self._optimizer
        name = type(optimizer).__name__
        if type(optimizer) is not getattr(torch.optim, name, None) or name not in _CAPTURABLE:
            raise Refused(f"the optimizer {name} is not one that can be recorded")
        if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
            raise Refused("the optimizer's steps depend on a GradScaler")
        # What other hooks of this optimizer do with gradients would be hidden from them.
        if max(step_hooks(optimizer)) > 1:
            raise Refused("the optimizer has hooks of the program's own")
        if any(group.get("differentiable") for group in optimizer.param_groups):
            raise Refused("the optimizer's step is differentiable")

    def _move_counts(self, parameters: Sequence[torch.Tensor]) -> None:
        for parameter in parameters:
            state = self._optimizer.state[parameter]
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim() == 0 and value.device != parameter.device:
                    state[key] = value.to(parameter.device)
                    self._moved.append((state, key, state[key]))

    def _as_the_program_made_it(self, optimizer: Any, state_dict: dict[str, Any]) -> None:
        moved = {(id(state), key) for state, key, _ in self._moved}
        names = {place for place, _ in moved}
        for place, state in list(state_dict["state"].items()):
            if id(state) in names:
                state_dict["state"][place] = {
                    key: value.cpu() if (id(state), key) in moved else value for key, value in state.items()
                }
