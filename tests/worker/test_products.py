"""What a run produces is seen as the program sees it, and kept in bounds."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from overdrive.core.json_data import from_json, to_json
from overdrive.core.products import Products
from overdrive.worker.session import Session
from overdrive.worker.torch.products import ProductsWatch, _outputs


@pytest.fixture(autouse=True)
def _no_other_models() -> None:
    """Modules are found by the garbage collector's lists: those that other tests left alive are hidden from it."""
    gc.collect()
    gc.freeze()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.norm(x)))


def watched(steps: int, evaluations: Callable[[int, nn.Module], Any], seed: int = 0) -> tuple[Products, nn.Module]:
    """A run of so many steps, and what its watch reports."""
    torch.manual_seed(seed)
    watch = ProductsWatch()
    with Session([], [watch]):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data, labels = torch.randn(8, 4), torch.arange(8) % 3
        for step in range(steps):
            model.train()
            F.cross_entropy(model(data), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.stepped()
            evaluations(step, model)
        return watch.report([optimizer]), model


@torch.no_grad()
def evaluate(step: int, model: nn.Module) -> None:
    model.eval()
    model(torch.ones(5, 4))


def test_evaluations_and_the_first_batches_are_told() -> None:
    products, model = watched(3, evaluate)
    assert len(products.evaluations) == 3
    model.eval()
    with torch.no_grad():
        expected = model(torch.ones(5, 4)).double()
    last = products.evaluations[-1]
    assert last.rows == 5
    assert last.level == pytest.approx(float(expected.mean()), rel=1e-5)
    assert last.confidence == pytest.approx(float(expected.softmax(1).max(1).values.mean()), rel=1e-5)
    assert products.predictions == tuple(expected.argmax(1).tolist())
    assert sum(last.classes) == pytest.approx(1)
    assert products.held is not None and products.held.rows == 24


def test_training_is_no_evaluation_and_evaluation_without_no_grad_is_one() -> None:
    assert watched(3, lambda step, model: None)[0].evaluations == ()
    told, _ = watched(3, lambda step, model: model.eval()(torch.ones(2, 4)))
    assert [each.rows for each in told.evaluations] == [2, 2, 2]


def test_watching_changes_nothing() -> None:
    _, model = watched(4, evaluate)
    torch.manual_seed(0)
    with Session([], []):
        other = Net()
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        data, labels = torch.randn(8, 4), torch.arange(8) % 3
        for step in range(4):
            other.train()
            F.cross_entropy(other(data), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            evaluate(step, other)
    assert all(torch.equal(one, two) for one, two in zip(model.state_dict().values(), other.state_dict().values()))  # noqa: B905
    assert not model.training


def test_looking_at_the_first_batches_draws_no_random_numbers() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    watch = ProductsWatch()
    with Session([], [watch]):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        watch.stepped()
        torch.manual_seed(3)
        watch.report([optimizer])
    assert torch.equal(torch.rand(1), expected)


def test_weights_and_buffers_are_told_and_a_learning_rate_shows_in_them() -> None:
    products, model = watched(5, evaluate)
    assert set(products.state) == {
        "size of buffer norm.running_mean",
        "size of buffer norm.running_var",
        "size of buffers, all",
        "size of parameter head.weight",
        "size of parameters, all",
        "way of parameter head.weight",
        "way of parameters, all",
    }
    weight = model.head.weight.detach().double()  # type: ignore[union-attr,operator]
    assert products.state["size of parameter head.weight"] == pytest.approx(float(weight.square().mean().sqrt()))
    longer, _ = watched(10, evaluate)
    assert longer.state["way of parameters, all"] > products.state["way of parameters, all"]


def test_what_is_kept_has_bounds() -> None:
    products, _ = watched(500, evaluate)
    assert 16 <= len(products.evaluations) <= 65
    assert products.held is not None and products.held.rows == 8 * 8

    def often(step: int, model: nn.Module) -> None:
        with torch.no_grad():
            for _ in range(200):
                model.eval()(torch.ones(50, 4))

    many, _ = watched(1, often)
    assert many.evaluations[-1].rows == 50 * (64 + 17) and len(many.predictions) == 2048


def test_a_model_that_cannot_evaluate_is_left_alone() -> None:
    class Picky(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert self.training, "only for training"
            return super().forward(x)

    watch = ProductsWatch()
    with Session([], [watch]):
        model = Picky()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        watch.stepped()
        products = watch.report([optimizer])
    assert products.held is None and model.training and model.norm.training


@pytest.mark.parametrize(
    ("shape", "rows", "classes"),
    [((6,), 6, 1), ((6, 4), 6, 4), ((2, 3, 5), 6, 5), ((2, 5, 3, 3), 18, 5)],
)
def test_classes_are_where_they_usually_are(shape: tuple[int, ...], rows: int, classes: int) -> None:
    found = _outputs({"loss": torch.tensor(1.0), "logits": torch.randn(shape)})
    assert found is not None and found.shape == (rows, classes)
    assert _outputs([torch.arange(3), "nothing"]) is None


def test_large_outputs_are_sampled() -> None:
    found = _outputs(torch.randn(10_000, 100))
    assert found is not None and found.size <= 1 << 18


def test_products_cross_the_pipe() -> None:
    products, _ = watched(2, evaluate)
    assert from_json(Products, to_json(products)) == products


def test_what_cannot_be_read_is_passed_over_and_the_run_goes_on() -> None:
    watch = ProductsWatch()
    with Session([], [watch]):
        model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        sparse = nn.Identity()
        with torch.no_grad():
            sparse(torch.eye(3).to_sparse())
        watch.stepped()
        products = watch.report([optimizer])
    assert products.evaluations == () and "way of parameter 0.weight" in products.state


def test_two_optimizers_of_one_parameter_have_it_from_the_start() -> None:
    watch = ProductsWatch()
    with Session([], [watch]):
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        watch.stepped()
        assert watch.report([optimizer, other]).state["way of parameters, all"] > 0.01
