"""Seams *keras used*, *model compiled*, *fit called*, *evaluation asked*, *data opened* and *train function made*."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from keras.src.models.model import Model
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.trainers.trainer import Trainer

from overdrive.core.flag import FlagOfThread
from overdrive.seams.hub import Seams
from overdrive.seams.keras.internals import is_of_fit
from overdrive.seams.patch import Patches
from overdrive.seams.points import Around, Event

_loads = FlagOfThread()


def being_loaded() -> bool:
    """Whether a model is being compiled as it was when it was saved."""
    return bool(_loads)


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    backend_trainer = next(each for each in Model.__mro__ if "fit" in vars(each))
    if hub.keras_used.wanted:
        for holder in (Trainer, BaseOptimizer):
            patches.replace(holder, "__init__", _told(hub.keras_used, holder.__init__))
    if hub.model_compiled.wanted:
        patches.replace(Trainer, "compile", _around(hub.model_compiled, Trainer.compile))
        patches.replace(Trainer, "compile_from_config", _loading(Trainer.compile_from_config))
    if hub.fit_called.wanted:
        patches.replace(backend_trainer, "fit", _around(hub.fit_called, backend_trainer.fit))
    if hub.evaluation_asked.wanted:
        for name in ("evaluate", "predict"):
            patches.replace(backend_trainer, name, _asked(hub.evaluation_asked, getattr(backend_trainer, name)))
    if hub.data_opened.wanted:
        open_data = EpochIterator.__init__

        @functools.wraps(open_data)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            open_data(self, *args, **kwargs)
            hub.data_opened.publish(self)

        patches.replace(EpochIterator, "__init__", __init__)
    if hub.train_function_made.wanted:
        make = backend_trainer.make_train_function

        @functools.wraps(make)
        def make_train_function(model: Any, *args: Any, **kwargs: Any) -> Any:
            before = model.train_function
            result = make(model, *args, **kwargs)
            if model.train_function is not before:
                hub.train_function_made.publish(model)
            return result

        patches.replace(backend_trainer, "make_train_function", make_train_function)
    return []


def _loading(compile_as_saved: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(compile_as_saved)
    def compile_from_config(*args: Any, **kwargs: Any) -> None:
        with _loads:
            compile_as_saved(*args, **kwargs)

    return compile_from_config


def _told(point: Event, make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        point.publish()
        make(self, *args, **kwargs)

    return __init__


def _asked(point: Around, method: Callable[..., Any]) -> Callable[..., Any]:
    told = _around(point, method)

    @functools.wraps(method)
    def asked(model: Any, *args: Any, **kwargs: Any) -> Any:
        return (method if is_of_fit(kwargs) else told)(model, *args, **kwargs)

    return asked


def _around(point: Around, method: Callable[..., Any]) -> Callable[..., Any]:
    """Outermost calls only: a model's own method that calls that of its class is one call."""
    inside: list[Any] = []

    @functools.wraps(method)
    def around(model: Any, *args: Any, **kwargs: Any) -> Any:
        if any(each is model for each in inside):
            return method(model, *args, **kwargs)
        inside.append(model)
        try:
            return point.run(model, functools.partial(method, model), *args, **kwargs)
        finally:
            inside.remove(model)

    return around
