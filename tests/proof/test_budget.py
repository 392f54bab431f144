"""How long proofs are, by what a tune can spare."""

from __future__ import annotations

import math

import pytest

from overdrive.core.facts import Facts, LoaderFacts
from overdrive.proof import budget
from overdrive.proof.budget import ProofBudget, horizon, replayed_within, runs_at_once


@pytest.mark.parametrize(
    ("step", "within", "steps"),
    [
        (0.01, math.inf, 400),
        (0.01, 36.0, 400),
        (0.05, 36.0, 160),  # two shortened epochs
        (0.5, math.inf, 100),
        (0.5, 36.0, 72),
        (2.0, 36.0, 20),
        (0.0, 36.0, 400),  # not known
    ],
)
def test_a_proof_is_as_long_as_there_is_time_for(step: float, within: float, steps: int) -> None:
    loader = LoaderFacts(batch_size=10, workers=0, map_style=True, length=10_000, seconds_per_batch=0.0)
    facts = Facts(step_seconds=step, loaders=(loader,))
    assert horizon(facts, within) == steps
    assert replayed_within(steps) == (12 if steps == 20 else steps), "all in fp64, too, where they are slow"


@pytest.mark.parametrize(
    ("cores", "in_use", "peak", "runs"),
    [
        (16, 0, 2 << 30, 4),
        (4, 0, 2 << 30, 2),  # each start keeps a core busy, and what it feeds the GPU with another
        (16, 60 << 30, 2 << 30, 4),
        (16, 60 << 30, 5 << 30, 2),
        (16, 79 << 30, 2 << 30, 1),
        (16, 0, 0, 1),  # what it takes is not known
    ],
)
def test_runs_share_a_gpu_that_has_room_for_them(
    cores: int, in_use: int, peak: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "gpus", lambda: ({"memory_bytes": 80 << 30},))
    monkeypatch.setattr(budget, "memory_in_use", lambda: in_use)
    monkeypatch.setattr(budget, "available_memory", lambda: 100 << 30)
    monkeypatch.setattr(budget, "granted_cores", lambda: cores)
    facts = Facts(device="cuda", parameters=10**9)
    assert runs_at_once(facts, ProofBudget(peak=peak)) == runs
    assert runs_at_once(facts, ProofBudget(peak=peak, alone=True)) == 1, "it takes one process only"
