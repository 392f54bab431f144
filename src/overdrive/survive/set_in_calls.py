"""What a model's call sets on its modules: noted with the call's result, and set again where the call is skipped."""

from __future__ import annotations

from typing import Any

import torch

Place = list[str]  # the module's name within the model, and the attribute's
_ABSENT = object()


class SetInCalls:
    """Hears of attributes while a call is recorded."""

    def __init__(self) -> None:
        self._set: dict[tuple[int, str], torch.nn.Module] | None = None

    def begin(self) -> None:
        self._set = {}

    def heard(self, module: torch.nn.Module, name: str) -> None:
        if self._set is not None:
            self._set[id(module), name] = module

    def found(self, model: torch.nn.Module) -> list[tuple[Place, Any]]:
        """What was set since `begin` on modules of this model: where, and what is there now."""
        heard, self._set = self._set, None
        if not heard:
            return []
        names = {id(module): name for name, module in model.named_modules()}
        within = [(owner, name) for (number, name), owner in heard.items() if number in names]
        there = [([names[id(owner)], name], _value(owner, name)) for owner, name in within]
        return [(place, value) for place, value in there if value is not _ABSENT]


def set_again(model: torch.nn.Module, places: list[Place], values: list[Any]) -> None:
    for (module, name), value in zip(places, values, strict=True):
        setattr(model.get_submodule(module), name, value)


def _value(module: torch.nn.Module, name: str) -> Any:
    """Parameters and modules are no results of a call."""
    value = getattr(module, name, _ABSENT)
    return _ABSENT if isinstance(value, (torch.nn.Parameter, torch.nn.Module)) else value
