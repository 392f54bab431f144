"""Values that an engine was not held to are the model's, in the engines themselves: it may raise, and keeps NaN."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.worker.session import Session

ENGINES = ("openvino", "onnxruntime")


def needed(name: str) -> None:
    """Looked for without an import: ONNX Runtime's own leaves files of what it tells its makers."""
    for each in (name, "onnxscript") if name == "onnxruntime" else (name,):
        if not find_spec(each):
            pytest.skip(f"{each} is not installed")


class Engine:
    """A session with one engine. Left out in it nothing may be."""

    def __init__(self, name: str) -> None:
        needed(name)
        self.name = name

    def __enter__(self) -> Engine:
        self.session = Session([(self.name, {})], inference=True)
        self.session.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.session.__exit__(None, None, None)
        assert not self.session.seams.left_out

    def warmed(self, model: nn.Module, *given: Any) -> nn.Module:
        for _ in range(6):
            model(*given)
        assert self.answers.answered, self.answers.told()
        return model

    @property
    def answers(self) -> Any:
        return self.session.handles[self.name].notes.answers

    def _own(self, model: nn.Module, *given: Any) -> Any:
        self.session.seams.switch(self.name, False)
        try:
            return model(*given)
        finally:
            self.session.seams.switch(self.name, True)

    def answered(self, model: nn.Module, *given: Any) -> bool:
        """Whether it answered by itself. It is the model's answer in any case, or its error."""
        before = self.answers.answered
        try:
            expected = self._own(model, *given)
        except Exception as error:
            with pytest.raises(type(error)):
                model(*given)
        else:
            assert torch.allclose(model(*given), expected, rtol=1e-3, atol=1e-4, equal_nan=True)
        return bool(self.answers.answered > before)


class Convolved(nn.Module):
    def __init__(self, after: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.after = nn.Conv2d(3, 8, 3, padding=1), after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.conv(x))


LOSING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "clamp": lambda x: x.clamp(0, 6),
}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("lost_in", LOSING)
@torch.no_grad()
def test_inputs_that_are_not_finite_are_the_models(lost_in: str, name: str) -> None:
    model, x = Convolved(LOSING[lost_in]).eval(), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with Engine(name) as engine:
        engine.warmed(model, x)
        for value in ("nan", "inf", "-inf"):
            for places in ((0, 0, 3, 3), (1,)):
                other = x.clone()
                other[places] = float(value)
                assert not engine.answered(model, other)
        assert engine.answered(model, x) and engine.answered(model, x * 1e30), "as large as they are, they are numbers"
        assert engine.answers.left["an input holds NaN or infinity"] == 6


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(100, 16), nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.fc(self.embed(tokens).mean(1))


@pytest.mark.parametrize("name", ENGINES)
@torch.no_grad()
def test_a_place_that_is_not_in_a_table_is_the_models_error_and_the_engine_goes_on(name: str) -> None:
    model, tokens = Tokens().eval(), torch.randint(10, 90, (2, 8))
    with Engine(name) as engine:
        engine.warmed(model, tokens)
        for value in (-1, -5, 100, 10**6):
            bad = tokens.clone()
            bad[0, 0] = value
            assert not engine.answered(model, bad)
        for value in (0, 99):  # which the table has, as the graph says
            tokens[0, 0] = value
            assert engine.answered(model, tokens)


class Picked(nn.Module):
    """Places of its own making: the graph does not tell which are there."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(100, 4))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.table[places * 2 + 1]


@pytest.mark.parametrize("name", ENGINES)
@torch.no_grad()
def test_where_the_graph_does_not_tell_values_are_compared_first(name: str) -> None:
    model, places = Picked().eval(), torch.tensor([10, 20])
    with Engine(name) as engine:
        engine.warmed(model, places)
        assert not engine.answered(model, torch.tensor([3, 20])), "below those that were compared"
        assert engine.answered(model, torch.tensor([3, 20])) and engine.answered(model, torch.tensor([7, 12]))
        assert not engine.answered(model, torch.tensor([7, 50])), "there is no such place"
        assert engine.answered(model, torch.tensor([4, 4]))


class Cast(Picked):
    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.table[places.long()]


@pytest.mark.parametrize("name", ENGINES)
@torch.no_grad()
def test_fractions_that_become_places_are_looked_at_too(name: str) -> None:
    model = Cast().eval()
    with Engine(name) as engine:
        engine.warmed(model, torch.tensor([10.5, 20.5]))
        assert not engine.answered(model, torch.tensor([10.5, 100.0]))
        assert engine.answered(model, torch.tensor([12.0, 20.0]))
