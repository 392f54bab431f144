"""Keras on PyTorch: steps run in Python, or are compiled by `torch.compile`, and end where the train function returns.

Eager, each application of an optimizer writes its row. A step that is compiled is not looked into (that would break
its graph): its loss is noted where it is sent backward, all else when it has been made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from keras.src.backend.torch.trainer import TorchTrainer
from keras.src.layers.normalization.batch_normalization import BatchNormalization
from keras.src.models.model import Model
from keras.src.trainers.epoch_iterator import EpochIterator
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from overdrive.seams.batches import leading_size
from overdrive.seams.hub import Seams
from overdrive.seams.keras import parts
from overdrive.seams.keras.functions import Functions, parts_of
from overdrive.seams.keras.parts import Kind, Part, always, applications, evaluations
from overdrive.seams.keras.step_log import Application, HostStepLog, StepLog, rate_of, unwrapped
from overdrive.seams.keras.steps import MOST_NOTED, StepNotes, tell, wanted
from overdrive.seams.patch import Patches


def make_step_log() -> StepLog:
    return _TorchStepLog()


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.moments_taken.wanted:
        patches.replace(BatchNormalization, "_moments", _taking_moments(hub, BatchNormalization._moments))
    if not wanted(hub):
        return []
    parts.enter(hub, patches, _parts())
    watch = _TorchWatch(hub)
    functions = Functions(TorchTrainer, watch.function)
    watch.enter(patches)
    functions.enter(patches)
    return [functions.leave]


def _taking_moments(hub: Seams, take: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(take)
    def moments(layer: Any, inputs: Any, mask: Any) -> Any:
        """Mean and variance of each channel. `mask`: which steps count."""
        if mask is not None or torch.compiler.is_compiling():
            return take(layer, inputs, mask)
        call = functools.partial(take, layer, inputs, None)
        answer = hub.moments_taken.ask(call, inputs, layer._reduction_axes)
        return call() if answer is None else answer

    return moments


def _parts() -> list[Part]:
    return [
        *applications(_eager("optimizer")),
        *evaluations(),
        (torch.autograd, "backward", _eager("backward")),
        (EpochIterator, "__next__", always("data")),
        (DataLoader, "__iter__", always("data")),  # of a loop of the program's own
        (_BaseDataLoaderIter, "__next__", always("data")),
        (Model, "__call__", _part_of_model),
    ]


def _eager(kind: str) -> Kind:
    return lambda *_, **__: "" if torch.compiler.is_compiling() else kind


def _part_of_model(*_: Any, **given: Any) -> str:
    if torch.compiler.is_compiling():
        return ""
    return "evaluation" if given.get("training") is False or not torch.is_grad_enabled() else "forward"


class _TorchStepLog(HostStepLog):
    def write(self, application: Application) -> None:
        losses = [torch.as_tensor(loss).detach().double().mean() for loss in application.losses]
        mean = torch.stack(losses).mean() if losses else torch.zeros((), dtype=torch.float64)
        rate = torch.as_tensor(_value(application.rate)).detach().double()
        sizes = [leading_size(tensors) for _, _, tensors in application.inputs]
        more = [*map(int, self.filled(application))]
        if mean.device.type == "cpu" and rate.device.type == "cpu":
            numbers: Any = [len(losses), float(mean), float(rate)]
        else:
            numbers = _Later(len(losses), mean, rate.clone())
        self.add([application.optimizer], numbers, sizes[-1] if sizes else 0, [more])


class _Later:
    """Numbers that a GPU has still to come to."""

    def __init__(self, count: int, *values: Any) -> None:
        self._count = count
        self._values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        return np.array([self._count, *map(float, self._values)], dtype)


class _TorchWatch(StepNotes):
    step_log: _TorchStepLog

    def enter(self, patches: Patches) -> None:
        super().enter(patches)
        patches.replace(torch.autograd, "backward", self._sending_backward(torch.autograd.backward))

    def is_tensor(self, thing: Any) -> bool:
        return isinstance(thing, torch.Tensor) and not thing.is_meta  # else it only builds the model

    def looks_away(self) -> bool:
        return torch.compiler.is_compiling() or getattr(self.here, "compiled", False)

    def heard(self, act: Callable[[], None]) -> None:
        self._part("watching", super().heard, act)

    def _part(self, kind: str, call: Callable[..., Any], *args: Any) -> Any:
        part_run = self.hub.part_run
        return part_run.run(kind, call, *args) if part_run.subscribers else call(*args)

    def _sending_backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self.heard(lambda: self._note_losses([tensors] if self.is_tensor(tensors) else tensors))
            run(tensors, *args, **kwargs)

        # It ends a compiled graph by itself, and is not to be compiled apart.
        disabled: Callable[..., Any] = torch.compiler.disable(backward)  # type: ignore[no-untyped-call]
        return disabled

    def _note_losses(self, tensors: Any) -> None:
        self.losses += [(None, self.unscaled(each).detach()) for each in tensors]
        del self.losses[:-MOST_NOTED]  # of a program that steps another way

    def write(self, application: Application) -> None:
        self.step_log.write(application)
        if not getattr(self.here, "function", False):  # else when that returns
            tell(self.hub, self.step_log.news())

    def function(self, model: Any, kind: str, made: Callable[..., Any]) -> Callable[..., Any]:
        """What is called instead of a train, test or predict function."""
        return functools.partial(self._train if kind == "train" else self._evaluate, model, made)

    def _train(self, model: Any, made: Callable[..., Any], data: Any) -> Any:
        here = self.here
        compiled = bool(model.jit_compile)
        variables = model.trainable_variables if compiled and self.step_log.columns else ()  # it takes a while to list
        application = Application(model.optimizer, (), variables)

        def begin() -> None:
            self.forget()
            given, labels = parts_of(data[0])
            self.inputs, self.labels = [(None, (model, True, given))], [(None, each) for each in labels]
            if compiled:
                self.step_log.before(application)

        def end() -> None:
            if compiled and model.optimizer is not None:
                self.gather(application)
                application.gradients = [_value(each).grad for each in application.variables]
                application.rate = rate_of(unwrapped(model.optimizer))
                self.step_log.write(application)
            self.hub.at_work.publish()
            tell(self.hub, self.step_log.news())

        self.heard(begin)
        here.function, here.compiled, here.model, here.loss = True, compiled, True, True
        try:
            result = self._part("graph", made, data) if compiled else made(data)
        finally:
            here.function = here.compiled = here.model = here.loss = False
        self.heard(end)
        return result

    def _evaluate(self, model: Any, made: Callable[..., Any], data: Any) -> Any:
        here = self.here
        here.compiled = True  # nothing to be noted within
        try:
            result = made(data)
        finally:
            here.compiled = False
        self.heard(lambda: self._evaluated(data, result))
        return result

    def _evaluated(self, data: Any, result: Any) -> None:
        self.hub.at_work.publish()
        self.step_log.evaluated([part for parts in parts_of(data[0]) for part in parts], self.flat(result))


def _value(variable: Any) -> Any:
    return getattr(variable, "value", variable)
