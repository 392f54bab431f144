"""The fp64 answer of a call is that of the very call, whatever the model or its caches keep from call to call."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from overdrive.worker.torch.answer_replay import AnswersInDouble


class Cache:
    """As the one of transformers: no container that PyTorch knows."""

    def __init__(self, size: int = 0) -> None:
        self.seen, self.length = torch.randn(1, size, 4, generator=torch.Generator().manual_seed(1)), size
        self.room = torch.zeros(1, 32, 4)

    def update(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, x], 1)
        self.room[:, self.length : self.length + x.shape[1]] = x
        self.length += x.shape[1]
        return torch.cat([self.seen, self.room[:, : self.length]], -1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))


class Cached(Model):
    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        return self.out(cache.update(self.fc(x))).mean(1)


class Streams(Model):
    """A mean that moves slowly is an attribute, and a smoothed one lies in memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.smooth, self.before = 0.0, torch.zeros(4), [torch.zeros(4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        self.smooth.mul_(0.9).add_(0.1 * x.mean((0, 1)))
        self.before.append(self.fc(x).mean((0, 1)))
        return self.out(torch.cat([self.fc(x) - self.mean, x - self.smooth - self.before[-2]], -1)).mean(1)


class Writes(Model):
    """To the dict that it is given, and to a tensor in it."""

    def forward(self, x: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        state["steps"].add_(1)
        state["h"] = torch.tanh(self.fc(x) + state["h"]) / state["steps"]
        return self.out(torch.cat([state["h"], x], -1)).mean(1)


def given(model: nn.Module) -> Callable[[torch.Tensor], tuple[Any, ...]]:
    cache, state = Cache(2), {"h": torch.zeros(1, 3, 4), "steps": torch.zeros((), dtype=torch.long)}
    others = {Cached: (cache,), Writes: (state,), Streams: (), Spectral: ()}[type(model)]
    return lambda x: (x, *others)


def in_double(model: Model) -> Model:
    """By hand."""
    model.double()
    for name, value in list(vars(model).items()):
        if isinstance(value, torch.Tensor):
            setattr(model, name, value.double())
    if isinstance(model, Spectral):
        model.modes.data, model.phase = model.modes.data.cdouble(), model.phase.cdouble()
        model.type = torch.cdouble
    if isinstance(model, Streams):
        model.before = [each.double() for each in model.before]
    return model


class Spectral(Model):
    """As a layer of a neural operator: complex weights, and a result that is written into zeros."""

    type = torch.cfloat

    def __init__(self) -> None:
        super().__init__()
        self.modes = nn.Parameter(torch.randn(4, 4, 2, dtype=torch.cfloat))
        self.register_buffer("phase", torch.polar(torch.ones(2), torch.arange(2.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = torch.fft.rfft(self.fc(x), dim=1)
        mixed = torch.zeros(waves.shape, dtype=self.type)
        mixed[:, :2] = torch.einsum("bki,iok->bko", waves[:, :2], self.modes) * self.phase[:, None]
        parts = torch.fft.irfft(mixed, n=3, dim=1), mixed.real.mean(1, True).expand(1, 3, 4)
        return self.out(torch.cat(parts, -1)).mean(1)


@pytest.mark.parametrize("kind", [Cached, Streams, Writes, Spectral])
def test_it_is_that_of_the_same_call(kind: type[Model]) -> None:
    model, alone = kind().eval(), kind().eval()
    args, args_alone = given(model), given(alone)
    chance = torch.Generator().manual_seed(2)
    steps = AnswersInDouble()
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(1, 3, 4, generator=chance)
            oracle, of_oracle = copy.deepcopy((alone, args_alone(x)))
            wanted = in_double(oracle)(*map(doubled, of_oracle)).numpy()
            steps.end()
            result = steps.answer(model, model.forward, args(x), {})
            assert torch.equal(result, alone(*args_alone(x)))  # the program goes on as if nothing had been
            (found,) = steps.results().values()
            assert found.dtype == np.float64 and np.abs(found - wanted).max() < 1e-13
    single = (torch.float32, torch.complex64)
    assert all(each.dtype in single for each in (*model.parameters(), *model.buffers()))


def doubled(thing: Any) -> Any:
    if isinstance(thing, Cache):
        thing.seen, thing.room = thing.seen.double(), thing.room.double()
        return thing
    if isinstance(thing, dict):
        return {name: doubled(each) for name, each in thing.items()}
    return thing.double() if thing.is_floating_point() else thing


def test_what_cannot_be_copied_has_no_fp64_answer() -> None:
    model = Model().eval()
    with pytest.raises(RuntimeError, match="what its model is given cannot be copied"):
        AnswersInDouble().answer(model, lambda x, lock: x, (torch.ones(1, 4), threading.Lock()), {})


def test_the_model_itself_among_what_it_is_given_stays_itself() -> None:
    model, seen = Model().eval(), []

    def call(x: torch.Tensor, owner: nn.Module) -> torch.Tensor:
        seen.append(owner)
        return model.fc(x)

    AnswersInDouble().answer(model, call, (torch.ones(1, 4), model), {})
    assert seen == [model, model]
