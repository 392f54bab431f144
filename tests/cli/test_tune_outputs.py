"""What a tune writes, and what it leaves as it is. The trials are simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overdrive.cli.report import evidence
from overdrive.cli.tune import Outputs, tune
from overdrive.core.contract import Contract
from overdrive.core.plan import Plan
from overdrive.techniques.catalogue import catalogue
from overdrive.tuner.request import TuneRequest
from tests.simulated import Offer, Simulated, offer, target
from tests.tuner.test_search import paces

__all__ = ["offer"]  # a fixture

LEFT = "Nothing was established, so the plan"


@pytest.fixture
def tuned(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tune of a program that techniques make so many times as fast, and the files it leaves, by name."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "1000")
    offer(fast={})

    def run(gain: float, **more: Any) -> dict[str, str]:
        Simulated(paces(fast=gain)).enter(monkeypatch)
        program, out = target(tmp_path), tmp_path / "out"
        out.mkdir(exist_ok=True)
        request = TuneRequest(program, Contract.EXACT, 600.0, only=frozenset({"fast"}))
        code = tune(request, Outputs(out / "plan.toml", out / "result.json", **more))
        assert code == 0
        return {each.name: each.read_text() for each in out.iterdir()}

    return run


def test_a_tune_that_establishes_nothing_leaves_a_plan_that_has_something_and_its_report(
    tuned: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tuned(1.5)
    assert [each.name for each in Plan.loads(good["plan.toml"], catalogue()).techniques] == ["fast"]
    assert LEFT not in capsys.readouterr().out
    bad = tuned(1.0)
    assert (bad["plan.toml"], bad["plan.html"]) == (good["plan.toml"], good["plan.html"])
    latest, told = json.loads(bad["result.json"]), capsys.readouterr().out
    assert latest["techniques"] == [] and latest["plan"] == ""  # it tells of this tune, not of the plan that is there
    assert LEFT in told and "--force" in told and "plan.latest.html" in told
    assert LEFT in bad["plan.latest.html"]
    kept = evidence(bad["plan.toml"])
    assert kept is not None and [each["name"] for each in kept["techniques"]] == ["fast"]


def test_with_force_a_plan_is_replaced_by_one_that_has_nothing(tuned: Any) -> None:
    tuned(1.5)
    files = tuned(1.0, force=True)
    assert Plan.loads(files["plan.toml"], catalogue()).techniques == () and "plan.latest.html" not in files
    assert json.loads(files["result.json"])["plan"].endswith("plan.toml")


def test_a_plan_that_has_nothing_is_replaced_and_so_is_one_that_is_outdone(tuned: Any) -> None:
    empty = tuned(1.0)
    assert Plan.loads(empty["plan.toml"], catalogue()).techniques == ()
    better = tuned(1.5)
    again = tuned(1.8)
    first, second = (Plan.loads(each["plan.toml"], catalogue()).speedup for each in (better, again))
    assert first is not None and second is not None and first.high < second.low


def test_what_cannot_be_read_as_a_plan_is_not_overwritten_by_nothing(tuned: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "plan.toml").write_text("overdrive = 99\n")
    assert tuned(1.0)["plan.toml"] == "overdrive = 99\n"
