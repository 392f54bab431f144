"""`library_autotune`: what it sets, when, and that it is put back. The GPU's part is in tests/gpu/test_layout.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.seams.torch.denormals import Denormals
from overdrive.seams.torch.tracing import traced
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.own_facts import OwnFacts
from overdrive.worker.session import Session

FLUSH = [("library_autotune", {"benchmark": False, "flush_denormals": True})]


def denormals_are_kept() -> bool:
    return bool((torch.tensor([1e-310], dtype=torch.float64) * 0.5 > 0).all())


def test_denormals_are_flushed_from_the_optimizer_on_and_kept_again_afterwards() -> None:
    with Session(FLUSH) as session:
        assert denormals_are_kept()
        torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        assert not denormals_are_kept() and not session.seams.left_out
    assert denormals_are_kept()


def test_a_deterministic_program_is_left_alone() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with Session(FLUSH) as session:
            torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
            assert denormals_are_kept()
    finally:
        torch.use_deterministic_algorithms(False)
    assert session.seams.left_out == {"library_autotune": "the program asks for deterministic algorithms"}


def test_a_program_that_becomes_deterministic_is_left_alone_from_then_on() -> None:
    with Session(FLUSH) as session:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            model(torch.ones(1, 2)).sum().backward()
            try:
                torch.use_deterministic_algorithms(step == 1)
                optimizer.step()
            finally:
                torch.use_deterministic_algorithms(False)
            assert denormals_are_kept() == (step > 0)
    assert session.seams.left_out == {"library_autotune": "the program asks for deterministic algorithms"}


def test_settings_of_the_gpu_do_nothing_on_a_cpu_and_say_so() -> None:
    before = torch.backends.cudnn.benchmark
    with Session([("library_autotune", {"blas": "cublaslt"})]) as session:
        torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        assert torch.backends.cudnn.benchmark is before
    assert "on a CPU" in session.seams.left_out["library_autotune"]


@pytest.mark.parametrize(
    ("facts", "tried"),
    [
        (Facts(device="cuda", convolutions=2), [{"benchmark": True}, {"benchmark": True, "blas": "cublaslt"}]),
        (Facts(device="cuda"), [{"benchmark": False, "blas": "cublaslt"}]),
        (Facts(), [{"benchmark": False, "flush_denormals": True}]),
        (Facts(device="cuda", modules=False), []),
        (Facts(own={"library_autotune": {"denormals": 1e-4}}), [{"benchmark": False, "flush_denormals": True}]),
        (Facts(own={"library_autotune": {"denormals": 0.0}}), []),
    ],
)
def test_only_what_the_device_has_is_tried(facts: Facts, tried: list[dict[str, object]]) -> None:
    technique = catalogue()["library_autotune"]
    assert list(technique.candidates(facts)) == tried
    assert (technique.applies(facts) is None) is bool(tried)


class Fading(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.first, self.by, self.second = nn.Linear(4, 8), by, nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * self.by)


@pytest.mark.parametrize(("by", "any_there"), [(1.0, False), (1e-39, True)])
def test_it_is_for_programs_that_have_denormal_numbers(by: float, any_there: bool) -> None:
    """In what a layer hands on alone, too: neither gradients nor results show it."""
    own = OwnFacts()
    with Session([], [own]):
        model = Fading(by)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    found = own.gathered("torch")["library_autotune"]["denormals"]
    assert (found > 0) is any_there
    facts = Facts(own={"library_autotune": {"denormals": found}})
    assert (catalogue()["library_autotune"].applies(facts) is None) is any_there


@pytest.mark.parametrize(("plan", "looked_into"), [([], 2), ([("autocast", {})], 0)])
def test_calls_in_which_another_technique_acts_are_not_looked_into(plan: list[Any], looked_into: int) -> None:
    """It would stand aside: a program that needs it for its memory would run out of that."""
    seen = []

    class Watched(Fading):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(traced())
            return super().forward(x)

    with Session(plan, [OwnFacts()]):
        model = Watched(1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    assert sum(seen) == looked_into


def test_gradients_and_the_optimizers_state_are_looked_at() -> None:
    own = OwnFacts()
    with Session([], [own]):
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            weight.grad = torch.tensor([1e-40, 1.0, 0.0, 1.0])
            optimizer.step()
    assert own.gathered("torch")["library_autotune"]["denormals"] == 1 / 8


def test_of_large_tensors_some_numbers_are_looked_at() -> None:
    denormals = Denormals()
    denormals.look_at(torch.full((3, 1 << 20), 1e-40))
    assert 0 < denormals.numbers == denormals.denormal < 1 << 19
    denormals.look_at(torch.tensor(1e-40))
    assert denormals.numbers < 1 << 19 and denormals.denormal == denormals.numbers
