"""Which runs of a search the proof of its plan covers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overdrive.core.contract import Contract
from overdrive.core.hyperparameters import OPTION, ValuePlace
from overdrive.report.search_page import page
from overdrive.search.parameters import Parameter
from overdrive.search.plan_cover import outside
from tests.report.test_search import result, told

PARAMETERS = [
    Parameter(name, (ValuePlace(OPTION, f"--{name}", value),))
    for name, value in (("lr", 0.1), ("weight-decay", 0.0), ("batch-size", 64), ("width", 128))
]


@pytest.mark.parametrize(
    ("values", "loosest", "beyond"),
    [
        ({"lr": 0.3, "batch-size": 64}, Contract.EXACT, ()),
        ({"lr": 0.3, "batch-size": 32, "width": 64}, Contract.ROUNDING, ("batch-size", "width")),
        ({"weight-decay": 0.1}, Contract.EXACT, ("weight-decay",)),  # an operation that the program does not make
        ({"lr": 0.3}, Contract.STATISTICAL, ("lr",)),
        ({}, Contract.STATISTICAL, ()),
        ({"batch-size": 32}, None, ()),
    ],
)
def test_a_proof_covers_factors_and_no_shapes(
    values: dict[str, float], loosest: Contract | None, beyond: tuple[str, ...]
) -> None:
    assert outside(PARAMETERS, values, loosest) == beyond


def test_each_run_says_it_and_a_tune_of_the_chosen_one_is_offered() -> None:
    found = result()
    runs = (replace(found.trials[0], without=("channels_last",)), replace(found.trials[1], outside=("batch-size",)))
    planned = replace(
        found, trials=runs, plan="p.toml", tune="overdrive tune --budget 3m train.py --batch-size=8", edits=()
    )
    assert "1 of 2 runs are not within what p.toml was proved for, by their batch-size." in told(planned)
    assert "this proves a plan for it: overdrive tune --budget 3m train.py --batch-size=8" in told(planned)
    text = page(planned)
    assert "complete; plan unproved for its batch-size" in text and "without channels_last" in text
    assert "overdrive tune" not in told(replace(planned, verdict="no better"))
    inside = replace(planned, trials=found.trials[:2], tune="")
    assert "All runs are within what p.toml was proved for." in told(inside)
    assert "proved for" not in told(found)  # no plan
