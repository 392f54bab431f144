"""Products with weights in eight bits: near the model's own, of the weights that it has now, and its own elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session

NAME = "int8_products"


class Decoder(nn.Module):
    """Keeps what it has seen between two calls, so that no engine answers for it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(300, 256)
        self.mixed, self.small, self.out = nn.Linear(256, 512), nn.Linear(512, 16), nn.Linear(512, 300, bias=False)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x) if x.dtype == torch.long else x
        x = torch.relu(self.mixed(x))
        self.seen = [*self.seen[-3:], self.small(x)]
        return self.out(x) + sum(each.mean() for each in self.seen)


class Conv1D(nn.Module):
    """As GPT-2 has it: its weights lie the other way round."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs) / 16), nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


def made() -> Decoder:
    torch.manual_seed(0)
    return Decoder().eval()


def words(rows: int = 3) -> torch.Tensor:
    return torch.randint(300, (rows, 7), generator=torch.Generator().manual_seed(rows))


@pytest.fixture
def session() -> Iterator[Session]:
    with Session([(NAME, {})], inference=True) as entered:
        yield entered
    assert not entered.seams.left_out


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def answer(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """As the first call of a conversation."""
    if isinstance(model, Decoder):
        model.seen = []
    return model(given)  # type: ignore[no-any-return]


def own(session: Session, model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    session.handles[NAME].off()
    try:
        return answer(model, given)
    finally:
        session.handles[NAME].on()


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_answers_are_near_the_models_own_and_no_more_than_near(rows: int, session: Session) -> None:
    model = made()
    assert 1e-4 < apart(answer(model, words(rows)), own(session, model, words(rows))) < 0.02


@torch.no_grad()
def test_on_a_processor_that_tells_of_no_such_arithmetic(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.machine.cpu._FEATURES", ())
    monkeypatch.setattr("overdrive.machine.cpu._COMPILED_TO", frozenset())
    model = made()
    assert 1e-4 < apart(answer(model, words()), own(session, model, words())) < 0.03  # inputs in seven bits


CHANGES: dict[str, Callable[[Decoder], Any]] = {
    "in place": lambda model: model.mixed.weight.mul_(-1),
    "by way of numpy": lambda model: model.out.weight.detach().numpy().__imul__(-1),
    "another memory": lambda model: setattr(model.out.weight, "data", -model.out.weight.data),
    "a bias": lambda model: model.mixed.bias.add_(1),
    "another layer": lambda model: setattr(model, "out", nn.Linear(512, 300)),
    "a state dict": lambda model: model.load_state_dict({k: v * 1.5 for k, v in model.state_dict().items()}),
}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_weights_are_those_of_now(change: Callable[[Decoder], Any], session: Session) -> None:
    model = made()
    before = answer(model, words())
    change(model)
    expected = own(session, model, words())
    assert apart(answer(model, words()), expected) < 0.02 < apart(before, expected)


@torch.no_grad()
def test_layers_whose_weights_lie_the_other_way_round(session: Session) -> None:
    torch.manual_seed(0)
    model, given = nn.Sequential(Conv1D(384, 256), nn.ReLU(), Conv1D(256, 384)), torch.randn(2, 5, 256)
    assert 1e-4 < apart(model(given), own(session, model, given)) < 0.02
    model[0].weight.mul_(-1)
    assert 1e-4 < apart(model(given), own(session, model, given)) < 0.02


@torch.no_grad()
def test_one_weight_that_is_multiplied_by_in_both_ways(session: Session) -> None:
    class Both(Conv1D):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(super().forward(x), self.weight, self.bias)

    torch.manual_seed(0)
    model, given = Both(256, 256), torch.randn(2, 5, 256)
    assert 1e-4 < apart(model(given), own(session, model, given)) < 0.03


class Product(nn.Module):
    def __init__(self, bias: torch.Tensor, **others: float) -> None:
        super().__init__()
        self.bias, self.weight, self.others = nn.Parameter(bias), nn.Parameter(torch.randn(256, 300)), others

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight, **self.others)


OTHERS = {
    "a bias for each row": lambda: Product(torch.randn(4, 300)),
    "a bias for all": lambda: Product(torch.randn(1)),
    "a factor": lambda: Product(torch.randn(300), beta=0.5),
    "weights with NaN": lambda: nn.Sequential(nn.Linear(256, 300).requires_grad_(False)),
}


@torch.no_grad()
@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_other_products_are_pytorchs(make: Callable[[], nn.Module], session: Session) -> None:
    model, given = make(), torch.randn(4, 256)
    if isinstance(model, nn.Sequential):
        model[0].weight[3, 4] = float("nan")
    torch.testing.assert_close(model(given), own(session, model, given), rtol=0, atol=0, equal_nan=True)


@torch.no_grad()
def test_numbers_that_are_none_stay_so(session: Session) -> None:
    model, given = made(), torch.randn(3, 7, 256)
    given[1, 2, 3] = float("nan")
    assert answer(model, given).isnan().all() and not answer(model, given.nan_to_num()).isnan().any()


def test_where_gradients_are_recorded_they_are_the_models_own(session: Session) -> None:
    model = made()
    found, expected = answer(model, words()), own(session, model, words())
    assert found.requires_grad and torch.equal(found, expected)
    found.sum().backward()


@torch.no_grad()
@pytest.mark.parametrize("other", [torch.float64, torch.bfloat16], ids=str)
def test_models_in_other_formats_are_left(other: torch.dtype, session: Session) -> None:
    model = made().to(other)
    assert torch.equal(answer(model, words()), own(session, model, words()))


@torch.no_grad()
def test_while_it_is_off_the_answers_have_the_models_own_bits(session: Session) -> None:
    model = made()
    expected = own(session, model, words())
    for _ in range(5):
        assert not torch.equal(answer(model, words()), expected)
        assert torch.equal(own(session, model, words()), expected)


@torch.no_grad()
def test_a_model_whose_weights_change_all_the_time_is_left_alone() -> None:
    model = made()
    with Session([(NAME, {})], inference=True) as session:
        for _ in range(8):
            found = answer(model, words())
            expected = own(session, model, words())
            model.mixed.weight.mul_(1.01)
        assert "change from call to call" in session.seams.left_out[NAME]
    assert torch.equal(found, expected)


@torch.no_grad()
def test_each_of_several_models_has_its_own_weights(session: Session) -> None:
    one, two, small = made(), made(), nn.Linear(8, 8)
    two.out.weight.mul_(2)
    for model in (one, two, one):
        assert apart(answer(model, words()), own(session, model, words())) < 0.02
    given = torch.randn(2, 8)
    assert torch.equal(answer(small, given), own(session, small, given))


def test_it_is_for_models_of_32_bits_on_a_cpu() -> None:
    technique = catalogue()[NAME]
    assert technique.applies(Facts(parameter_dtypes=("torch.float32",))) is None
    assert technique.applies(Facts(device="cuda", parameter_dtypes=("torch.float32",)))
    assert technique.applies(Facts(parameter_dtypes=("torch.bfloat16",)))
