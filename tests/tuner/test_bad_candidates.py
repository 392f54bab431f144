"""Whole tunes by real processes in which one candidate hangs, or leaks until the memory is full: it is left out by
name, and what helps is found all the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from overdrive.evidence.speed import Verdict
from overdrive.techniques import catalogue as catalogue_module
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.tuner.duel_runner import Progress
from overdrive.tuner.findings import Findings
from overdrive.tuner.request import TuneRequest
from overdrive.tuner.tune import tune
from tests.trials.test_killed_for_memory import MIB, Limit, group, kills_in, members_of

__all__ = ["group"]  # a fixture

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

ALSO = "tests.tuner.bad_candidates"
TRAIN = """
import time
PAUSE = 0.012
import torch
torch.manual_seed(0)
model = torch.nn.Linear(64, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3000):
    time.sleep(PAUSE)
    optimizer.zero_grad()
    model(torch.randn(8, 64)).pow(2).mean().backward()
    optimizer.step()
"""
Tuned = Callable[..., Findings]


@pytest.fixture
def tuned(script: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tuned]:
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(root), str(root / "src"))))
    catalogue_module.also_in([ALSO])

    def run(*names: str) -> Findings:
        program = Program(str(script(TRAIN)))
        request = TuneRequest(program, budget=240.0, only=frozenset(names))
        with TrialPool(also=[ALSO]) as pool:
            checkpoint = TuneCheckpoint(Ledger.open(tmp_path / "ledger"), program, request.purpose())
            return tune(request, pool, checkpoint, Progress())

    yield run
    catalogue_module._also.remove(ALSO)
    catalogue_module.catalogue.cache_clear()


@pytest.mark.fault(3)
def test_a_candidate_that_hangs_in_the_screening_is_left_out_and_what_helps_is_found(tuned: Tuned) -> None:
    found = tuned("hangs", "hastens")
    assert found.verdict is Verdict.FASTER
    assert [each.name for each in found.adopted] == ["hastens"]
    (hung,) = (each for each in found.rejected if each.name == "hangs")
    assert hung.reason, hung


@pytest.mark.fault(7)
def test_a_candidate_that_leaks_until_the_memory_is_full_is_left_out_and_what_helps_is_found(
    tuned: Tuned, group: Limit
) -> None:
    folder = group(2500 * MIB)
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    try:
        found = tuned("leaks", "hastens")
    finally:
        (folder.parent / "cgroup.procs").write_text(str(os.getpid()))
    assert kills_in(folder) >= 1 and not members_of(folder)
    assert found.verdict is Verdict.FASTER
    assert [each.name for each in found.adopted] == ["hastens"]
    (leaking,) = (each for each in found.rejected if each.name == "leaks")
    assert "memory" in leaking.reason, leaking
