"""The steps of one optimizer with one set of settings, for one set of parameters, recorded as a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from overdrive.model_state.state import identical
from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.internals import capturable_as_it_is
from overdrive.techniques.compile.cuda_graphs.captured_graph import CapturedGraph, GraphPool
from overdrive.techniques.compile.cuda_graphs.refusal import Refused


def gradients_of(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [each.grad for each in parameters if each.grad is not None]


class RecordedStep:
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
        torch._foreach_copy_(self._gradients, gradients_of(self._parameters))
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
