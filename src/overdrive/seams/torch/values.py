"""Values of a program at PyTorch's seams that another run may have otherwise: read, and set.

Learning rate, weight decay, momentum and betas of an optimizer's groups; the batch size of a loader; dropout rates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch

from overdrive.core.hyperparameters import ANNEALED, DROPOUT, LOADER, OPTIMIZER, SCHEDULE, ValuePlace
from overdrive.core.settings import Value
from overdrive.seams.step_counter import StepCounter
from overdrive.seams.varied import asked_for

_GROUP = ("lr", "weight_decay", "momentum")
_BETAS = ("beta1", "beta2")
_SAME = 1e-6  # of two values, one of which may have been kept in 32 bits
_DROPOUTS = (
    torch.nn.Dropout,
    torch.nn.Dropout1d,
    torch.nn.Dropout2d,
    torch.nn.Dropout3d,
    torch.nn.AlphaDropout,
    torch.nn.FeatureAlphaDropout,
)


class ScaledRates:
    """Learning rates that are others while their optimizer steps, and the program's own in between.

    So a schedule goes on as it is, at another height, whoever keeps it: one of PyTorch's with a highest rate of its
    own, or the program itself, which sets the rate before each step.
    """

    def __init__(self, ramp: tuple[float, float, int] | None = None, anneal: int = 0) -> None:
        """
        Args:
            ramp: from which factor to which all rates grow, evenly on a logarithmic scale, and in how many steps.
            anneal: steps of the program over which they fall, as under a `LinearLR` beside its own schedule; 0: none.
        """
        self._ramp, self._anneal = ramp, anneal
        self._counter = StepCounter()
        self._steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._factors: WeakKeyDictionary[Any, list[float]] = WeakKeyDictionary()  # of its groups, by their place
        self._made: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        # By a group's place, what is not scaled, and what was asked for.
        self._held: WeakKeyDictionary[Any, list[tuple[int, ValuePlace, float | None]]] = WeakKeyDictionary()
        self.first: dict[str, float] = {}  # values that the program had first, by their places' `key_of_any`
        self._before: list[tuple[dict[str, Any], Any]] = []

    def made(self, optimizer: Any) -> None:
        """With a ramp these rates are what grows: a warmup of the program's own would hide what it tells."""
        if self._ramp:
            self._made[optimizer] = [group["lr"] for group in optimizer.param_groups]

    def scale(self, optimizer: Any, place: int, factor: float) -> None:
        """By a group's place: `load_state_dict` puts other dictionaries there.

        A group that is added later is as the first: `SGD(norms, lr)`, then `add_param_group` for all else, is one rate.
        """
        factors = self._factors.setdefault(optimizer, [1.0] * len(optimizer.param_groups))
        factors[place] = factor

    def hold(self, optimizer: Any, group: int, place: ValuePlace, wanted: float | None) -> None:
        """What the optimizer was made with: `wanted`, or the program's own where that is None."""
        self._held.setdefault(optimizer, []).append((group, place, wanted))

    def taken_back(self) -> list[tuple[ValuePlace, bool]]:
        """Places whose value the program has set anew, and whether another one was asked for.

        `OneCycleLR` and `CyclicLR` have momenta of their own, some programs a schedule of their weight decay.
        """
        found = []
        for optimizer, held in self._held.items():
            for group, place, wanted in held:
                now = _get(optimizer.param_groups[group], place.name) if group < len(optimizer.param_groups) else None
                given = float(place.value) if wanted is None else wanted
                if now is not None and not math.isclose(now, given, rel_tol=_SAME):
                    found.append((place, wanted is not None))
        return found

    def begin(self, optimizer: Any) -> None:
        """A step is about to be made."""
        self.end(optimizer)  # of one that broke off
        if self._ramp:
            low, high, steps = self._ramp
            step = self._steps[optimizer] = self._steps.get(optimizer, -1) + 1
            factor = low * (high / low) ** (step / max(1, steps - 1))
            known = self._made.get(optimizer, [])
            rates = [*known, *(group["lr"] for group in optimizer.param_groups[len(known) :])]
            changes = [(group, factor * rate) for group, rate in zip(optimizer.param_groups, rates, strict=False)]
        else:
            changes = [(group, factor * group["lr"]) for group, factor in self._of(optimizer)]
        for group, rate in changes:
            self._before.append((group, group["lr"]))
            group["lr"] = rate

    def _of(self, optimizer: Any) -> list[tuple[dict[str, Any], float]]:
        """Its groups, and how many times their own rate they have in the step that begins."""
        factors, fallen = self._factors.get(optimizer), 1.0
        if self._anneal:
            fallen = 1 - (1 - ANNEALED) * min(1.0, self._counter.steps / self._anneal)
            self._counter.tick(optimizer)
        elif factors is None:
            return []
        known = factors or [1.0]
        groups = enumerate(optimizer.param_groups)
        return [(group, fallen * (known[place] if place < len(known) else known[0])) for place, group in groups]

    def end(self, optimizer: Any) -> None:
        """It has been made."""
        while self._before:
            group, rate = self._before.pop()
            group["lr"] = rate


def of_optimizer(optimizer: Any, where: str, values: Mapping[str, Value], rates: ScaledRates) -> list[ValuePlace]:
    """Its places as the program has them; those in `values` are set. Groups with the same value are one place."""
    kind = type(optimizer).__name__
    places: dict[str, ValuePlace] = {}
    rates.made(optimizer)
    for place_of_group, group in enumerate(optimizer.param_groups):
        for name in (*_GROUP, *_BETAS):
            value = _get(group, name)
            if value is None:
                continue
            place = ValuePlace(OPTIMIZER, name, value, where, kind)
            places[place.key] = place
            wanted = asked_for(place, value, values, rates.first)
            if name == "lr" and value > 0:
                if wanted is not None:
                    rates.scale(optimizer, place_of_group, wanted / value)
                continue
            if wanted is not None:
                _set(group, name, wanted)
            rates.hold(optimizer, place_of_group, place, wanted)
    if any(place.name == "lr" for place in places.values()):
        fall = ValuePlace(SCHEDULE, "anneal", 0.0)
        places[fall.key] = fall
    defaults = optimizer.defaults  # for groups that are added later
    for name in _GROUP[1:]:
        value = _get(defaults, name)
        wanted = (
            None if value is None else asked_for(ValuePlace(OPTIMIZER, name, value, where), value, values, rates.first)
        )
        if wanted is not None:
            defaults[name] = wanted
    return list(places.values())


def _get(group: Mapping[str, Any], name: str) -> float | None:
    if name in _BETAS:
        betas = group.get("betas")
        value = betas[_BETAS.index(name)] if isinstance(betas, (tuple, list)) and len(betas) == 2 else None
    else:
        value = group.get(name)
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, (int, float)) else None


def _set(group: dict[str, Any], name: str, value: float) -> None:
    if name in _BETAS:
        betas = list(group["betas"])
        betas[_BETAS.index(name)] = value
        group["betas"] = tuple(betas)
    elif isinstance(group[name], torch.Tensor):
        group[name].fill_(value)
    else:
        group[name] = value


def of_loader(
    arguments: dict[str, Any], where: str, values: Mapping[str, Value]
) -> tuple[dict[str, Any], ValuePlace | None]:
    """What a loader is to be made with, and its place; None where it is given batches that others put together."""
    size = arguments.get("batch_size", 1)
    if not isinstance(size, int) or arguments.get("batch_sampler") is not None:
        return arguments, None
    place = ValuePlace(LOADER, "batch_size", size, where, "DataLoader")
    if place.key in values:
        arguments = {**arguments, "batch_size": int(values[place.key])}
    return arguments, place


def of_dropouts(models: Iterable[Any], values: Mapping[str, Value]) -> list[ValuePlace]:
    """Dropout rates of modules, those of one rate together."""
    found: Counter[float] = Counter()
    for module in {id(each): each for model in models for each in model.modules()}.values():
        name = "p" if isinstance(module, _DROPOUTS) else "dropout"
        rate = vars(module).get(name)
        if not isinstance(rate, float) or not 0 <= rate < 1:
            continue
        found[rate] += 1
        key = ValuePlace(DROPOUT, "p", rate).key
        if key in values:
            setattr(module, name, float(values[key]))
    return [
        ValuePlace(DROPOUT, "p", rate, of=f"{count} module{'s' if count > 1 else ''}") for rate, count in found.items()
    ]


def sizes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """The first two dimensions of the first tensor that a model is given."""
    for each in (*args, *kwargs.values()):
        if isinstance(each, torch.Tensor) and each.dim():
            return tuple(each.shape[:2])
    return ()
