"""How long proofs are, by what a tune can spare."""

from __future__ import annotations

import math

import pytest

from overdrive.core.facts import Facts, LoaderFacts
from overdrive.proof.budget import horizon


@pytest.mark.parametrize(
    ("step", "within", "steps"),
    [
        (0.01, math.inf, 400),
        (0.01, 36.0, 400),
        (0.05, 36.0, 200),  # two shortened epochs
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
