"""`autocast` leaves programs alone that have their own, on every way in which one can have it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from overdrive.worker.torch.probe import Probe

BF16 = torch.bfloat16


class Decorated(nn.Linear):
    @torch.autocast("cpu", dtype=BF16)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Inside(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.amp.autocast("cpu", dtype=BF16):
            return super().forward(x)


class OlderInside(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.cpu.amp.autocast(dtype=BF16):
            return super().forward(x)


def around(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=BF16):
        return model(x)


def by_decorator(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.autocast("cpu", dtype=BF16)(lambda: model(x))()


def accelerated(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """As Accelerate and the HF Trainer have it: `forward` itself is wrapped."""
    if "forward" not in vars(model):
        model.forward = torch.autocast("cpu", dtype=BF16)(model.forward)  # type: ignore[method-assign]
    return model(x)


def plain(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


WAYS: dict[str, tuple[type[nn.Module], Callable[..., Any]]] = {
    "around": (nn.Linear, around),
    "decorated call": (nn.Linear, by_decorator),
    "decorated forward": (Decorated, plain),
    "inside": (Inside, plain),
    "older name": (OlderInside, plain),
    "wrapped forward": (nn.Linear, accelerated),
}


def loop(kind: type[nn.Module], call: Callable[..., Any], *techniques: Any) -> tuple[list[float], Session, Probe]:
    torch.manual_seed(0)
    probe, losses = Probe(hashed_steps=2), []
    with Session(techniques, [probe]) as session:
        model = kind(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            loss = call(model, torch.ones(2, 4)).float().pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, session, probe


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_autocast_of_the_programs_own_is_seen_and_left_alone(way: str) -> None:
    losses, _, probe = loop(*WAYS[way])
    assert probe.facts(Recorder()).own_autocast
    found, session, _ = loop(*WAYS[way], ("autocast", {}))
    assert found == losses
    assert "of its own" in session.seams.left_out["autocast"]


def test_one_that_is_not_enabled_and_the_techniques_own_do_not_count() -> None:
    def disabled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return model(x)

    _, session, probe = loop(nn.Linear, disabled, ("autocast", {}))
    assert not session.seams.left_out and not probe.facts(Recorder()).own_autocast


class Checkpointed(nn.Linear):
    again = False  # as the older kind of checkpoints has it (`use_reentrant`)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(super().forward, x, use_reentrant=self.again)


class CheckpointedAgain(Checkpointed):
    again = True


@pytest.mark.parametrize("kind", [Checkpointed, CheckpointedAgain])
def test_one_that_a_checkpoint_enters_again_is_not_the_programs_own(kind: type[nn.Module]) -> None:
    def called(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x.requires_grad_())

    losses, session, probe = loop(kind, called, ("autocast", {}))
    assert not session.seams.left_out and not probe.facts(Recorder()).own_autocast
    assert losses == loop(nn.Linear, called, ("autocast", {}))[0]


@pytest.mark.parametrize("other", ["activation_checkpointing", "micro_batch"])
def test_one_that_a_technique_enters_again_is_not_the_programs_own(other: str) -> None:
    with Session([(other, {}), ("autocast", {})]) as session:
        model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(4)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(32, 8)).pow(2).mean().backward()
            optimizer.step()
        assert not session.seams.left_out


def test_the_seam_leaves_no_trace() -> None:
    before = torch.autocast.__enter__
    with Session([("autocast", {})]):
        assert torch.autocast.__enter__ is not before
    assert torch.autocast.__enter__ is before


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate (an optional extra)")
def test_accelerates_own_is_seen() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    with Session([("autocast", {})]) as session:
        model = nn.Linear(4, 4)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(2):
            accelerator.backward(model(torch.ones(2, 4)).mean())
            optimizer.step()
        assert "of its own" in session.seams.left_out["autocast"]


def test_candidates_are_what_the_device_can() -> None:
    technique, single = catalogue()["autocast"], {"parameter_dtypes": ("torch.float32",)}
    assert "does not multiply bf16" in str(technique.applies(Facts(**single)))
    assert technique.applies(Facts(bf16_fast=True, **single)) is None
    for facts, dtypes in (
        (Facts(device="cuda", bf16_fast=True), ["bfloat16", "float16"]),
        (Facts(device="cuda"), ["float16"]),
        (Facts(bf16_fast=True), ["bfloat16"]),
    ):
        assert [each["dtype"] for each in technique.candidates(facts)] == dtypes
