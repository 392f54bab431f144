"""How the calls of a Keras program that trains nothing are recorded, given again and answered in fp64 (see
`worker.answer_replay`). The fp64 answer is computed beside the program's own, layer by layer, without a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from overdrive.core.trial_spec import BY_SAMPLE
from overdrive.seams.hub import Seams
from overdrive.seams.keras.answers import PREDICT
from overdrive.seams.keras.fp64 import layers_in_double
from overdrive.worker import answer_replay, digests
from overdrive.worker.answer_replay import few_places
from overdrive.worker.digests import spacing
from overdrive.worker.keras import on_host
from overdrive.worker.replay import MOST_ELEMENTS, load_arrays, save_arrays

_MOVABLE = "float32"  # what is disturbed


class AnswerSteps(answer_replay.AnswerSteps):
    """The program as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._kind = ""
        self._moved: list[tuple[Any, Any]] = []  # variables with what they held

    def listen(self, seams: Seams) -> None:
        seams.answer_called.subscribe(self._around)

    def _around(self, subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        model, self._kind = subject
        return self.called(model, call, *args, **kwargs)

    def flat(self, thing: Any) -> list[Any]:
        return list(keras.tree.flatten(thing))

    def unflat(self, like: Any, leaves: list[Any]) -> Any:
        return keras.tree.pack_sequence_as(like, leaves)

    def is_tensor(self, thing: Any) -> bool:
        return hasattr(thing, "shape") and hasattr(thing, "dtype")

    def bytes_of(self, tensor: Any) -> int:
        return int(on_host.array(tensor).nbytes)

    def sketch(self, tensor: Any) -> list[float]:
        checksum = float(on_host.checksum([np.array(tensor.shape)]) % 2**52)
        if not on_host.is_of_fractions(tensor):
            return [checksum, float(on_host.checksum([tensor]) % 2**52)]
        return [checksum, *digests.sketch(on_host.array(tensor).reshape(-1))]

    def kept(self, tensor: Any, share: float) -> Any:
        flat = on_host.array(tensor).reshape(-1)
        return flat[:: spacing(flat.size, int(share * MOST_ELEMENTS) or 1)].astype(np.float64)

    def save(self, path: Path) -> None:
        save_arrays(path, {str(number): on_host.array(each) for number, each in enumerate(self.tensors())})

    def load(self, path: Path) -> None:
        recorded, mine = list(load_arrays(path).values()), [on_host.array(each) for each in self.tensors()]
        alike = [(each.shape, each.dtype) for each in mine] == [(each.shape, each.dtype) for each in recorded]
        if alike and not all(map(np.array_equal, mine, recorded)):
            following = iter(recorded)
            self.replace([_like(each, next(following)) if self.is_tensor(each) else each for each in self._leaves])

    def disturb(self, share: float, seed: int) -> None:
        chance = np.random.default_rng(seed)
        for variable in self._model.trainable_variables:
            if keras.backend.standardize_dtype(variable.dtype) == _MOVABLE:
                value = on_host.array(variable)
                self._moved.append((variable, value))
                variable.assign(value * (1 + share * chance.standard_normal(value.shape)).astype(value.dtype))

    def put_back(self) -> None:
        for variable, value in self._moved:
            variable.assign(value)
        self._moved = []


class AnswersInDouble(AnswerSteps):
    """The chosen calls are made as the program makes them, and then once more in fp64, whose answer is the target."""

    def answer(self, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        given, named = keras.tree.map_structure(_widened, (args, kwargs))
        with layers_in_double(module):
            if self._kind == PREDICT:  # a list of batches, of which each is a step
                answers = [module.predict_step(batch) for batch in given[0]]
                found = keras.tree.map_structure(_joined, *answers)
            else:
                found = call(*given, **named)
        self.note(module, found)
        return result


class AnswersBySample(AnswerSteps):
    """As the program makes them, and kept as `worker.agreement` compares them: samples x places x classes."""

    def kept(self, tensor: Any, share: float) -> Any:
        found = on_host.array(tensor)
        samples = found.shape[:1] or (1,)
        if not on_host.is_of_fractions(tensor):
            return few_places(found.reshape(*samples, -1, 1), share).astype(np.int64)
        classes = found.shape[-1] if found.ndim > 1 else 1
        return few_places(found.reshape(*samples, -1, classes), share).astype(np.float32)


def _widened(thing: Any) -> Any:
    if not hasattr(thing, "dtype") or not hasattr(thing, "shape"):
        return thing
    return keras.ops.cast(thing, "float64") if on_host.is_of_fractions(thing) else thing


def _joined(*batches: Any) -> Any:
    return batches[0] if len(batches) == 1 else keras.ops.concatenate(batches)


def _like(tensor: Any, array: Any) -> Any:
    """The array, as a tensor of the kind that is to be replaced."""
    return array if isinstance(tensor, np.ndarray) else keras.ops.convert_to_tensor(array)


def steps_for(role: str) -> AnswerSteps:
    if role in BY_SAMPLE:
        return AnswersBySample()
    return AnswersInDouble() if role == "reference" else AnswerSteps()
