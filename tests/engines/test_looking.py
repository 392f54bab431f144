"""Whether any call is of a kind that an engine takes is known before a duel of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.own_facts import OwnFacts
from overdrive.worker.session import Session


class Cached(nn.Module):
    """What it is given beside the tensor is an object, as a cache of keys and values is."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: Any = None) -> torch.Tensor:
        result: torch.Tensor = self.fc(x)
        return result


class Cache:
    pass


def found(model: Any, calls: int = 12, **given: Any) -> str | None:
    own = OwnFacts()
    with Session([], [own], inference=True), torch.no_grad():
        for _ in range(calls):
            nn.Softmax(-1)(model(torch.ones(2, 4), **given))  # which an engine would take
        facts = Facts(inference=True, device="cpu", own=own.gathered("torch"))
    technique = catalogue()["openvino"]
    return str(technique.own(facts).get("in_vain", "")) or None


def hooked() -> nn.Module:
    model = Cached()
    model.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("make", "given", "why"),
    [
        (Cached, {"cache": Cache()}, "an input of a kind that no engine takes (Cache)"),
        (lambda: torch.jit.script(nn.Linear(4, 4)), {}, "TorchScript"),
        (hooked, {}, "hooks"),
    ],
    ids=["an object", "TorchScript", "hooks"],
)
def test_a_program_none_of_whose_calls_an_engine_takes_is_told_before_a_duel(
    make: Callable[[], Any], given: dict[str, Any], why: str
) -> None:
    assert why in (found(make(), **given) or "")


def test_one_call_that_an_engine_takes_and_few_calls_tell_nothing() -> None:
    assert found(Cached()) is None
    assert found(Cached(), calls=4, cache=Cache()) is None


def test_engines_are_not_tried_where_that_is_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("openvino", "onnxruntime", "openvino_narrow"):
        technique = catalogue()[name]
        facts = Facts(inference=True, device="cpu", own={name: {"in_vain": "hooks"}})
        assert technique.applies(facts) is not None


class Part(nn.Sequential):
    def __init__(self, seconds: float) -> None:
        super().__init__(nn.Linear(4, 4), nn.Linear(4, 4))
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return super().forward(x)


class Around(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.part = Part(seconds)

    def forward(self, x: torch.Tensor, cache: Any) -> torch.Tensor:
        return self.part(x)  # type: ignore[no-any-return]


def test_modules_within_such_a_model_count_where_their_calls_take_long_enough() -> None:
    assert "Cache" in (found(Around(0), cache=Cache()) or "")
    assert found(Around(0.01), cache=Cache()) is None
