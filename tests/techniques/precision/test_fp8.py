"""`fp8` replaces the layers that fit and puts them back. Its products are emulated here: there is no GPU."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.precision import fp8
from overdrive.worker.session import Session

needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao (pip install torchao)")


def net() -> nn.Sequential:
    shared = nn.Linear(32, 32)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), shared, shared, nn.Linear(32, 5), nn.Linear(5, 5))
    model.append(nn.Linear(5, 16)).append(nn.Linear(16, 16))
    model[-1].register_forward_hook(lambda *_: None)
    return model


def train(*techniques: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    x = torch.randn(24, 16)
    with Session(techniques) as session:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for _ in range(10):
            loss = (model(x) - x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        kinds = [type(module).__name__ for module in model]
        names, left_out = list(model.state_dict()), dict(session.seams.left_out)
    return {"losses": losses, "kinds": kinds, "names": names, "left_out": left_out, "model": model}


@needs_torchao
def test_layers_that_fit_are_multiplied_in_fp8_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchao.float8 import Float8LinearConfig

    monkeypatch.setattr(fp8, "_config", lambda: Float8LinearConfig(emulate=True))
    monkeypatch.setattr(fp8, "_not_here", lambda layers: None)
    plain, seen = train(), train(("fp8", {}))
    assert not seen["left_out"]
    assert seen["kinds"] == ["Float8Linear", "ReLU", *["Linear"] * 6]  # shared, too narrow, hooked
    assert seen["names"] == plain["names"]
    assert {type(module) for module in seen["model"]} == {nn.Linear, nn.ReLU}
    assert seen["losses"] != plain["losses"] and seen["losses"] == pytest.approx(plain["losses"], rel=0.1)


@needs_torchao
def test_while_it_is_off_layers_stay_as_an_optimizer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchao.float8 import Float8LinearConfig

    monkeypatch.setattr(fp8, "_config", lambda: Float8LinearConfig(emulate=True))
    monkeypatch.setattr(fp8, "_not_here", lambda layers: None)
    with Session([("fp8", {})]) as session:
        model = nn.Sequential(nn.Linear(16, 32))
        session.handles["fp8"].off()
        torch.optim.SGD(model.parameters(), lr=0.1)
        assert type(model[0]) is nn.Linear
        session.handles["fp8"].on()
        assert type(model[0]).__name__ == "Float8Linear"


@needs_torchao
def test_is_left_out_where_the_device_cannot() -> None:
    plain, seen = train(), train(("fp8", {}))
    assert "no fp8 arithmetic" in seen["left_out"]["fp8"] and seen["losses"] == plain["losses"]


def test_is_left_out_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "find_spec", lambda name: None)
    plain, seen = train(), train(("fp8", {}))
    assert seen["left_out"]["fp8"].startswith("torchao is not installed") and seen["losses"] == plain["losses"]


def test_says_where_it_cannot_help(monkeypatch: pytest.MonkeyPatch) -> None:
    reason, hopper = catalogue()["fp8"].applies, {"device": "cuda", "compute_capability": 9.0}
    monkeypatch.setattr(fp8, "find_spec", lambda name: object())
    assert reason(Facts(**hopper)) is None
    assert "capability 8.6" in str(reason(Facts(**{**hopper, "compute_capability": 8.6})))
    assert "divisible by 16" in str(reason(Facts(**{**hopper, "own": {"fp8": {"layers": 0}}})))
    assert "needs a GPU" in str(reason(Facts()))
    monkeypatch.setattr(fp8, "find_spec", lambda name: None)
    assert "torchao" in str(reason(Facts(**hopper)))
