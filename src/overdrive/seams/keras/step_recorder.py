"""What steps of Keras's optimizers left behind: samples, losses, learning rates, and hashes of where they ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend


class StepRecorder:
    """Reads the session's step log when it is asked. Importing Keras is left until then."""

    def __init__(self, hub: Seams, losses: bool) -> None:
        self._hub = hub
        self._keep = losses

    @property
    def _step_log(self) -> Any:
        from overdrive.seams.keras.step_log import step_log_of

        step_log = step_log_of(self._hub)
        step_log.keep |= self._keep
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

    def state_hash(self) -> str:
        self._step_log.settle()
        kept = [variable for optimizer in self.optimizers for variable in optimizer.variables]
        return _hash([*self._trained(), *kept])


def _hash(variables: Iterable[Any]) -> str:
    import keras

    digest = hashlib.sha256()
    for variable in variables:
        found = variable.numpy() if backend() == "tensorflow" else keras.ops.convert_to_numpy(variable.value)
        value = np.asarray(found)
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
