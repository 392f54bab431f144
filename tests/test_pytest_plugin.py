"""The guard for training scripts, in a project of its own, with scripts that got slower or compute something else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from overdrive.core.interval import Interval
from overdrive.insight.guard import Compared
from overdrive.version import __version__
from tests.conftest import IMPORT_TORCH, ROOT
from tests.warm_trials import PATHS, warm_trials

TRAIN = f"""{IMPORT_TORCH}
import time
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.001)
"""
TEST = """
from dataclasses import replace
from overdrive.insight import guard
from tests.warm_trials import in_command

if {trials}:
    in_command(*{trials})
    guard._RULES = replace(guard._RULES, processes=1, most_processes=1)

def test_training(training_guard):
    training_guard("train.py", against={against!r}, budget=240.0, slower=0.2)
"""


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "as it was")
    return folder


def outcome(project: Path, against: str = "HEAD", quick: bool = True) -> subprocess.CompletedProcess[str]:
    """`quick`: one pair of forked processes is measured; in earnest there are three, started afresh."""
    trials = warm_trials()
    told = trials.for_command() if quick else ()
    (project / "test_training.py").write_text(TEST.format(against=against, trials=told))
    plugin = ("-p", "overdrive.pytest_plugin", "-p", "no:cacheprovider")
    if entry_point_is_there():
        plugin = plugin[2:]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin],
        cwd=project,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PATHS},
        pass_fds=(trials.descriptor,),
    )


def entry_point_is_there() -> bool:
    from importlib.metadata import entry_points

    return any(each.value == "overdrive.pytest_plugin" for each in entry_points(group="pytest11"))


@pytest.mark.long
def test_a_script_that_stayed_the_same_passes(project: Path) -> None:
    with (project / "train.py").open("a") as script:
        script.write("# a comment\n")
    done = outcome(project, quick=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
    listed = subprocess.run(["git", "-C", str(project), "worktree", "list"], capture_output=True, text=True).stdout
    assert len(listed.splitlines()) == 1  # nothing is left of the old version


GUARD = ROOT / "examples" / "guard"
ENTRY = "python -m pytest tests/test_training.py"


def test_the_guides_files_are_the_examples_and_run_one_command() -> None:
    guide = (ROOT / "docs" / "guides" / "guard.md").read_text()
    for path in GUARD.iterdir():
        assert f"\n{path.read_text()}```" in guide, path.name
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((GUARD / "workflow.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1]["run"] == ENTRY and f"overdrive-{__version__}-py3" in job["steps"][-2]["run"]
    assert job["steps"][0]["with"]["fetch-depth"] == 0
    ((hook,),) = [each["hooks"] for each in yaml.safe_load((GUARD / "pre-commit-config.yaml").read_text())["repos"]]
    assert hook["entry"] == ENTRY and hook["stages"] == ["pre-push"] and hook["pass_filenames"] is False
    assert re.match(hook["files"], "train.py") and not re.match(hook["files"], "README.md")


@pytest.mark.long
@pytest.mark.parametrize("changed", [False, True])
def test_the_command_of_the_examples_fails_where_training_changed(changed: bool, project: Path) -> None:
    git(project, "update-ref", "refs/remotes/origin/main", "HEAD")
    if changed:
        (project / "train.py").write_text(TRAIN.replace("lr=0.1", "lr=0.2"))
    (project / "tests").mkdir()
    shutil.copy(GUARD / "test_training.py", project / "tests")
    plugin = [] if entry_point_is_there() else ["-p", "overdrive.pytest_plugin"]
    command = [sys.executable, *ENTRY.split()[1:], *plugin]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": PATHS})
    assert done.returncode == changed, done.stdout
    assert ("does not compute what origin/main does" in done.stdout) == changed


def test_a_script_that_got_slower_fails_with_by_how_much(project: Path) -> None:
    (project / "train.py").write_text(TRAIN.replace("sleep(0.001)", "sleep(0.004)"))
    done = outcome(project)
    assert done.returncode == 1 and "train.py is slower than HEAD: a step is 0." in done.stdout, done.stdout


def test_a_script_that_computes_something_else_fails_with_what(project: Path) -> None:
    (project / "old.py").write_text(TRAIN.replace("lr=0.1", "lr=0.2"))
    done = outcome(project, against="old.py")
    assert done.returncode == 1 and "train.py does not compute what old.py does: other" in done.stdout, done.stdout


def test_what_cannot_be_compared_says_why(project: Path) -> None:
    (project / "train.py").write_text("raise ValueError('no')\n")
    done = outcome(project)
    assert done.returncode == 1 and "The new version could not be run" in done.stdout and "ValueError" in done.stdout
    done = outcome(project, against="no-such-revision")
    assert done.returncode == 1 and "git worktree add" in done.stdout


def test_only_what_is_established_is_slower() -> None:
    assert Compared(Interval(0.5, 0.6, 0.7)).slower_than(0.2)
    assert not Compared(Interval(0.5, 0.7, 0.9)).slower_than(0.2)  # up to 1 / 1.2 is allowed
    assert not Compared(None).slower_than(0.0)
