"""What a tune writes, and what it leaves as it is. The trials are simulated."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overdrive.cli.report import evidence
from overdrive.cli.tune import Outputs, tune
from overdrive.core.contract import Contract
from overdrive.core.ledger import Ledger, default_path
from overdrive.core.one_at_a_time import one_at_a_time
from overdrive.core.plan import Plan
from overdrive.report.live import Live
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.checkpoint import TuneCheckpoint
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

    def run(gain: float, stopped: str = "", **more: Any) -> dict[str, str]:
        """`stopped`: by Ctrl-C, as a stage of this name begins."""

        def stage(self: Live, text: str) -> None:
            if stopped and stopped in text:
                raise KeyboardInterrupt

        monkeypatch.setattr(Live, "stage", stage)
        Simulated(paces(fast=gain)).enter(monkeypatch)
        program, out = target(tmp_path), tmp_path / "out"
        out.mkdir(exist_ok=True)
        request = TuneRequest(program, Contract.EXACT, 600.0, only=frozenset({"fast"}))
        outputs = Outputs(out / "plan.toml", out / "result.json", **more)
        if stopped:
            with pytest.raises(KeyboardInterrupt):
                tune(request, outputs)
        else:
            assert tune(request, outputs) == 0
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


def test_a_tune_that_is_stopped_leaves_the_plan_that_is_proved_by_then(
    tuned: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tuned(1.5, stopped="confirmation")
    plan, latest, said = (
        Plan.loads(files["plan.toml"], catalogue()),
        json.loads(files["result.json"]),
        capsys.readouterr(),
    )
    assert [each.name for each in plan.techniques] == ["fast"] and plan.unconfirmed
    assert latest["unconfirmed"] == plan.unconfirmed and "plan.html" in files
    assert "Run it" in said.out and evidence(files["plan.toml"]) is not None
    again = tuned(1.5)  # it goes on, and its plan replaces that one
    assert "Going on" in capsys.readouterr().out
    assert not Plan.loads(again["plan.toml"], catalogue()).unconfirmed


def test_a_tune_that_is_stopped_with_nothing_established_leaves_nothing(tuned: Any) -> None:
    assert tuned(1.5, stopped="control") == {}


def test_into_a_pipe_goes_the_plan_alone() -> None:
    reader, writer = os.pipe()
    assert Outputs(Path(f"/proc/self/fd/{writer}")).report == Outputs(Path("/dev/null")).report == Path("/dev/null")
    os.close(reader)
    os.close(writer)


class Unread(io.StringIO):
    """Standard output whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_tune_that_is_stopped_leaves_its_plan_though_nobody_reads_what_it_says(
    tuned: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends `tee`, too: of `overdrive tune train.py | tee log` it took the plan along."""
    monkeypatch.setattr("sys.stdout", Unread())
    files = tuned(1.5, stopped="confirmation")
    plan = Plan.loads(files["plan.toml"], catalogue())
    assert [each.name for each in plan.techniques] == ["fast"] and plan.unconfirmed and "plan.html" in files
    assert "standard output is lost (Broken pipe)" in capsys.readouterr().err


def test_a_disk_that_fills_up_meanwhile_is_told_at_the_end(
    tuned: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Ledger, *_: Any) -> None:
        self._stop_writing(OSError(28, "No space left on device"))

    monkeypatch.setattr(Ledger, "remember", full)
    assert "plan.toml" in tuned(1.5)
    told = capsys.readouterr().out
    assert "The ledger cannot be written (No space left on device), so what follows is not kept." in told


def test_a_plan_that_was_confirmed_stays_where_a_tune_is_stopped_before_that(
    tuned: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tuned(1.5)
    later = tuned(1.8, stopped="confirmation")
    assert (later["plan.toml"], later["plan.html"]) == (good["plan.toml"], good["plan.html"])
    assert "stopped before its plan was confirmed, so the plan" in capsys.readouterr().out
    assert json.loads(later["result.json"])["plan"] == "" and "plan.latest.html" in later
    forced = tuned(1.8, stopped="confirmation", force=True)
    assert Plan.loads(forced["plan.toml"], catalogue()).unconfirmed
    again = tuned(1.8, stopped="confirmation")  # one that was not confirmed either is replaced
    assert again["plan.toml"] and "plan.latest.html" in again and json.loads(again["result.json"])["plan"]


@pytest.mark.fault(15)
def test_a_second_tune_of_the_same_program_is_told_of_the_first(
    tuned: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tuned(1.5)
    program, out = target(tmp_path), tmp_path / "out"
    request = TuneRequest(program, Contract.EXACT, 600.0, only=frozenset({"fast"}))
    with one_at_a_time(default_path().parent, TuneCheckpoint(Ledger(), program, request.purpose()).key):
        assert tune(request, Outputs(out / "plan.toml", out / "result.json")) == 1
        told = capsys.readouterr().err
        assert f"being tuned already, by process {os.getpid()}" in told and told.count("\n") == 1
        assert tune(replace(request, contract=Contract.ROUNDING), Outputs(tmp_path / "other.toml")) == 0
    assert {each.name: each.read_text() for each in out.iterdir()} == good
    assert list(default_path().parent.glob("*.lock")) == []


def test_a_tune_of_another_contract_waits_for_the_one_that_writes_the_same_plan(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both would share the cores, and the later one replaced what the other had found."""
    codes: list[int] = []
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")

    def stage(self: Live, text: str) -> None:
        if not codes:
            program = replace(target(tmp_path), arguments=("--epochs", "3"))
            codes.append(tune(TuneRequest(program, Contract.ROUNDING), Outputs(tmp_path / "link" / "plan.toml")))

    def entered(self: Live) -> Live:
        monkeypatch.setattr(Live, "stage", stage)
        return self

    monkeypatch.setattr(Live, "__enter__", entered)
    tuned(1.5)
    assert codes == [1] and f"being tuned already, by process {os.getpid()}" in capsys.readouterr().err
