"""A model that answers, in the optimizer's place: what techniques and observers are given where nothing is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class AnsweringModel:
    """It has what is asked of an optimizer: its parameters in one group, and no state."""

    def __init__(self, model: Callable[[], Any]) -> None:
        """`model`: gives it, or None where it is gone."""
        self._model = model
        self.state: dict[Any, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        model = self._model()
        return [] if model is None else [{"params": list(model.parameters())}]
