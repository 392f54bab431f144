"""All that a program's next training step depends on, to be saved: weights, buffers, optimizers, random states.

The models are found among the live objects, so that an average of the weights or a target network that
no optimizer knows is saved too. Two runs of one program find the same names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.layouts import bytes_of, is_of_fractions
from overdrive.seams.torch.modules import first_parameter, live_modules
from overdrive.worker.torch.generators import plain_states, restore
from overdrive.worker.torch.group_values import GroupValues

Tensors = dict[str, torch.Tensor]


class Subject:
    """The state of a running program, by name."""

    @classmethod
    def found(cls, optimizers: list[Any], groups: GroupValues | None = None) -> Subject:
        """These optimizers, and what lives of modules: a walk over all objects, 50 ms of 300,000."""
        return cls(optimizers, _named_roots(), groups)

    def __init__(
        self,
        optimizers: Sequence[Any],
        roots: Sequence[tuple[str, torch.nn.Module]],
        groups: GroupValues | None = None,
    ) -> None:
        self.optimizers = optimizers
        self._groups = groups or GroupValues()
        self.parameters: Tensors = {}
        self.buffers: Tensors = {}
        known: set[int] = set()

        def add(place: Tensors, name: str, tensor: torch.Tensor) -> None:
            if id(tensor) not in known:
                known.add(id(tensor))
                place[name] = tensor

        for name, module in roots:
            for key, parameter in module.named_parameters():
                add(self.parameters, f"{name}{key}", parameter)
            for key, tensor in module.named_buffers():
                add(self.buffers, f"{name}{key}", tensor)
        for number, optimizer in enumerate(optimizers):
            for place, tensor in enumerate(parameters_of(optimizer)):
                add(self.parameters, f"optimizer {number}, parameter {place}", tensor)
        self.trained = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}

    @property
    def tensors(self) -> Tensors:
        return {**self.parameters, **self.buffers}

    def begins_with(self, module: torch.nn.Module) -> bool:
        """Whether nothing can have been computed with the trained parameters before this outermost call: one of a part
        of a model may come from a method of the whole that has used other weights, or these, by then."""
        if self.trained <= {id(each) for each in torch.nn.Module.parameters(module)}:
            return True
        return not any(each is module for other in live_modules() for each in _descendants(other))

    def bytes(self) -> int:
        """Size of a saved state."""
        return sum(map(bytes_of, [*self.tensors.values(), *self.optimizer_tensors()]))

    def optimizer_tensors(self, of: set[int] | None = None) -> Iterator[torch.Tensor]:
        """What the optimizers keep; `of`: only of these parameters, by id."""
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                if of is None or id(parameter) in of:
                    yield from _tensors_in(state)

    def kept_of(self, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """What optimizers keep of a parameter, element by element: momentum, say. By their names for it."""
        for optimizer in self.optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and is_of_fractions(value) and value.dim():
                    yield key, value

    def save(self, path: Path) -> None:
        torch.save(
            {
                "tensors": {name: tensor.detach() for name, tensor in self.tensors.items()},
                "optimizers": [_state_of(optimizer) for optimizer in self.optimizers],
                "groups": [self._groups.told(optimizer) for optimizer in self.optimizers],
                "rng": plain_states(),
            },
            path,
        )

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Put a saved state in place of this one: values only, so that memory formats and aliases stay."""
        saved = torch.load(path, weights_only=True, map_location="cpu")
        mine = self.tensors
        for name, value in saved["tensors"].items():
            if name in mine and mine[name].shape == value.shape:
                mine[name].data.copy_(value)  # `data`: graphs that are still to be used do not notice
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=False):
            _load_state(optimizer, state)
        for optimizer, told in zip(self.optimizers, saved["groups"], strict=False):
            self._groups.put(optimizer, told)
        restore(saved["rng"])


def _named_roots() -> list[tuple[str, torch.nn.Module]]:
    """The outermost modules with something to save, each with a prefix that tells them apart: none, where it is the
    only one with parameters. What else lives may differ: code that was compiled for a GPT-2 keeps empty constants in a
    module of its own, and every tensor of the model had another name than in the reference run.
    """
    modules = live_modules()
    inner = {id(child) for module in modules for child in _descendants(module)}
    found = []
    for module in modules:
        if id(module) in inner:
            continue
        try:
            shapes = tuple((name, tuple(tensor.shape)) for name, tensor in module.state_dict(keep_vars=True).items())
        except Exception:  # a half-made module, or one that is no more than a proxy
            continue
        if shapes:
            found.append((type(module).__name__, shapes, module))
    found.sort(key=lambda each: each[:2])  # stable: alike modules stay in the order in which they were made
    holders = [module for _, _, module in found if first_parameter(module) is not None]
    only = found[0][2] if len(found) == 1 else holders[0] if len(holders) == 1 else None
    counts: dict[str, int] = {}
    named = []
    for kind, _, module in found:
        counts[kind] = counts.get(kind, 0) + 1
        named.append(("" if module is only else f"{kind} {counts[kind]}: ", module))
    return named


def _descendants(module: torch.nn.Module) -> list[torch.nn.Module]:
    try:
        return [child for child in module.modules() if child is not module]
    except Exception:
        return []


def _state_of(optimizer: Any) -> dict[int, Any]:
    """The optimizer's state by the place of its parameter; nested lists and dicts of tensors and numbers."""
    return {
        place: _plain(optimizer.state[parameter])
        for place, parameter in enumerate(parameters_of(optimizer))
        if parameter in optimizer.state
    }


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else None


def _load_state(optimizer: Any, saved: dict[int, Any]) -> None:
    for place, parameter in enumerate(parameters_of(optimizer)):
        if place not in saved:
            optimizer.state.pop(parameter, None)
            continue
        state = optimizer.state[parameter]
        for key, value in saved[place].items():
            state[key] = _merged(state.get(key), value, parameter)


def _merged(mine: Any, saved: Any, parameter: torch.Tensor) -> Any:
    if isinstance(saved, torch.Tensor):
        if isinstance(mine, torch.Tensor) and mine.shape == saved.shape:
            return mine.copy_(saved)
        return saved.clone() if saved.dim() == 0 else saved.to(parameter.device, copy=True)
    if isinstance(saved, list):
        return [_merged(None, each, parameter) for each in saved]
    return saved


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each)
