"""Calls that are not split into micro-batches: of models that count them, and of another kind than was tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from overdrive.model_state.division.call import CallToDivide  # noqa: E402
from overdrive.model_state.division.tree import flatten  # noqa: E402
from overdrive.techniques.parallel.pipeline_parallel import finding, pipelining  # noqa: E402
from tests.conftest import Run  # noqa: E402
from tests.ranks.comparing import difference  # noqa: E402
from tests.ranks.test_pipeline import ROUNDING, Answers, answers  # noqa: E402

assert answers  # a fixture


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Any, mask: Any, twice: bool = False) -> Any:
        x = torch.tanh(self.one(x)) * mask
        return self.two(x + x.sum(0) if twice else x)


class Counting(Masked):
    """In an attribute."""

    calls = 0

    def forward(self, *given: Any) -> Any:
        self.calls += 1
        return super().forward(*given)


class Steps(Masked):
    """In a buffer of whole numbers, and in one of others."""

    def __init__(self, kind: torch.dtype = torch.long) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=kind))

    def forward(self, *given: Any) -> Any:
        self.steps += 1
        return super().forward(*given)


def asked(answers: Answers, model: nn.Module, *given: Any) -> CallToDivide:
    leaves, build = flatten((given, {}))
    return CallToDivide(model, model, leaves, build, 2, *answers)


def given() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(10, 6), torch.rand(1, 8)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Counting, "it changes attributes of its own in each call"),
        (Steps, "steps is written to in each call"),
        (lambda: Steps(torch.uint8), "steps is written to in each call"),
    ],
)
def test_the_batch_of_a_model_that_counts_its_calls_is_not_split(
    make: Callable[[], nn.Module], why: str, answers: Answers
) -> None:
    told = finding.found(asked(answers, make(), *given()))
    assert not told["split"] and told["whole"] == why, told


def test_a_batch_is_split_where_the_call_is_of_the_kind_that_was_tried(answers: Answers) -> None:
    x, mask = given()
    first = asked(answers, Masked(), x, mask, False)
    told = finding.found(first)
    assert told["split"], told
    pipeline = pipelining._Pipeline(first, {name: tuple(each) for name, each in told["stages"].items()}, told)

    def split(*leaves: Any) -> bool:
        return pipeline.batches(leaves) is not None

    assert split(x, mask, False) and split(torch.randn(16, 6), torch.rand(1, 8), False)
    assert not split(x, torch.rand(10, 8), False)  # one row for each sample
    assert not split(x, mask, True) and not split(x, mask, 0) and not split(x, mask)
    assert not split(x.double(), mask, False) and not split(x, mask > 0.5, False)
    assert not split(x.clone().requires_grad_(), mask, False) and not split(x[None], mask, False)
    assert split(x, mask, False)


def test_a_batch_is_not_split_where_a_number_hid_a_term_in_the_trial(answers: Answers) -> None:
    x, mask = given()
    first = asked(answers, Masked(), x, mask, 0.0)
    told = finding.found(first)
    assert told["split"], told
    pipeline = pipelining._Pipeline(first, {name: tuple(each) for name, each in told["stages"].items()}, told)
    assert pipeline.batches([x, mask, 0.0]) is not None and pipeline.batches([x, mask, 0.5]) is None


CALLS = """
import torch
from torch import nn
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)

class Model(nn.Module):
    def __init__(self, counts):
        super().__init__()
        self.one, self.two, self.calls = nn.Linear(6, 8), nn.Linear(8, 3), 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.counts = counts

    def forward(self, x, mask, twice=False):
        if self.counts == "attribute":
            self.calls += 1
        elif self.counts == "buffer":
            self.steps += 1
        x = torch.tanh(self.one(x)) * mask
        return self.two(x + x.sum(0) if twice else x)

for counts in ("attribute", "buffer", "nothing"):
    model = Model(counts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(6):
        optimizer.zero_grad()
        mask = torch.rand(10 if step % 3 == 1 else 1, 8)
        loss = model(torch.randn(10, 6), mask, step % 3 == 2).square().sum()
        loss.backward()
        optimizer.step()
        print(counts, step, repr(loss.item()), model.calls, model.steps.item())
"""


@pytest.mark.cluster
def test_calls_of_several_kinds_print_the_numbers_of_one_process(
    script: Callable[[str], Path], python: Run, overdrive: Run
) -> None:
    path = script(CALLS)
    one = python(path.name, cwd=path.parent)
    many = overdrive("run", "--ranks", "2", "--layout", "pipeline=2", path.name, cwd=path.parent)
    assert one.returncode == many.returncode == 0, many.stderr
    for said in ("changes attributes of its own", "steps is written to in each call", "in 4 micro-batches"):
        assert said in many.stderr
    assert not difference(one.stdout, many.stdout, ROUNDING)
