"""A model whose `forward` the program calls itself is told as a model, and not by its children."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.targets.child.recorder import CallRecorder
from overdrive.targets.order import Order
from overdrive.worker.clock import InferenceClock
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 2, 3), nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._of_torchvision(x)

    def _of_torchvision(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(torch.relu(self.conv(x)).mean((2, 3)))
        return result


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Inner(), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.inner.forward(x))
        return result

    def features(self, x: torch.Tensor) -> Any:
        return self.inner.conv(x)


class Derived(Outer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


class Decorated(Inner):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._of_torchvision(x)


X = torch.ones(1, 1, 5, 5)


def told(ask: Callable[[], Any], times: int = 4) -> tuple[list[str], int]:
    """The modules of which calls were told, and the steps."""
    names: list[str] = []

    def called(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        names.append(type(model).__name__)
        return call(*args, **kwargs)

    recorder = Recorder(clock=InferenceClock())
    with Session([], [lambda seams: seams.model_called.subscribe(called), recorder], inference=True) as session:
        answers = [ask() for _ in range(times)]
    assert not session.seams.left_out and all(torch.equal(each, answers[0]) for each in answers)
    return names, recorder.clock.steps


@pytest.mark.parametrize("kind", [Inner, Outer, Derived, Decorated])
def test_it_is_told_as_one_call_from_the_second_on_and_never_by_its_parts(kind: Any) -> None:
    model, plain = kind().eval(), kind.forward
    expected = model(X)
    names, steps = told(lambda: model.forward(X))
    assert names == [kind.__name__] * 3 and steps == 3
    assert kind.forward is plain and Inner.forward.__qualname__ == "Inner.forward"
    assert torch.equal(model(X), expected)


def test_calls_of_the_model_and_of_its_parts_by_the_program_are_told_as_before() -> None:
    model = Outer().eval()
    assert told(lambda: model(X)) == (["Outer"] * 4, 4)
    names, _ = told(lambda: model.features(X))
    assert names == ["Conv2d"] * 4

    def both() -> Any:
        model.features(X)
        return model.forward(X)

    assert told(both)[0] == ["Conv2d", *(["Conv2d", "Outer"] * 3)]


def test_where_there_are_hooks_it_is_left_as_it_is() -> None:
    """They are not called for the model, and are for its children."""
    model, seen = Inner().eval(), []
    model.register_forward_hook(lambda *_: seen.append("model"))
    model.fc.register_forward_hook(lambda *_: seen.append("child"))
    names, _ = told(lambda: model.forward(X))
    assert names == ["Conv2d", "Linear"] * 4 and seen == ["child"] * 4


def test_a_model_that_is_called_by_name_after_all_is_told_once() -> None:
    model = Outer().eval()
    assert told(lambda: (model.forward(X), model(X))[1], 3)[0] == ["Outer"] * 5


def test_an_export_takes_the_model_and_not_its_first_child(tmp_path: Path) -> None:
    model, recorder = Inner().eval(), CallRecorder(Order("onnx"), tmp_path)
    with Session([], [recorder]):
        for _ in range(3):
            model.forward(X)
    assert [each.name for each in recorder._seen] == ["Inner"]


def test_what_stands_there_can_be_looked_at_scripted_and_saved() -> None:
    model = Inner().eval()
    seen: list[Any] = []

    def ask() -> Any:
        result = model.forward(X)
        seen.append((str(inspect.signature(model.forward)), inspect.getsource(Inner.forward)))
        seen.append(torch.jit.script(model)(X))
        return result

    told(ask, 2)
    assert seen[0] == seen[2] and torch.equal(seen[1], seen[3])


def test_a_weight_that_others_make_is_no_model_where_it_is_read() -> None:
    """Of wav2vec 2.0 it is read while weights are loaded: an export took it for the program's model."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    assert told(lambda: (layer.weight, layer(torch.ones(1, 3)))[1]) == (["ParametrizedLinear"] * 4, 4)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)).eval()
    assert told(lambda: (layer.weight, layer(torch.ones(1, 3)))[1]) == (["ParametrizedLinear"] * 4, 4)
