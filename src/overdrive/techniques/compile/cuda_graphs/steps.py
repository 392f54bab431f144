"""An optimizer's step as a graph: the program calls `step()` as before, and all the arithmetic is one launch.

Just before the arithmetic, inside of all other hooks, the graph is replayed and the gradients are put out of the
optimizer's sight, which then finds nothing to do; just after it they are put back. Learning rates live on the GPU,
where the program's schedule is copied to; any other setting that changes makes another recording.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from overdrive.model_state.state import identical
from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.hooks import step_hooks
from overdrive.seams.torch.internals import capturable_as_it_is
from overdrive.techniques.compile.cuda_graphs import captured_graph as captured
from overdrive.techniques.compile.cuda_graphs.captured_graph import CapturedGraph, GraphPool
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
                raise Refused(f"the optimizer's parameters lie on {_devices(parameters)}, not on one GPU")
            self._move_counts(parameters)
            graph_pool = self._graph_pool(parameters[0].device)
            gradients = _gradients_of(parameters)
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


class RecordedStep:
    """The steps of one optimizer with one set of settings, for one set of parameters."""

    def __init__(
        self, graph_pool: GraphPool, optimizer: Any, parameters: Sequence[torch.Tensor], gradients: list[torch.Tensor]
    ) -> None:
        """`gradients`: where it finds them."""
        self.replayed = 0
        self._optimizer = optimizer
        self._parameters, self._all = list(parameters), parameters_of(optimizer)
        self._graph_pool = graph_pool
        self._captured: CapturedGraph | None = None
        self._warm = False
        self._gradients = gradients
        device = parameters[0].device
        self._rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self._given: list[Any] = [None] * len(self._rates)
        self._settings = self._settings_now()
        self._addresses = [each.data_ptr() for each in parameters]
        self._state = self._state_now()

    def fits(self, parameters: Sequence[torch.Tensor]) -> bool:
        return (
            identical(parameters, self._parameters)
            and [each.data_ptr() for each in parameters] == self._addresses
            and self.has_its_settings()
        )

    def has_its_settings(self) -> bool:
        return (
            self._settings_now() == self._settings
            and identical(parameters_of(self._optimizer), self._all)
            and self.state_is_kept()
        )

    def step(self) -> None:
        """Take a step: once carried out in the form in which it is recorded, then recorded and replayed."""
        torch._foreach_copy_(self._gradients, _gradients_of(self._parameters))
        self.set_rates()
        if self._captured is not None:
            self._captured.replay()
            self.replayed += 1
            return
        if not self._warm:
            self._carry_out()
            self._warm = True
            return
        recording = self._graph_pool.captured()
        recording.record(self._work)
        self._captured = recording
        recording.replay()
        self.replayed += 1

    def _carry_out(self) -> None:
        touched = self.touched()
        with torch.no_grad():
            # Copied into main memory: beside themselves on the GPU, parameters and state would be the run's peak.
            before = [each.to("cpu", copy=True) for each in touched]
            try:
                with self._graph_pool.watched() as noted:
                    self._work()
                if noted:
                    raise Refused(noted[0])
                if not self.state_is_kept():
                    raise Refused("the optimizer makes its state anew in each step")
            except Exception:
                for each, value in zip(touched, before, strict=True):
                    each.copy_(value)
                raise

    def _work(self) -> list[torch.Tensor]:
        """The optimizer's own arithmetic, without its hooks, on our gradients and rates."""
        step = type(self._optimizer).step
        plain = step.__wrapped__ if getattr(step, "hooked", False) else step
        with self._in_our_form(), capturable_as_it_is(self._optimizer):
            plain(self._optimizer)
        return []

    @contextmanager
    def _in_our_form(self) -> Iterator[None]:
        groups = self._optimizer.param_groups
        before = [dict(group) for group in groups]
        theirs = [each.grad for each in self._parameters]
        try:
            for each, gradient in zip(self._parameters, self._gradients, strict=True):
                each.grad = gradient
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate
                if "capturable" in group:
                    group["capturable"] = True
                if "fused" in group and "capturable" not in group:
                    # SGD by foreach takes a learning rate on the GPU to the host, as `alpha`; fused, it reads it there.
                    group["fused"], group["foreach"] = True, False
                elif not group.get("fused"):
                    group["foreach"] = True
            yield
        finally:
            for group, settings in zip(groups, before, strict=True):
                group.update(settings)
            for each, theirs_again in zip(self._parameters, theirs, strict=True):
                each.grad = theirs_again

    def work_on(self, gradients: list[torch.Tensor]) -> None:
        self._gradients = gradients
        self._work()

    def touched(self) -> list[torch.Tensor]:
        """What it writes to."""
        return [*self._parameters, *(each for each in self._state_now() if isinstance(each, torch.Tensor))]

    def state_is_kept(self) -> bool:
        return identical(self._state_now(), self._state)

    def set_rates(self) -> None:
        for place, group in enumerate(self._optimizer.param_groups):
            rate = group["lr"]
            if isinstance(rate, torch.Tensor):
                self._rates[place].copy_(rate)
            elif rate != self._given[place]:
                self._rates[place].fill_(rate)
                self._given[place] = rate

    def _settings_now(self) -> list[Any]:
        return [
            [value for key, value in group.items() if key not in ("params", "lr", "initial_lr", "max_lr", "min_lr")]
            for group in self._optimizer.param_groups
        ]

    def _state_now(self) -> list[Any]:
        state = self._optimizer.state
        return [value for each in self._parameters if each in state for value in state[each].values()]


def _gradients_of(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [each.grad for each in parameters if each.grad is not None]


def _devices(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(sorted({str(each.device) for each in tensors}))
