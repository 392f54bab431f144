"""`[tool.overdrive]` in pyproject.toml, and completion in the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from overdrive.cli.defaults import BadDefaults, defaults_of, project_file, read_table
from overdrive.cli.group import COMMANDS, cli
from tests.conftest import Run


def tune() -> click.Command:
    found = cli.get_command(click.Context(cli), "tune")
    assert found is not None
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / "deep" / "down"
    folder.mkdir(parents=True)
    return folder


def write(project: Path, text: str) -> Path:
    path = project.parents[1] / "pyproject.toml"
    path.write_text(text)
    return path


TABLE = """
[tool.overdrive]
contract = "exact"
[tool.overdrive.tune]
budget = "2m"
runs = 40
force = true
techniques = ["threads", "allocator"]
"""


def test_the_nearest_file_with_the_table_counts(project: Path) -> None:
    assert project_file(project) is None
    path = write(project, TABLE)
    (project.parent / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert project_file(project) == path
    found = defaults_of(read_table(path), "tune", tune(), COMMANDS)
    assert found == {
        "contract": "exact", "budget": "2m", "runs": "40", "force": True, "only": "threads,allocator",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.overdrive.tune]\nbugdet = '2m'\n", "closest: budget"),
        ("[tool.overdrive.tune]\nbudget = 'soon'\n", "is not a duration"),
        ("[tool.overdrive.tune]\nforce = 'yes'\n", "must be true or false"),
        ("[tool.overdrive.tune]\nruns = { many = 1 }\n", "must be a text or a number"),
        ("[tool.overdrive]\ntune = 3\n", "must be a table"),
        ("[tool.overdrive.tune]\nruns = \n", "no valid TOML"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_sentence(text: str, says: str, project: Path) -> None:
    path = write(project, text)
    with pytest.raises(BadDefaults, match=says):
        defaults_of(read_table(path), "tune", tune(), COMMANDS)


def test_the_line_goes_before_the_file_and_the_file_before_the_default(project: Path, overdrive: Run) -> None:
    write(project, "[tool.overdrive]\nbudget = '7m'\n[tool.overdrive.tune]\ncontract = 'exact'\n")
    (project / "train.py").write_text("raise SystemExit(3)\n")
    assert "contract exact, for at most 7 min" in overdrive("tune", "train.py", cwd=project).stdout
    said = overdrive("tune", "--contract", "rounding", "--budget", "90s", "train.py", cwd=project).stdout
    assert "contract rounding, for at most 1 min 30 s" in said
    assert overdrive("run", "train.py", cwd=project).returncode == 3  # it has no budget, and that is no fault
    write(project, "[tool.overdrive]\nbugdet = '7m'\n")
    done = overdrive("run", "train.py", cwd=project)
    assert done.returncode == 2 and "no command has such an option (closest: budget)" in done.stderr


def parsed(project: Path, name: str, table: str, *line: str) -> dict[str, Any]:
    """What a command of this line has as its parameters, with this table."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    path = write(project, f"[tool.overdrive.{name}]\n{table}\n")
    defaults = defaults_of(read_table(path), name, command, COMMANDS)
    return command.make_context(name, [*line, "train.py"], default_map=defaults).params


@pytest.mark.parametrize(
    ("table", "line", "direction"),
    [
        ("maximize = true", (), "maximize"),
        ("maximize = false", (), None),
        ("minimize = true\nmaximize = false", (), "minimize"),
        ("minimize = true", ("--maximize",), "maximize"),
        ("maximize = true", ("--minimize",), "minimize"),
    ],
)
def test_a_flag_that_stands_for_a_word_is_true_or_false(
    table: str, line: tuple[str, ...], direction: str | None, project: Path
) -> None:
    assert parsed(project, "search", table, *line)["direction"] == direction


def test_an_option_that_may_be_given_several_times_takes_a_list(project: Path) -> None:
    wishes = parsed(project, "search", 'vary = ["lr=0.1,0.2", "batch-size"]')["wishes"]
    assert [each.name for each in wishes] == ["lr", "batch-size"]
    assert len(parsed(project, "search", 'vary = "lr=0.1,0.2"')["wishes"]) == 1
    options = parsed(project, "submit", 'sbatch = ["partition=gpu", "account=mine"]')["options"]
    assert options == ("partition=gpu", "account=mine")
    assert parsed(project, "submit", 'sbatch = ["partition=gpu"]', "--sbatch", "qos=low")["options"] == ("qos=low",)
    with pytest.raises(BadDefaults, match="must be a text or a number, not True"):
        parsed(project, "submit", "sbatch = [true]")


def test_an_option_whose_value_may_be_left_out_may_be_true(project: Path) -> None:
    assert parsed(project, "run", "survive = true")["survive"] == ""
    assert parsed(project, "run", "survive = false")["survive"] is None
    assert parsed(project, "run", 'survive = "kept"')["survive"] == "kept"


def test_no_plan_on_the_line_goes_before_a_plan_in_the_file(project: Path, overdrive: Run) -> None:
    (project / "train.py").write_text("raise SystemExit(3)\n")
    write(project, "[tool.overdrive.run]\nplan = 'nowhere.toml'\n")
    assert overdrive("run", "train.py", cwd=project).returncode == 2
    assert overdrive("run", "--no-plan", "train.py", cwd=project).returncode == 3
    write(project, "[tool.overdrive.run]\nno-plan = true\n")
    done = overdrive("run", "--plan", "nowhere.toml", "train.py", cwd=project)
    assert done.returncode == 2 and "there is no such plan" in done.stderr
    for command in ("run", "search"):
        done = overdrive(command, "--no-plan", "--plan", "nowhere.toml", "train.py", cwd=project)
        assert done.stderr == "overdrive: Give either --plan or --no-plan.\n"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("overdrive tu", {"tune"}),
        ("overdrive tune --bud", {"--budget"}),
        ("overdrive techniques chann", {"channels_last"}),
        ("overdrive tune --contract ex", {"exact"}),
        ("overdrive run tra", {"tra"}),  # a file: the shell completes it
    ],
)
def test_a_shell_is_offered_commands_options_and_names(line: str, offered: set[str], tmp_path: Path) -> None:
    words = line.split()
    code = "import sys; from overdrive.cli import main; sys.argv = ['overdrive']; main()"
    given = {"_OVERDRIVE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **given}, cwd=tmp_path, capture_output=True, text=True
    )
    found = {each.split(",", 1)[1] for each in done.stdout.split()}
    assert found == offered and done.stderr == ""
    assert ("file," in done.stdout) == (line == "overdrive run tra")
