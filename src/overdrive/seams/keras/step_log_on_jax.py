"""The step log of Keras on JAX, and the state between two steps, which only `fit` has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from overdrive.seams.keras.step_log import HostStepLog


class Standing:
    """The state between two steps, which may be brought into the model's variables."""

    def __init__(self, model: Any, state: Sequence[Any]) -> None:
        self._model = model
        self._state = state
        self._settled = False

    def settle(self) -> None:
        if self._settled:
            return
        model = self._model
        whole = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
        for variables, values in zip((*whole, model.metrics_variables), self._state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        self._settled = True

    def state(self) -> Any:
        """To go on with: what the variables hold, where it was brought there."""
        if not self._settled:
            return self._state
        names = ("trainable", "non_trainable", "optimizer", "metrics")
        return self._model._get_jax_state(**{f"{name}_variables": True for name in names}, purge_model_variables=True)


class JaxStepLog(HostStepLog):
    def __init__(self) -> None:
        super().__init__()
        self._standing: Standing | None = None

    @property
    def gradients(self) -> bool:
        return any(each.gradients for each in self.columns)

    def settle(self) -> None:
        if self._standing is not None:
            self._standing.settle()

    @contextmanager
    def standing(self, model: Any, state: Sequence[Any]) -> Iterator[Standing]:
        before, self._standing = self._standing, Standing(model, state)
        try:
            yield self._standing
        finally:
            self._standing = before
