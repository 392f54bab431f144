"""Keras on JAX: a step is a function of the whole state, which `fit` carries along; what it came to comes out with it.

The step of Keras's train function is given one more result, that is compiled with it: loss and learning rate of each
application of an optimizer. Between two calls of the train function the program stands still. The model's variables
are empty then; `StepLog.settle` brings the state back into them, and the program goes on with what they hold.

A step that the program compiles by itself (`jax.jit` around `stateless_apply`) is not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import jax
import keras
from keras.src.backend.config import is_nnx_enabled
from keras.src.backend.jax.trainer import JAXEpochIterator, JAXTrainer
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from overdrive.core.flag import Flag
from overdrive.seams.batches import leading_size
from overdrive.seams.hub import Seams
from overdrive.seams.keras import parts
from overdrive.seams.keras.functions import Functions, parts_of
from overdrive.seams.keras.parts import always, evaluations
from overdrive.seams.keras.step_log import Application, StepLog, rate_of, step_log_of, unwrapped
from overdrive.seams.keras.step_log_on_jax import JaxStepLog
from overdrive.seams.keras.steps import heard, tell, wanted
from overdrive.seams.patch import Patches

_ABSENT = object()


def make_step_log() -> StepLog:
    return JaxStepLog()


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not wanted(hub) or is_nnx_enabled():  # Flax's modules carry their state themselves
        return []
    parts.enter(hub, patches, [*evaluations(), (JAXEpochIterator, "__next__", always("data"))])
    if hub.part_run.wanted:
        patches.replace(JAXEpochIterator, "_get_iterator", _iterating(hub, JAXEpochIterator._get_iterator))
    watch = _JaxWatch(hub)
    functions = Functions(JAXTrainer, watch.function)
    patches.replace(JAXTrainer, "_make_function", watch.making(JAXTrainer._make_function))
    patches.replace(JAXTrainer, "make_train_function", watch.instrumenting(JAXTrainer.make_train_function))
    functions.enter(patches)
    for holder in (BaseOptimizer, LossScaleOptimizer):
        patches.replace(holder, "stateless_apply", watch.applying(holder.stateless_apply))
    patches.replace(jax, "value_and_grad", watch.differentiating(jax.value_and_grad))
    return [functions.leave]


class _Batches:
    """An epoch's batches. To wait for one is a part of the step, though the train function does it."""

    def __init__(self, hub: Seams, batches: Iterator[Any]) -> None:
        self._hub = hub
        self._batches = batches

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        return self._hub.part_run.run("data", next, self._batches)


def _iterating(hub: Seams, open_batches: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(open_batches)
    def _get_iterator(data: Any) -> Any:
        return _Batches(hub, iter(open_batches(data)))

    return _get_iterator


class _Noted:
    """Of one step, while it is traced or run."""

    def __init__(self, state: Any) -> None:
        self._level = _level(jax.tree_util.tree_leaves(state)[:1])
        self.losses: list[Any] = []
        self.optimizers: list[Any] = []
        self.numbers: list[Any] = []  # by application: how many losses, their mean, the learning rate
        self.gradients: list[Any] = []

    def sees(self, values: Any) -> bool:
        """Whether they may come out of the step: not those within a loop or a branch of its own."""
        return _level(jax.tree_util.tree_leaves(values)) == self._level


def _level(values: Sequence[Any]) -> set[int]:
    """The traces that they belong to; none, where they are there already."""
    return {id(value._trace) for value in values if isinstance(value, jax.core.Tracer)}


class _JaxWatch:
    def __init__(self, hub: Seams) -> None:
        self._hub = hub
        self._step_log: JaxStepLog = step_log_of(hub)  # type: ignore[assignment]
        self._noted: _Noted | None = None
        self._making: tuple[str, Any] = ("", None)  # kind of the function that is being made, and what its step notes
        self._applying = Flag()

    # -- functions that a model makes ---------------------------------------------------------------

    def instrumenting(self, make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def make_train_function(model: Any, *args: Any, **kwargs: Any) -> Any:
            if model.train_function is not None and not (args or kwargs):
                return make(model)
            step, own = _Step(self, model), model.__dict__.get("train_step", _ABSENT)
            self._making = ("train", step)
            model.__dict__["train_step"] = step  # Keras compiles what it finds there
            try:
                return make(model, *args, **kwargs)
            finally:
                if own is _ABSENT:
                    del model.__dict__["train_step"]
                else:
                    model.__dict__["train_step"] = own  # that the program set on this model alone
                self._making = ("", None)

        return make_train_function

    def making(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Around the step itself, compiled or not: a train function may call it several times."""

        @functools.wraps(make)
        def _make_function(model: Any, step_function: Any, *args: Any, **kwargs: Any) -> Any:
            kind, step = self._making
            around = functools.partial(self._step, model, step, step_function) if kind else None
            return make(model, around or functools.partial(self._evaluate, step_function), *args, **kwargs)

        return _make_function

    def function(self, model: Any, kind: str, made: Callable[..., Any]) -> Callable[..., Any]:
        if kind != "train":
            return functools.partial(self._called, made)
        return functools.partial(self._train, model, made)

    def _called(self, made: Callable[..., Any], *args: Any) -> Any:
        result = made(*args)
        self._heard(self._hub.at_work.publish)
        return result

    def _train(self, model: Any, made: Callable[..., Any], state: Any, iterator: Any) -> Any:
        logs, state = made(state, iterator)
        with self._step_log.standing(model, state) as standing:
            self._heard(self._hub.at_work.publish)
            self._heard(lambda: tell(self._hub, self._step_log.news()))
        return logs, standing.state()

    def _step(self, model: Any, step: _Step, step_function: Any, state: Any, data: Any) -> Any:
        given, labels = parts_of(data)
        samples = leading_size(given)
        if not self._step_log.columns:
            (logs, (numbers, _)), state = self._run(model, step_function, state, data)
            self._heard(lambda: self._step_log.add(step.optimizers, numbers, samples, [()] * len(numbers)))
            return logs, state
        application = Application(model.optimizer, (), model.trainable_variables)
        application.inputs, application.labels = [(model, True, given)], labels
        with self._step_log.standing(model, state) as standing:
            self._heard(lambda: self._step_log.before(application))
        (logs, (numbers, gradients)), state = self._run(model, step_function, standing.state(), data)
        with self._step_log.standing(model, state) as standing:
            more = [self._more(application, *each) for each in zip_longest(step.optimizers, gradients, fillvalue=())]
            self._heard(lambda: self._step_log.add(step.optimizers, numbers, samples, more))
        return logs, standing.state()

    def _run(self, model: Any, step_function: Any, state: Any, data: Any) -> Any:
        self._hub.step_called.publish(model, step_function, state, data)
        return self._part("graph", step_function, state, data)

    def _part(self, kind: str, call: Callable[..., Any], *args: Any) -> Any:
        part_run = self._hub.part_run
        return part_run.run(kind, call, *args) if part_run.subscribers else call(*args)

    def _more(self, step: Application, optimizer: Any, gradients: Sequence[Any]) -> list[int]:
        """Columns of one application."""
        variables = step.variables if optimizer is step.optimizer else optimizer._trainable_variables
        one = Application(optimizer, gradients, variables, inputs=step.inputs, labels=step.labels)
        filled: list[int] = []
        self._heard(lambda: filled.extend(map(int, self._step_log.filled(one))))
        return filled

    def _evaluate(self, step_function: Any, state: Any, data: Any) -> Any:
        result, state = step_function(state, data)
        if self._step_log.columns:
            given = [part for parts in parts_of(data) for part in parts]
            self._heard(lambda: self._step_log.evaluated(given, keras.tree.flatten(result)))
        return result, state

    def _heard(self, act: Callable[[], None]) -> None:
        self._part("watching", heard, self._hub, act)

    # -- within a step ------------------------------------------------------------------------------

    @contextmanager
    def noting(self, state: Any) -> Iterator[_Noted]:
        before, self._noted = self._noted, _Noted(state)
        try:
            yield self._noted
        finally:
            self._noted = before

    def differentiating(self, value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(value_and_grad)
        def watched(function: Any, *args: Any, **kwargs: Any) -> Any:
            differentiate = value_and_grad(function, *args, **kwargs)

            @functools.wraps(differentiate)
            def both(*given: Any, **named: Any) -> Any:
                found = differentiate(*given, **named)
                noted = self._noted
                if noted is not None:
                    self._heard(lambda: _note_loss(noted, function, found[0]))
                return found

            return both

        return watched

    def applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(apply)
        def stateless_apply(optimizer: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
            noted = self._noted
            if noted is not None and not self._applying:
                self._heard(lambda: self._note(noted, optimizer, optimizer_variables, grads))
            with self._applying:  # by an optimizer that wraps another, too
                return apply(optimizer, optimizer_variables, grads, trainable_variables)

        return stateless_apply

    def _note(self, noted: _Noted, optimizer: Any, values: Any, gradients: Any) -> None:
        if not noted.sees(gradients):
            return
        self.note(noted, optimizer, values)
        noted.gradients.append(list(gradients) if self._step_log.gradients else [])

    def note(self, noted: _Noted, optimizer: Any, values: Sequence[Any]) -> None:
        """`values`: of the optimizer's variables."""
        with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, values, strict=True))):
            rate = rate_of(unwrapped(optimizer))
            numbers = [len(noted.losses), sum(noted.losses) / max(1, len(noted.losses)), getattr(rate, "value", rate)]
        kind = jax.dtypes.canonicalize_dtype("float64")
        noted.numbers.append(jax.numpy.stack([jax.numpy.asarray(each, kind).reshape(()) for each in numbers]))
        noted.optimizers.append(optimizer)
        noted.losses = []


class _Step:
    """A model's own train step, with one more result: its numbers by application of an optimizer, and gradients."""

    def __init__(self, watch: _JaxWatch, model: Any) -> None:
        self._watch = watch
        self._model = model
        self._own = model.train_step
        self.optimizers: list[Any] = []  # that it applies, in order; known when it has been traced
        functools.update_wrapper(self, self._own)

    def __call__(self, state: Any, data: Any) -> Any:
        with self._watch.noting(state) as noted:
            logs, state = self._own(state, data)
            if not noted.optimizers and self._model.optimizer is not None:  # applied within a loop or a branch
                noted.losses = []
                self._watch.note(noted, self._model.optimizer, state[2])
        self.optimizers = noted.optimizers
        return (logs, (noted.numbers, noted.gradients)), state


def _note_loss(noted: _Noted, function: Any, value: Any) -> None:
    loss = value[0] if isinstance(value, tuple) else value
    if getattr(function, "__func__", None) is JAXTrainer.compute_loss_and_updates:
        loss = value[1][0]  # before it was scaled
    if noted.sees(loss):
        noted.losses.append(jax.numpy.mean(loss))
