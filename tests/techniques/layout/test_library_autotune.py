"""`library_autotune`: what it sets, when, and that it is put back. The GPU's part is in tests/gpu/test_layout.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
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


def test_settings_of_the_gpu_do_nothing_on_a_cpu_and_say_so() -> None:
    before = torch.backends.cudnn.benchmark
    with Session([("library_autotune", {"blas": "cublaslt"})]) as session:
        torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        assert torch.backends.cudnn.benchmark is before
    assert "library_autotune" in session.seams.left_out


@pytest.mark.parametrize(
    ("facts", "tried"),
    [
        (Facts(device="cuda", convolutions=2), [{"benchmark": True}, {"benchmark": True, "blas": "cublaslt"}]),
        (Facts(device="cuda"), [{"benchmark": False, "blas": "cublaslt"}]),
        (Facts(), [{"benchmark": False, "flush_denormals": True}]),
        (Facts(device="cuda", modules=False), []),
    ],
)
def test_only_what_the_device_has_is_tried(facts: Facts, tried: list[dict[str, object]]) -> None:
    technique = catalogue()["library_autotune"]
    assert list(technique.candidates(facts)) == tried
    assert (technique.applies(facts) is None) is bool(tried)
