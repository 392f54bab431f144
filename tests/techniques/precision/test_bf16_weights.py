"""`bf16_weights` computes in bf16, and the program sees 32-bit weights, gradients and checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.lstm, self.fc = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)
        self.again = nn.Linear(8, 4)
        self.again.weight = self.fc.weight  # tied
        self.unused = nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(8))
        self.register_buffer("calls", torch.zeros(()))
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = torch.relu(self.norm(self.conv(x)))
        self.seen += [x.dtype, self.fc.weight.dtype, self.frozen.weight.requires_grad, self.norm.weight.dtype]
        x = self.lstm(x.flatten(2).transpose(1, 2))[0].mean(1) * self.scale
        return self.fc(self.frozen(x)) + self.again(x)


def train(*techniques: Any, optimizer: Any = torch.optim.AdamW, steps: int = 8) -> dict[str, Any]:
    torch.manual_seed(0)
    images, labels = torch.randn(8, 3, 6, 6), torch.arange(8) % 4
    seen: dict[str, Any] = {"losses": []}
    with Session(techniques) as session:
        model = Net()
        chosen = optimizer(model.parameters(), lr=1e-2)
        for _ in range(steps):
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels)
            chosen.zero_grad()
            loss.backward()
            chosen.step()
            seen["losses"].append(loss.item())
        seen |= {"logits": logits.dtype, "gradient": model.fc.weight.grad, "unused": model.unused.weight.grad}
        seen |= {"types": {each.dtype for each in model.state_dict().values() if each.is_floating_point()}}
        seen |= {"training": list(model.seen), "calls": model.calls.item(), "model": model}
        model.seen.clear()
        with torch.no_grad():
            model.eval()(images)
        seen |= {"evaluating": list(model.seen), "left_out": dict(session.seams.left_out)}
    return seen


def test_trains_in_bf16_with_weights_of_32_bits() -> None:
    plain, seen = train(), train(("bf16_weights", {}))
    assert not seen["left_out"]
    assert seen["training"][:4] == [torch.bfloat16, torch.bfloat16, False, torch.float32]
    assert seen["evaluating"][:4] == plain["training"][:4]
    assert seen["logits"] is torch.float32 and seen["types"] == {torch.float32}
    assert seen["gradient"].dtype is torch.float32 and seen["unused"] is None
    assert seen["calls"] == 8, "a buffer that the model counts in"
    weight = seen["model"].fc.weight
    assert isinstance(weight, nn.Parameter) and not torch.equal(weight, weight.bfloat16().float())
    assert seen["losses"] == pytest.approx(plain["losses"], rel=0.05) and seen["losses"] != plain["losses"]
    assert seen["losses"][-1] < seen["losses"][0]


def test_small_updates_are_not_lost() -> None:
    with Session([("bf16_weights", {})]):
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
    assert model.weight.item() == pytest.approx(0.999, abs=1e-5)  # bf16 has nothing between 0.996 and 1


def test_gradients_of_chosen_inputs_second_order_and_data_writes() -> None:
    """A gradient penalty, `autograd.grad` over parameters, and clipped weights, as a WGAN has them."""
    with Session([("bf16_weights", {})]) as session:
        critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
        x = torch.randn(16, 4, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        assert slope.dtype is torch.float32
        loss = critic(x).mean() + (slope.norm(dim=1) - 1).pow(2).mean()
        assert all(each is not None for each in torch.autograd.grad(loss, [critic[0].weight], retain_graph=True))
        loss.backward()
        optimizer.step()
        for parameter in critic.parameters():
            parameter.data.fill_(0.0)
        assert not critic(x).any() and not session.seams.left_out


class Clamped(nn.Embedding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


@pytest.mark.parametrize("kind", [lambda: nn.Embedding(4, 8, max_norm=0.5), lambda: Clamped(4, 8)])
def test_is_left_out_where_the_model_writes_its_own_weights(kind: Any) -> None:
    with Session([("bf16_weights", {})]) as session:
        model = kind()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.arange(4)).sum().backward()
            optimizer.step()
        assert "changes its weights" in session.seams.left_out["bf16_weights"]
        assert model(torch.arange(4)).norm(dim=1).max() <= 0.51


@pytest.mark.parametrize("own", ["around", "inside"])
def test_a_program_with_an_autocast_of_its_own_is_left_alone(own: str) -> None:
    class Inside(nn.Linear):
        @torch.autocast("cpu", dtype=torch.bfloat16)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    with Session([("bf16_weights", {})]) as session:
        model = Inside(4, 4) if own == "inside" else nn.Linear(4, 4)
        torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=own == "around"):
                out = model(torch.ones(2, 4))
        assert out.dtype is torch.bfloat16 and "autocast of its own" in session.seams.left_out["bf16_weights"]


def test_goes_with_compile_and_channels_last() -> None:
    seen = train(("bf16_weights", {}), ("channels_last", {}), ("fused_optimizer", {}))
    assert not seen["left_out"] and seen["training"][0] is torch.bfloat16


def test_says_where_it_cannot_help() -> None:
    reason = catalogue()["bf16_weights"].applies
    facts = {"parameter_dtypes": ("torch.float32",), "bf16_fast": True}
    assert reason(Facts(**facts)) is None
    assert "hardware" in str(reason(Facts(**{**facts, "bf16_fast": False})))
    assert "of its own" in str(reason(Facts(**facts, own_autocast=True)))
    assert "not 32-bit" in str(reason(Facts(**{**facts, "parameter_dtypes": ("torch.float64",)})))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("steps", torch.tensor(300.0))
        self.register_buffer("mean", torch.zeros(2, 4))
        self.register_buffer("fixed", torch.full((4,), 1 / 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.mean.mul_(0.999).add_(x.mean(0).detach(), alpha=0.001)
        return self.fc(x) * self.fixed


def test_counts_and_averages_that_a_model_keeps_are_not_rounded_again_and_again() -> None:
    with Session([("bf16_weights", {})]) as session:
        model: Any = Counting()
        torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(200):
            result = model(torch.ones(3, 4))
        assert not session.seams.left_out and result.dtype is torch.float32
    assert model.steps.item() in (499, 500)  # bf16 has nothing between 300 and 302
    assert torch.allclose(model.mean, torch.full((2, 4), 1 - 0.999**200), rtol=0.02)
    assert torch.equal(model.fixed, torch.full((4,), 1 / 3))


class Masking(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x[:, 0] = 0
        return super().forward(x)


@pytest.mark.parametrize("model", [Masking(4, 4), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))])
def test_what_a_model_writes_to_its_input_is_the_programs(model: Any) -> None:
    with Session([("bf16_weights", {})]) as session:
        torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.full((2, 4), -0.3)
        model(x)
        assert not x[:, 0].any() and x.dtype is torch.float32
        assert "writes to what it is given" in session.seams.left_out["bf16_weights"]


def test_what_a_model_writes_to_its_weights_in_its_first_call_is_not_lost() -> None:
    with Session([("bf16_weights", {})]):
        model = Clamped(4, 8)
        torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.arange(4))
        assert model.weight.detach().abs().max() == torch.tensor(0.1)


class Keeping(nn.Module):
    """Attention to be looked at, and a hidden state that the next call goes on with."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.LSTM(4, 4)
        self.seen: Any = None
        self.state: Any = None
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = [self.one(x)]
        made, state = self.two(self.seen[0], self.state)
        self.state = tuple(each.detach() for each in state)
        self.last = made[-1].detach()
        return made


@pytest.mark.parametrize(
    ("technique", "dtype"),
    [
        (("bf16_weights", {}), torch.float32),
        (("autocast", {"dtype": "bfloat16"}), torch.float32),
        (("fp32_from_fp64", {"weights": "copied"}), torch.float64),
    ],
)
def test_what_a_model_keeps_of_a_call_is_in_the_programs_type(technique: Any, dtype: torch.dtype) -> None:
    def run(*techniques: Any) -> tuple[list[float], Any]:
        torch.manual_seed(0)
        with Session(techniques) as session:
            model, found = Keeping().to(dtype), []
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(6):
                x = torch.randn(3, 4, dtype=dtype)
                if step % 2:
                    with torch.no_grad():
                        found.append(float(model.eval()(x).square().mean()))
                    continue
                loss = model.train()(x).square().mean() + model.seen[0].mean()
                kept = [model.seen[0], *model.state, model.last]
                assert {each.dtype for each in kept} == {dtype} and model.seen[0].detach().numpy().size
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        return found, session.seams.left_out

    plain, _ = run()
    found, left_out = run(technique)
    assert not left_out and found == pytest.approx(plain, rel=0.05, abs=0.01) and found != plain
