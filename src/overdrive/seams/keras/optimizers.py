"""Seams *optimizer built* and *rate used*: of Keras's optimizers, on every backend.

The rate that a step is made with is another than the one that the program has only while an optimizer is applied: its
callbacks and schedules read and set the rate as they do without us.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from keras.src.optimizers.base_optimizer import BaseOptimizer

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.varied import line_of_program

_here = threading.local()


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.optimizer_built.wanted:
        made: WeakKeyDictionary[Any, tuple[Any, str]] = WeakKeyDictionary()
        patches.replace(BaseOptimizer, "__init__", _making(made, BaseOptimizer.__init__))
        patches.replace(BaseOptimizer, "build", _building(hub, made, BaseOptimizer.build))
    if hub.rate_used.wanted:
        ask = BaseOptimizer._get_current_learning_rate
        patches.replace(BaseOptimizer, "_get_current_learning_rate", _asking(hub, ask))
        patches.replace(BaseOptimizer, "apply", _applying(BaseOptimizer.apply))
    return []


def _making(made: WeakKeyDictionary[Any, tuple[Any, str]], make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        made[self] = (args[0] if args else kwargs.get("learning_rate"), line_of_program())

    return __init__


def _building(
    hub: Seams, made: WeakKeyDictionary[Any, tuple[Any, str]], build: Callable[..., None]
) -> Callable[..., None]:
    """Its class has set all of its own by now, and makes its variables after this."""

    @functools.wraps(build)
    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        if self in made:
            hub.optimizer_built.publish(self, *made.pop(self))
        build(self, *args, **kwargs)

    return built


def _applying(apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def applied(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = getattr(_here, "applied", None)
        _here.applied = self
        try:
            return apply(self, *args, **kwargs)
        finally:
            _here.applied = before

    return applied


def _asking(hub: Seams, ask: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(ask)
    def _get_current_learning_rate(self: Any) -> Any:
        rate = ask(self)
        return hub.rate_used.apply((self, rate))[1] if getattr(_here, "applied", None) is self else rate

    return _get_current_learning_rate
