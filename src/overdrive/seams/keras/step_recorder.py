"""What steps of Keras's optimizers left behind: samples, losses, learning rates, and hashes of where they ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from overdrive.seams.answer_recorder import AnswersOfModels
from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend
from overdrive.seams.keras.step_log import ask_for_losses
from overdrive.seams.parameters import parameters_of


class StepRecorder:
    """Reads the session's step log when it is asked. Importing Keras is left until then."""

    def __init__(self, hub: Seams, losses: bool) -> None:
        self._hub = hub
        self._keep = losses
        if losses:
            ask_for_losses(hub)

    @property
    def _step_log(self) -> Any:
        from overdrive.seams.keras.step_log import step_log_of

        step_log = step_log_of(self._hub)
        if self._keep and not step_log.keep:
            step_log.keep = True
        return step_log

    def stepped(self, optimizer: Any, ticked: bool) -> bool:
        from keras.src.optimizers.base_optimizer import BaseOptimizer

        return isinstance(optimizer, BaseOptimizer) and self._step_log is not None

    @property
    def optimizers(self) -> list[Any]:
        return list(self._step_log.optimizers)

    @property
    def samples(self) -> int:
        self._step_log.read()
        return int(self._step_log.samples)

    @property
    def rates(self) -> list[float]:
        from overdrive.seams.keras.step_log import RATE, number

        return [number(rows[-1][RATE]) for rows in self._step_log.by_step()]

    def losses(self) -> list[list[float]]:
        """Those of one application come as their mean, as often as there were any."""
        from overdrive.seams.keras.step_log import LOSS, LOSSES, number

        return [
            [number(row[LOSS]) for row in rows for _ in range(int(row[LOSSES]))] for rows in self._step_log.by_step()
        ]

    def parameters_hash(self) -> str | None:
        self._step_log.settle()
        return _hash(self._trained()) if self.optimizers else None

    def _trained(self) -> list[Any]:
        return [variable for optimizer in self._own() for variable in optimizer._trainable_variables]

    def _own(self) -> list[Any]:
        from overdrive.seams.keras.step_log import unwrapped

        return [unwrapped(optimizer) for optimizer in self.optimizers]

    def trained(self) -> str:
        counts = [[int(np.prod(each.shape)) for each in one._trainable_variables] for one in self._own()]
        return "; ".join(f"{len(each)} tensors, {sum(each)} scalars" for each in counts)

    def call_sizes(self) -> dict[str, int]:
        return {}

    def state_hash(self) -> str:
        self._step_log.settle()
        kept = [variable for optimizer in self.optimizers for variable in optimizer.variables]
        return _hash([*self._trained(), *kept])


class AnswerRecorder(AnswersOfModels):
    framework = "keras"

    def __init__(self, hub: Seams, losses: bool) -> None:
        self._begin(losses)
        hub.answer_called.subscribe(self._called)

    def parameters_hash(self) -> str | None:
        return _hash(self._variables()) if self.optimizers else None

    def _variables(self) -> list[Any]:
        return [variable for each in self.optimizers for variable in parameters_of(each)]

    def trained(self) -> str:
        groups = [parameters_of(each) for each in self.optimizers]
        counts = [[int(np.prod(each.shape)) for each in group if each.trainable] for group in groups]
        return "; ".join(f"{len(each)} tensors, {sum(each)} scalars" for each in counts)

    def state_hash(self) -> str:
        import keras

        answer = [keras.ops.convert_to_numpy(each) for each in keras.tree.flatten(self._answer) if _is_dense(each)]
        return hashlib.sha256(f"{_hash(self._variables())}{_hash_arrays(answer)}".encode()).hexdigest()


def _is_dense(thing: Any) -> bool:
    return hasattr(thing, "shape") and hasattr(thing, "dtype")


def _hash(variables: Iterable[Any]) -> str:
    import keras

    tensorflow = backend() == "tensorflow"
    return _hash_arrays(
        variable.numpy() if tensorflow else keras.ops.convert_to_numpy(variable.value) for variable in variables
    )


def _hash_arrays(arrays: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for value in map(np.asarray, arrays):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
