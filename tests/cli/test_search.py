"""`overdrive search` on real programs in real processes; most import no framework. Where it is not about their
start, trials are forked."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.schemas import held
from tests.survive.killed import plan_of
from tests.warm_trials import OVERDRIVE, PATHS, warm_trials

pytest.importorskip("optuna")

# Better where lr is near 1; the seed adds a little.
PROGRAM = """
import random
lr = 0.1
width = 4
print("start", random.random(), flush=True)
BODY
print("Accuracy: %.4f" % (90 - 3 * (lr - 1) ** 2 + 0.1 * random.random()))
"""
VALUES = "lr=0.01,0.1,0.5,0.9,1.1,2"  # few: a search ends where all are tried
Make = Callable[..., Path]


@pytest.fixture
def project(script: Callable[..., Path]) -> Make:
    return lambda body="pass": script(PROGRAM.replace("BODY", body))


def search(overdrive: Run, folder: Path, *words: str, budget: str = "60s") -> subprocess.CompletedProcess[str]:
    return overdrive("search", "--metric", "Accuracy", "--budget", budget, *words, "train.py", cwd=folder)


def test_a_better_value_is_found_and_told_with_the_place_to_set_it(project: Make, warm_overdrive: Run) -> None:
    path = project()
    before = path.read_text()
    done = search(warm_overdrive, path.parent, "--vary", VALUES, "--json", "result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((path.parent / "result.json").read_text())
    assert result["version"] == 1 and result["verdict"] == "better"
    assert result["comparison"]["gain"]["low"] > 0
    arms = result["comparison"]["defaults"] + result["comparison"]["chosen"]
    runs = sum(run["seconds"] for run in (result["defaults"], *result["trials"], *arms))
    assert runs < result["spent"] <= 60.0  # finding out what can be varied is in the budget, too
    assert 0 not in result["comparison"]["seeds"]
    assert "Better than your defaults" in done.stdout
    assert result["edits"] and "constant lr (train.py:3)" in result["edits"][0]
    assert path.read_text() == before


def test_a_parameter_that_does_nothing_is_not_claimed(project: Make, warm_overdrive: Run) -> None:
    done = search(warm_overdrive, project("random.random = lambda: 0.5").parent, "--vary", "width=1,2,4,8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No better than your defaults" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--vary", "lrr=0..1"), 2, "did you mean lr?"),
        (("--vary", "lr=1..0"), 2, "begin below its end"),
        (("--vary", "width=1..2.5"), 2, "whole number"),
        (("--goal", "fast"), 2, "is no goal"),
        (("--goal", "90 soonest", "--against", "time"), 2, "no goal that is a time"),
        (("--against", "speed"), 2, "'speed' is not one of"),
        (("--vary", "lr", "--against", "step"), 1, "cannot be set against step: no step was seen"),
        (("--metric", "F1", "--vary", "lr"), 1, "never printed a number after 'F1'. It prints numbers after: Accuracy"),
        (("--vary", "lr", "--budget", "0.01s"), 1, "longer than the budget"),
    ],
)
def test_bad_input_is_one_sentence(project: Make, overdrive: Run, words: tuple[str, ...], code: int, said: str) -> None:
    done = search(overdrive, project().parent, *words)
    assert done.returncode == code
    assert said in done.stderr and "Traceback" not in done.stderr
    assert " 0 s" not in done.stderr


def test_a_budget_that_is_too_short_is_told_with_one_that_is_not(project: Make, warm_overdrive: Run) -> None:
    done = search(warm_overdrive, project("import time; time.sleep(2)").parent, "--vary", "lr", budget="15s")
    assert done.returncode == 1 and "Write --budget 1m" in done.stderr


def test_a_program_that_fails_with_a_value_fails_that_run_alone(project: Make, warm_overdrive: Run) -> None:
    folder = project("assert lr < 1.5, 'too large'").parent
    done = search(warm_overdrive, folder, "--vary", "lr=0.01,0.9,2", "--json", "result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    states = {run["values"]["lr"]: run["state"] for run in result["trials"]}
    assert states[2.0] == "failed" and result["chosen"] == {"lr": 0.9}
    assert "too large" in done.stdout


def test_a_program_that_reads_standard_input_is_given_a_file(project: Make, overdrive: Run) -> None:
    folder = project("assert input() == 'yes'").parent
    without = search(overdrive, folder, "--list")
    assert without.returncode == 1 and "--stdin FILE" in without.stderr
    (folder / "answers.txt").write_text("yes\n")
    done = search(overdrive, folder, "--stdin", "answers.txt", "--list")
    assert done.returncode == 0 and "lr" in done.stdout, done.stderr
    varied = search(overdrive, folder, "--stdin", "answers.txt", "--vary", "width=4,5")
    assert varied.returncode == 0, varied.stderr


def test_a_program_that_always_fails_is_told_so(project: Make, overdrive: Run) -> None:
    done = search(overdrive, project("raise ValueError('no data')").parent, "--vary", "lr")
    assert done.returncode == 1 and "fails by itself" in done.stderr and "no data" in done.stderr


@pytest.mark.fault(10)
def test_ctrl_c_tells_the_best_so_far_and_the_search_goes_on(project: Make, warm_overdrive: Run) -> None:
    folder = project().parent
    words = ("search", "--metric", "Accuracy", "--budget", "60s", "--vary", VALUES, "train.py")
    trials = warm_trials()
    process = subprocess.Popen(
        [sys.executable, *OVERDRIVE, *trials.for_command(), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PATHS},
        pass_fds=(trials.descriptor,),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    told = ""
    while "2: lr" not in told:
        told += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "best so far" in out and "goes on from there" in err and "Traceback" not in err
    so_far = (told + out).partition("how far it is: overdrive report ")[2].splitlines()[0]
    shown = warm_overdrive("report", so_far, cwd=folder)
    assert shown.returncode == 0 and "Not over yet" in shown.stdout, shown.stderr
    done = warm_overdrive(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "going on from a search" in done.stdout and "the program as it is" not in done.stdout
    assert "Not over yet" not in warm_overdrive("report", so_far, cwd=folder).stdout


@pytest.mark.fault(15)
def test_two_at_once_share_the_search(project: Make, overdrive: Run) -> None:
    folder = project("import time; time.sleep(0.2)").parent
    words = ("search", "--metric", "Accuracy", "--budget", "60s", "--study", "shared", "--vary", VALUES)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "overdrive", *words, "--json", f"{number}.json", "train.py"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": str(number + 1)},  # as if on other machines
            stdout=subprocess.PIPE,
        )
        for number in range(2)
    ]
    told = [process.communicate(timeout=120)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    results = [json.loads((folder / f"{number}.json").read_text()) for number in range(2)]
    assert results[0]["trials"] == results[1]["trials"] and results[0]["comparison"] == results[1]["comparison"]
    assert sum(text.count("the program as it is") for text in told) == 1
    lines = [line for text in told for line in text.splitlines() if line.startswith("[")]
    made = [line for line in lines if re.search(r"\d: lr |, pair ", line)]
    assert len(made) == len(results[0]["trials"]) + len(results[0]["comparison"]["seeds"])
    assert results[0]["spent"] <= 60.0
    told_again = overdrive("report", "shared", cwd=folder)
    assert told_again.returncode == 0 and "fresh seeds" in told_again.stdout, told_again.stderr


@pytest.mark.long
@pytest.mark.fault(9)
def test_the_command_killed_20_times_repeats_no_finished_run(project: Make, overdrive: Run) -> None:
    """At any moment: as it starts, within a run, between two. The budget is longer than all that is killed may take,
    so that each kill finds the search under way."""
    folder = project("import time; time.sleep(0.1)").parent
    moments = [random.Random(number).uniform(0.5, 10.0) for number in range(20)]
    budget = 1.1 * sum(moments)
    words = ("search", "--metric", "Accuracy", "--budget", f"{budget:.0f}s", "--study", "s", "--vary", "lr=0.01..2")
    words = (*words, "train.py")
    told = ""
    for moment in moments:
        process = subprocess.Popen([sys.executable, "-m", "overdrive", *words], cwd=folder, stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=moment)
        process.kill()
        told += process.communicate()[0].decode()
    done = overdrive(*words[:-1], "--json", "result.json", words[-1], cwd=folder)
    assert done.returncode == 0, done.stderr
    told += done.stdout
    result = json.loads((folder / "result.json").read_text())
    finished = [run["values"]["lr"] for run in result["trials"]]
    assert len(finished) == len(set(finished)) and result["spent"] <= budget + 1
    # What was begun anew is what a killed process was at: one run for each kill at most.
    begun = re.findall(r"\d: lr ", told)
    assert len(finished) <= len(begun) <= len(finished) + len(moments)


def test_the_comparison_may_be_of_data_that_the_selection_did_not_see(project: Make, warm_overdrive: Run) -> None:
    folder = project("print('Test score: %.3f' % (50 + lr / 10 + 0.01 * random.random()))").parent
    words = ("--vary", VALUES, "--judge-by", "Test score", "--json", "result.json")
    done = search(warm_overdrive, folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert result["judge"] == "Test score" and result["chosen"]["lr"] in (0.9, 1.1)
    assert all(50 <= run["metric"] < 51 for arm in ("defaults", "chosen") for run in result["comparison"][arm])
    assert all(run["metric"] > 80 for run in result["trials"])
    assert "Test score better by" in done.stdout or "No better" in done.stdout
    missing = search(warm_overdrive, folder, "--vary", "lr=0.1,0.5", "--judge-by", "F1")
    assert missing.returncode == 1 and "nothing to judge by" in missing.stderr, missing.stderr
    late = search(warm_overdrive, folder, "--vary", "lr", "--judge-by", "Test score", "--goal", "9 soonest")
    assert late.returncode == 2 and "no goal that is a time" in late.stderr


def test_all_runs_are_made_under_the_plan(project: Make, warm_overdrive: Run) -> None:
    folder = project("import torch\nprint('Threads:', torch.get_num_threads())").parent
    plan_of(folder, "threads", threads="count = 3")
    words = ("--metric", "Threads", "--vary", "lr=0.1,0.5", "--budget", "60s", "--json", "result.json", "train.py")
    done = warm_overdrive("search", "--plan", "plan.toml", *words, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    runs = [result["defaults"], *result["trials"]]
    assert {run["metric"] for run in runs} == {3.0} and len(runs) >= 2 and result["plan"] == "plan.toml"
    assert not result["run"] and not (folder / "train.search.overdrive.toml").exists()  # it is no better


def test_what_was_chosen_runs_under_the_plan_of_the_search(project: Make, warm_overdrive: Run) -> None:
    folder = project("import torch\nprint('Threads:', torch.get_num_threads())").parent
    plan_of(folder, "threads", threads="count = 3")
    done = search(warm_overdrive, folder, "--plan", "plan.toml", "--vary", VALUES, "--json", "result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert result["verdict"] == "better" and not result["tune"]
    assert result["run"] == "overdrive run --plan train.search.overdrive.toml train.py"  # and a constant to be edited
    assert "whose proof covers it, after the edits" in " ".join(done.stdout.split())
    again = warm_overdrive(*result["run"].split()[1:], cwd=folder)
    assert again.returncode == 0 and "Threads: 3" in again.stdout, again.stderr


@pytest.mark.long
def test_time_to_a_metric(project: Make, warm_overdrive: Run) -> None:
    body = "import time\nfor n in range(4):\n    time.sleep(0.3 / lr ** 0.5)\n    print('Accuracy:', 10.0 * n)"
    folder = project(body).parent
    done = search(
        warm_overdrive, folder, "--vary", "lr=0.1,1", "--goal", "30 soonest", "--json", "result.json", budget="120s"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert result["target"] == 30 and result["defaults"]["reached"] > 1
    assert result["verdict"] == "better" and result["chosen"] == {"lr": 1.0}
    assert " s sooner" in done.stdout


def test_without_optuna_one_sentence_says_what_to_type(project: Make, overdrive: Run, tmp_path: Path) -> None:
    folder = project().parent
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "optuna.py").write_text("raise ImportError('blocked')")
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{blocked}{os.pathsep}{before}"
    try:
        done = search(overdrive, folder, "--vary", "lr=0..1")
        assert done.returncode == 1 and "pip install" in done.stderr and "Traceback" not in done.stderr
        listed = overdrive("search", "--list", "--json", "-", "train.py", cwd=folder)
        assert listed.returncode == 0 and "lr" in listed.stderr
        held("parameters", json.loads(listed.stdout))
    finally:
        os.environ["PYTHONPATH"] = before
