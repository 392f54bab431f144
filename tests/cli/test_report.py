"""`overdrive report`, started as people start it: what it finds, what it says when it finds nothing.

No framework is imported; about half a second a process, some 25 processes in all.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from overdrive.cli.report import from_plan
from overdrive.cli.report_search import shown
from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.core.json_data import to_json
from overdrive.core.ledger import Ledger, default_path
from overdrive.core.plan import Plan
from overdrive.core.plan.evidence import recall, remember
from overdrive.report.words import sentence
from tests.conftest import Run
from tests.report.sample import HOSTILE, result
from tests.report.test_search import result as searched

PLAN = """overdrive = 1
program = "cifar_cnn.py"
contract = "exact"

[[technique]]
name = "sample_cache"
contract = "exact"
verdict = "FASTER"
speedup = { low = 3.2, estimate = 3.4, high = 3.6 }

[evidence]
verdict = "FASTER"
speedup = { low = 3.1, estimate = 3.3, high = 3.5 }
noise_floor = 0.021
tuning_seconds = 233.0

[[rejected]]
name = "compile"
reason = "slower: 0.62x [0.60, 0.65]"

[machine]
cpu = "AMD EPYC 7B13"
cores = 2
"""


Report = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def report(overdrive: Run, tmp_path: Path) -> Report:
    """Runs `overdrive report ARGS`."""
    return lambda *args: overdrive("report", *args, cwd=tmp_path, timeout=200)


def test_a_search_is_shown_from_what_was_written_of_it(report: Report, tmp_path: Path) -> None:
    path, page = tmp_path / "found.json", tmp_path / "found.html"
    path.write_text(searched().dumps())
    done = report("found.json")
    assert done.returncode == 0 and "Better than your defaults on 2 fresh seeds: lr 0.1" in done.stdout, done.stderr
    assert report("found.json", "-o", "found.html").returncode == 0 and "Better than your defaults" in page.read_text()
    assert json.loads(report("found.json", "--json", "-").stdout) == json.loads(path.read_text())


@pytest.mark.fault(25)
@pytest.mark.parametrize(
    "change", [{"version": 2}, {"trials": 5}, {"defaults": {}}, {"comparison": [1]}, {"spent": "x"}]
)
def test_a_search_that_is_none_is_one_sentence(change: dict[str, object], report: Report, tmp_path: Path) -> None:
    data = {**json.loads(searched().dumps()), **change}
    (tmp_path / "found.json").write_text(json.dumps(data))
    done = report("found.json")
    assert done.returncode == 2 and done.stderr.strip().endswith("is not what `overdrive search --json` writes.")


@pytest.mark.fault(25)
def test_a_searchs_strings_are_inert_in_the_terminal(report: Report, tmp_path: Path) -> None:
    data = json.loads(searched().dumps())
    data["notes"], data["command"] = ["\x1b[2Jgone\u202e"], "\x1b]0;title\x07python"
    (tmp_path / "found.json").write_text(json.dumps(data))
    done = report("found.json")
    assert done.returncode == 0 and "gone" in done.stdout and not {"\x1b", "\u202e", "\x07"} & set(done.stdout)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "cifar.overdrive.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture
def tuned_plan(plan: Path) -> Path:
    """A plan whose measurements are in this machine's ledger."""
    with Ledger.open(default_path()) as ledger:
        remember(ledger, PLAN, result())
    return plan


def test_prints_what_the_tune_established(tuned_plan: Path, report: Report) -> None:
    done = report(str(tuned_plan))
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "Trains 5.2 times as fast" in text and "fused_optimizer" in text and "statistical holds" in text
    assert "412 losses" in text and "\x1b" not in done.stdout
    assert "cifar.overdrive.toml" in text and "cifar_cnn.overdrive.toml" not in text  # where the plan is now


def test_writes_the_page(tuned_plan: Path, report: Report) -> None:
    done = report("-o", "evidence.html", tuned_plan.name)
    assert done.returncode == 0 and "evidence.html" in done.stdout, done.stderr
    text = (tuned_plan.parent / "evidence.html").read_text()
    assert "Trains 5.2 times as fast" in text and "features.0.weight" in text
    assert tuned_plan.read_text() == PLAN


def test_a_plan_of_a_program_that_only_answers_is_told_as_one_without_its_evidence() -> None:
    measured = Interval(1.7, 1.8, 1.9)
    plan = Plan("answer.py", Contract.EXACT, (), verdict="FASTER", speedup=measured, inference=True)
    found = from_plan(plan)
    assert sentence(found).startswith("Answers 1.80 times as fast") and found.unit == "call"


def test_a_plan_that_was_edited_is_not_given_the_measurements_of_another(tuned_plan: Path, report: Report) -> None:
    tuned_plan.write_text(PLAN.replace("high = 3.5", "high = 3.4"))
    text = " ".join(report(str(tuned_plan)).stdout.split())
    assert "not on this machine, or the plan was edited since" in text
    assert "Trains 3.3 times as fast" in text and "between 3.1 and 3.4" in text and "by the plan’s own record" in text
    assert "5.2" not in text and "identical" not in text and "learning rates" not in text
    assert "sample_cache" in text and "compile" in text and "slower" in text


def test_the_page_of_a_plan_alone_says_so_too_and_makes_no_ledger(plan: Path, report: Report) -> None:
    assert report(str(plan), "-o", str(plan.with_suffix(".html"))).returncode == 0
    text = plan.with_suffix(".html").read_text()
    assert "the plan was edited since" in text and "AMD EPYC 7B13" in text
    assert "<dt>GPU</dt>" not in text  # a plan does not say
    assert not default_path().exists()


def test_line_ends_of_another_system_are_no_edit(tuned_plan: Path, report: Report) -> None:
    tuned_plan.write_bytes(PLAN.replace("\n", "\r\n").encode())
    assert "Trains 5.2 times" in report(str(tuned_plan)).stdout


@pytest.mark.fault(14)
def test_a_ledger_that_is_no_ledger_is_survived(tuned_plan: Path, report: Report) -> None:
    default_path().write_bytes(b"not a database" * 999)
    done = report(str(tuned_plan))
    assert done.returncode == 0 and "the plan was edited since" in " ".join(done.stdout.split())
    assert "ledger" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.fault(25)
def test_a_hostile_record_is_inert(plan: Path, report: Report) -> None:
    with Ledger.open(default_path()) as ledger:
        remember(ledger, PLAN, result(notice=HOSTILE, program=HOSTILE, proof={"sentence": HOSTILE, "level": HOSTILE}))
    done = report(str(plan))
    assert done.returncode == 0 and "\x1b" not in done.stdout, done.stderr
    assert report(str(plan), "-o", str(plan.with_suffix(".html"))).returncode == 0
    assert "<script" not in plan.with_suffix(".html").read_text()


def test_two_results_are_shown_side_by_side(tuned_plan: Path, report: Report) -> None:
    other = tuned_plan.parent / "there.json"
    assert report(tuned_plan.name, "--json", other.name).returncode == 0
    other.write_text(other.read_text().replace('"cpu": "', '"cpu": "another '))
    done = report(tuned_plan.name, other.name)
    text = " ".join(done.stdout.split())
    assert done.returncode == 0 and "gain the same, as far as was measured" in text, done.stderr
    assert "another AMD" in text and "fused_optimizer" in text and "\x1b" not in done.stdout
    done = report(tuned_plan.name, other.name, "-o", "both.html", "--json", "both.json")
    assert done.returncode == 0 and "gain the same" in (other.parent / "both.html").read_text(), done.stderr
    assert json.loads((other.parent / "both.json").read_text())["ratio"]["estimate"] == 1
    assert "is the plan itself" in report(tuned_plan.name, other.name, "-o", other.name).stderr
    assert "Trains 5.2 times" in report(other.name).stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON, and no plan"),
        ('{"a": 1}', "is not what `overdrive tune --json` writes"),
        ('{"version": 99, "verdict": "", "techniques": [], "machine": {}}', "is of version 99"),
    ],
)
def test_json_that_is_no_result_is_told_so(plan: Path, report: Report, text: str, said: str) -> None:
    (plan.parent / "bad.json").write_text(text)
    done = report(plan.name, "bad.json")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert "no third plan: x.toml" in report(plan.name, "bad.json", "x.toml").stderr


@pytest.mark.parametrize("how", ["by name", "by another path", "by a link", "by a hard link"])
def test_never_writes_over_the_plan(plan: Path, report: Report, how: str) -> None:
    other = plan.parent / "report.html"
    if how == "by a link":
        other.symlink_to(plan)
    elif how == "by a hard link":
        os.link(plan, other)
    else:
        other = plan if how == "by name" else plan.parent / ".." / plan.parent.name / plan.name
    done = report(str(plan), "-o", str(other))
    assert done.returncode == 2 and "is the plan itself" in done.stderr
    assert plan.read_text() == PLAN


BAD = {
    "no such file": (lambda path: path.unlink(), "there is no such plan"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
    "not TOML": (lambda path: path.write_text("import torch\n"), "line 1"),
    "not text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "UTF-8"),
    "no such technique": (lambda path: path.write_text(PLAN.replace("sample_cache", "warp")), "there is no technique"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_plan_that_cannot_be_read_is_told_in_one_sentence(plan: Path, report: Report, name: str) -> None:
    spoil, told = BAD[name]
    spoil(plan)
    done = report(str(plan), "-o", str(plan.parent / "out.html"))
    assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (plan.parent / "out.html").exists()


@pytest.mark.parametrize("where", ["missing/report.html", "folder"])
@pytest.mark.fault(13)
def test_a_report_that_cannot_be_written_is_told_in_one_sentence(plan: Path, report: Report, where: str) -> None:
    (plan.parent / "folder").mkdir()
    done = report(str(plan), "-o", str(plan.parent / where))
    assert done.returncode == 2 and "cannot be written" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not any("tmp" in each.name for each in plan.parent.iterdir())


def test_what_is_not_a_result_is_not_recalled() -> None:
    with Ledger.open(default_path()) as ledger:
        assert recall(ledger, PLAN) is None
        remember(ledger, PLAN, result())
        found = recall(ledger, PLAN)
        assert found is not None and found["verdict"] == "FASTER"
        assert recall(ledger, PLAN + "\n") is None


def test_a_command_of_a_search_is_shown_whole_however_long_it_is() -> None:
    command = "python train.py " + " ".join(f"--option_{number}='a  b'" for number in range(60))
    html, said = shown(to_json(replace(searched(), command=command)), Console(width=4000))
    assert command in said and command in unescape(html)
