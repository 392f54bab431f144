"""Which runs of a search the proof of its plan covers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overdrive.core.contract import Contract
from overdrive.core.hyperparameters import OPTION, SCHEDULE, ValuePlace
from overdrive.core.interval import Interval
from overdrive.core.plan import Plan, PlannedTechnique
from overdrive.core.program import Program
from overdrive.report.search_page import page
from overdrive.search.chosen_plan import run_of_chosen
from overdrive.search.parameters import Parameter
from overdrive.search.plan_cover import outside, planned
from overdrive.techniques.catalogue import catalogue
from tests.report.test_search import result, told

PARAMETERS = [
    Parameter(name, (ValuePlace(OPTION, f"--{name}", value),))
    for name, value in (("lr", 0.1), ("weight-decay", 0.0), ("batch-size", 64), ("width", 128))
]
PARAMETERS.append(Parameter("anneal", (ValuePlace(SCHEDULE, "anneal", 0.0),)))


@pytest.mark.parametrize(
    ("values", "loosest", "beyond"),
    [
        ({"lr": 0.3, "batch-size": 64}, Contract.EXACT, ()),
        ({"lr": 0.3, "batch-size": 32, "width": 64}, Contract.ROUNDING, ("batch-size", "width")),
        ({"anneal": 0.5}, Contract.ROUNDING, ()),  # rates are multiplied, as ever
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


PLAN = Plan(
    "other.py",
    Contract.OPEN,
    (
        PlannedTechnique("fast_dropout", {}, Contract.EXACT, speedup=Interval(1.1, 1.2, 1.3)),
        PlannedTechnique("threads", {"count": 3}, Contract.ROUNDING),
        PlannedTechnique("batch_size", {}, Contract.OPEN),
    ),
    verdict="faster",
    speedup=Interval(1.3, 1.4, 1.5),
)
CHOSEN = [
    Parameter("lr", (ValuePlace(OPTION, "--lr", 0.01),)),
    Parameter("model", (ValuePlace(OPTION, "--model", "gru"),)),
]


def under(folder: Path, **of_run: tuple[str, ...]) -> tuple[str, str, Path]:
    """The command that runs the chosen one under its plan, what was told, and where the plan is."""
    (folder / "plan.toml").write_text(PLAN.dumps())
    found = planned(folder / "plan.toml")
    told_of = replace(result(), plan=str(folder / "plan.toml"))
    runs = tuple(replace(run, **of_run) for run in told_of.trials)  # type: ignore[arg-type]
    said: list[str] = []
    path = folder / "train.search.overdrive.toml"
    assert found
    command = run_of_chosen(found, replace(told_of, trials=runs), Program("train.py"), CHOSEN, path, said.append)
    return command, " ".join(said), path


def test_the_chosen_one_has_a_plan_file_where_the_proof_covers_it(tmp_path: Path) -> None:
    command, _, path = under(tmp_path)
    assert command == f"overdrive run --plan {path} train.py --lr=0.1 --model=gru"
    written = Plan.read(path, catalogue())
    assert written.program == "train.py" and written.contract is Contract.ROUNDING
    assert [each.name for each in written.techniques] == ["fast_dropout", "threads"]  # none that changes the training
    assert written.techniques[1].settings["count"] == 3 and written.speedup is None  # of another whole
    assert path.read_text().startswith("# For lr 0.1, model gru, as `overdrive search` ran it.")


def test_what_left_itself_out_in_the_search_is_not_in_the_plan_of_the_chosen_one(tmp_path: Path) -> None:
    written = Plan.read(under(tmp_path, without=("threads",))[2], catalogue())
    assert [each.name for each in written.techniques] == ["fast_dropout"] and written.contract is Contract.EXACT
    assert [each.name for each in written.rejected] == ["threads"]


def test_there_is_no_plan_file_for_one_that_the_proof_does_not_cover(tmp_path: Path) -> None:
    command, _, path = under(tmp_path, outside=("batch-size",))
    assert not command and not path.exists()
    command, _, path = under(tmp_path, without=("threads", "fast_dropout"))
    assert not command and not path.exists()


def test_a_plan_file_that_cannot_be_written_is_told_and_the_search_is_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "train.search.overdrive.toml").mkdir()
    command, said, _ = under(tmp_path)
    assert not command and "could not be written into" in said


def test_the_command_for_the_chosen_one_under_its_plan_is_told() -> None:
    found = replace(result(), plan="p.toml", run="overdrive run --plan q.toml train.py --lr=0.1")
    assert "under a plan whose proof covers it, after the edits: overdrive run --plan q.toml train.py" in told(found)
    assert "overdrive run --plan q.toml train.py --lr=0.1" in page(found)
    assert "whose proof covers it" not in told(result()) + page(result())
