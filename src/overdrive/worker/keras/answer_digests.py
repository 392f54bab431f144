"""The digest log of a Keras program that trains nothing: what each call of its model was given, and its answer.

Calls end in Python, whatever they run in, so that all is hashed on the host (see `worker.keras.on_host`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from overdrive.core.records import StepRecord
from overdrive.seams.batches import leading_size
from overdrive.seams.hub import Seams
from overdrive.seams.keras.step_log import path_of
from overdrive.worker import digests
from overdrive.worker.digests import NUDGE, SHAKE, Slot, hashed
from overdrive.worker.keras import on_host

_MOST_SLOTS = 64  # tensors that are told apart within a step
_MOST_MODELS = 8


class AnswerLog(digests.DigestLog):
    """An observer. It stands outside of all techniques: one of them may answer without calling the model at all."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.entries: list[StepRecord] = []
        self._models: list[Any] = []
        self._begin()

    def __call__(self, seams: Seams) -> None:
        seams.answer_called.subscribe(self._called)

    def _begin(self) -> None:
        self._calls: list[str] = []
        self._samples = 0
        self._inputs: list[Slot] = []
        self._heard: list[int] = []

    def _meet(self, model: Any) -> None:
        """It is called; for the first time, perhaps."""
        if any(each is model for each in self._models) or not model.built:
            return
        self._models = [*self._models, model][-_MOST_MODELS:]
        if not (self.perturbed or self.shaken):
            return
        chance = np.random.default_rng(0)
        for variable in model.trainable_variables:
            if on_host.is_of_fractions(variable):
                value = on_host.array(variable)
                moved = 1 + (SHAKE * chance.standard_normal(value.shape) if self.shaken else NUDGE)
                variable.assign((value * moved).astype(value.dtype))

    def _called(self, subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._meet(subject[0])
        self._inputs += [_slot(each) for each in tensors_in((args, kwargs))][: _MOST_SLOTS - len(self._inputs)]
        result = call(*args, **kwargs)
        given, made = leading_size([*args, *kwargs.values()]), leading_size(result)
        self._samples += given if given == made else 0
        self._calls.append(subject[1])
        if self.bits:
            self._heard.append(on_host.checksum(tensors_in(result)))
        return result

    def stepped(self) -> None:
        """A call of the leading model is complete."""
        entry = self.entry(
            batches="",
            samples=self._samples,
            calls=hashed(self._calls),
            inputs=self._inputs,
            evaluation=[],
            settings="",
            heard=hashed(self._heard),
            parts=self._hashes() if self.bits else (),
        )
        self.entries.append(entry)
        self._begin()

    def _hashes(self) -> list[str]:
        """By `PARTS`: there is no optimizer, and random states are variables."""
        kinds: dict[str, list[Any]] = {"parameters": [], "buffers": [], "drawn": []}
        for variable in (each for model in self._models for each in model.variables):
            drawn = "seed_generator_state" in path_of(variable)
            kinds["drawn" if drawn else "parameters" if variable.trainable else "buffers"].append(variable)
        of = {kind: hashed([on_host.checksum(variables)]) for kind, variables in kinds.items()}
        return [of["parameters"], of["buffers"], "", of["drawn"]]


def tensors_in(thing: Any) -> list[Any]:
    return [each for each in keras.tree.flatten(thing) if hasattr(each, "shape") and hasattr(each, "dtype")]


def _slot(tensor: Any) -> Slot:
    """What is noted of one tensor that a model was given."""
    whole = [float(on_host.checksum([tensor]) % 2**52)]
    return [*whole, *digests.sketch(on_host.array(tensor).reshape(-1))] if on_host.is_of_fractions(tensor) else whole
