"""Sets and sees a program's hyperparameters inside a trial: at its command line, its constants and the seams."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass, replace
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

from overdrive.core.hyperparameters import (
    CONSTANT,
    DROPOUT,
    FIRST_DIMENSION,
    IMPORTED,
    INPUT,
    LITERAL,
    LOADER,
    MODEL,
    OPTIMIZER,
    OPTION,
    WIDTH,
    Hyperparameters,
    Seen,
    ValuePlace,
)
from overdrive.core.json_data import to_json
from overdrive.core.settings import Value
from overdrive.seams import arguments, constants, environment
from overdrive.seams.hub import Seams
from overdrive.seams.imported_constants import ImportedConstants, as_word, has_still
from overdrive.seams.scaled_losses import ScaledLosses
from overdrive.seams.varied import line_of_program
from overdrive.worker.keras.hyperparameters import KerasValues
from overdrive.worker.read_files import ReadFiles

NAME = "overdrive.worker.hyperparameter_watch"  # by which its report is known
_LONGEST_TREE = 100_000  # characters
_LONG_ENOUGH = 120.0  # seconds of a model's calls, for one that trains nothing: others may evaluate before they train
_AT_SEAMS = (OPTIMIZER, LOADER, DROPOUT, *MODEL)
_STEPS_TO_MEET = 4  # a listing looks at two
_ENOUGH = 4  # losses sent backward, for a program without an optimizer to have shown what it has


def _is_field(main: Any, name: str, fields: Collection[str]) -> bool:
    """Whether this is a data class's field of one of these names: `Args.lr`."""
    owner, _, field = name.partition(".")
    return field in fields and is_dataclass(getattr(main, owner, None))


class _Noted(dict[str, Value]):
    """Values to be set, which know of each whether it was asked for."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self._met: set[str] = set()

    def __getitem__(self, key: str) -> Value:
        self._met.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._met.add(key)
        return super().get(key, default)

    def never_met(self) -> list[str]:
        """Of the seams, by kind, line, name and the value that the program had there."""
        asked = {key for key in self if key.startswith(_AT_SEAMS) and not key.endswith("|")}
        missed = {key for key in asked if not self._met & {key, f"{key.rpartition('|')[0]}|"}}
        return sorted(" ".join(filter(None, key.split("|"))) for key in missed)


class HyperparameterWatch:
    """An observer; reports a `Seen`.

    Args:
        over: ends the program, which has shown all that it will: one that makes no step that could be waited for.
    """

    def __init__(self, wanted: Hyperparameters, over: Callable[[], None]) -> None:
        environment.set_in_environment(wanted.values)
        self._wanted = wanted
        self._values = _Noted(wanted.values)  # of them, what the seams ask for
        self._steps = 0
        self._read = ReadFiles() if wanted.look else None
        self._over = over
        self._imported = ImportedConstants(wanted.values, self._heard)
        self._places: dict[str, ValuePlace] = {}
        self._keras = KerasValues(wanted, self._values, self._heard)
        self._loaders: WeakKeyDictionary[Any, ValuePlace] = WeakKeyDictionary()
        self._opened: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by iterator, its loader
        self._trained = 0  # losses sent backward
        self._optimizers = 0
        self._first_call = 0.0  # time.monotonic()
        self._loss: Any = 0.0
        self._losses = 0
        self._scaled: ScaledLosses | None = None
        self._fetched: Any = None  # the iterator that the last batch came from
        self._inputs: tuple[int, ...] = ()
        self._rates: Any = None
        self._trees: dict[str, None] = {}

    def compile(self, source: bytes, path: str) -> CodeType:
        """The code of the program's main file."""
        code, places = constants.compiled(source, path, self._wanted.values)
        self._heard(places)
        return code

    def __call__(self, seams: Seams) -> None:
        if self._wanted.look or any(key.startswith((IMPORTED, LITERAL)) for key in self._wanted.values):
            seams.on_undo(self._imported.enter())
        if self._wanted.look:
            seams.on_undo(arguments.enter(self._heard))
            seams.on_undo(environment.enter(self._heard))
            seams.loader_opens.subscribe(self._opens)
            seams.batch_fetched.subscribe(self._batch)
            seams.model_called.subscribe(self._called)
        self._keras(seams)
        seams.loader_made.subscribe(self._loader)
        seams.optimizer_made.subscribe(self._optimizer)
        if self._wanted.ramp or self._wanted.anneal or any(key.startswith(OPTIMIZER) for key in self._wanted.values):
            seams.step_begins.subscribe(lambda optimizer: self._rates and self._rates.begin(optimizer))
            seams.step_ends.subscribe(lambda optimizer: self._rates and self._rates.end(optimizer))
        if not self._wanted.look and any(key.startswith(_AT_SEAMS) for key in self._wanted.values):
            seams.step_ends.subscribe(self._stepped)
        if self._wanted.look or self._wanted.losses:
            self._scaled = ScaledLosses(seams)
            seams.loss_backward.subscribe(self._backward)

    def report(self) -> Any:
        loss = float(self._loss) / self._losses if self._losses else self._keras.loss()
        self._loss, self._losses = 0.0, 0
        places = tuple(self._seen()) if self._wanted.look else ()
        return to_json(Seen(places, loss, "\n".join(self._trees), self._read.paths() if self._read else ()))

    def _seen(self) -> Iterator[ValuePlace]:
        """All places but constants, momenta and the like that have another value by now: something else decides that;
        and but defaults of a data class that an option sets."""
        main = sys.modules["__main__"]
        options = [place.name for place in self._places.values() if place.kind == OPTION]
        fields = {name.lstrip("-").rpartition(".")[2].replace("-", "_") for name in options}
        taken_back = {place.key for place, _ in self._rates.taken_back()} if self._rates else set()
        for place in self._places.values():
            if place.key in taken_back or (place.kind == CONSTANT and _is_field(main, place.name, fields)):
                continue
            if place.kind == IMPORTED:
                if self._imported.still(place):
                    yield place
            elif place.kind != CONSTANT or has_still(main, place, self._wanted.values):
                yield place
            elif word := as_word(main, place, self._wanted.values):
                yield word

    def _heard(self, places: list[ValuePlace]) -> None:
        self._places.update((place.key, place) for place in places)

    def _loader(self, making: tuple[Any, dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
        from overdrive.seams.torch import values

        loader, given = making
        made, place = values.of_loader(given, line_of_program(), self._values)
        if place := place or self._of_same_batches(made.get("batch_sampler")):
            self._loaders[loader] = place
        return loader, made

    def _of_same_batches(self, sampler: Any) -> ValuePlace | None:
        """That of the loader whose batches these are: Accelerate makes one of its own of the program's."""
        if sampler is None:
            return None
        same = (place for each, place in self._loaders.items() if getattr(each, "batch_sampler", None) is sampler)
        return next(same, None)

    def _opens(self, loader: Any, call: Callable[[], Any]) -> Any:
        iterator = call()
        self._opened[iterator] = loader
        return iterator

    def _optimizer(self, optimizer: Any, models: list[Any]) -> None:
        from overdrive.seams.torch import values

        self._optimizers += 1
        self._rates = self._rates or values.ScaledRates(self._wanted.ramp, self._wanted.anneal)
        where = line_of_program()
        self._heard(values.of_optimizer(optimizer, where, self._values, self._rates))
        if any(key.startswith(MODEL) for key in self._wanted.values):
            self._network(optimizer, models)
        elif self._wanted.look:
            with suppress(Exception):  # a class that behaves like no other: all else can be told
                self._network(optimizer, models)
        self._heard(values.of_dropouts(models, self._values))
        if self._wanted.look:
            self._trees.update({str(model)[:_LONGEST_TREE]: None for model in models})

    def _network(self, optimizer: Any, models: list[Any]) -> None:
        from overdrive.seams.torch import architecture, heads_and_kernels

        self._heard(list(map(self._of_all, architecture.of_models(models, optimizer, self._values))))
        self._heard(heads_and_kernels.of_models(models, self._values))

    def _of_all(self, place: ValuePlace) -> ValuePlace:
        """One size is one place: it is told by the layers of the models of all optimizers, as of a GAN's two."""
        known = self._places.get(place.key)
        if known is None or place.kind != WIDTH or place.of in known.of:
            return place
        return replace(place, of=f"{known.of}; {place.of}")

    def _stepped(self, optimizer: Any) -> None:
        """After some steps, by which all places had been seen when they were listed.

        Raises:
            ValueError: a value was set nowhere, or the program has another one there by now, so that the run is not the
                one that it is taken for.
        """
        self._steps += 1
        if self._steps != _STEPS_TO_MEET:
            return
        if missing := self._values.never_met():
            raise ValueError(f"the program no longer has {', '.join(missing)}")
        taken_back = self._rates.taken_back() if self._rates else []
        if again := sorted({place.name for place, asked in taken_back if asked}):
            raise ValueError(f"the program itself sets {', '.join(again)} while it trains")

    def _batch(self, iterator: Any, batch: Any, seconds: float) -> None:
        import torch

        if torch.is_grad_enabled() and not self._trained:  # no evaluation's
            self._fetched = iterator

    def _called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        from overdrive.seams.torch import values
        from overdrive.seams.torch.modules import first_parameter

        # A loss function is no model: its rows are words, of a model of sequences.
        if self._trained or first_parameter(model) is None:
            return call(*args, **kwargs)
        self._first_call = self._first_call or time.monotonic()
        if time.monotonic() - self._first_call > _LONG_ENOUGH:
            self._over()
        if torch.is_grad_enabled():
            self._inputs = values.sizes(args, kwargs) or self._inputs
        return call(*args, **kwargs)

    def _backward(self, loss: Any) -> Any:
        self._loss = self._loss + (self._scaled.plain(loss) if self._scaled else loss).detach().double().mean()
        self._losses += 1
        if self._wanted.look:
            self._of_training()
        return loss

    def _of_training(self) -> None:
        """Of loaders, the one whose batches are trained on counts."""
        self._trained += 1
        if self._trained == 1:
            place = self._loaders.get(self._opened.get(self._fetched)) if self._fetched is not None else None
            self._fetched = None  # nobody keeps it alive here
            if place:
                self._heard([place])
            elif not self._keras.optimizers:
                names = (FIRST_DIMENSION, "dimension 1")
                self._heard([ValuePlace(INPUT, *each) for each in zip(names, self._inputs, strict=False)])
        if self._trained == _ENOUGH and not (self._optimizers or self._keras.optimizers):
            self._over()
