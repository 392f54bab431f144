"""Overdrive in a notebook: the magics in an IPython shell, and the example as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overdrive import notebook
from overdrive.worker.block_of_code import NO_OPTIMIZER
from tests.conftest import ROOT

shells = pytest.importorskip("IPython.core.interactiveshell")

PLAN = 'overdrive = 1\nprogram = "train.py"\n[[technique]]\nname = "threads"\nsettings = { count = 3 }\n'
MAKES = "import torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
COUNTS = "count = torch.get_num_threads()\n"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN)
    from traitlets.config import Config

    made = shells.InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    made.run_line_magic("load_ext", "overdrive")
    yield made
    shells.InteractiveShell.clear_instance()


def test_a_command_runs_and_its_output_is_in_the_cell(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell("%overdrive techniques threads").success
    assert "threads  (family host" in capsys.readouterr().out
    assert shell.run_cell("%overdrive run nothing.py").success  # the notebook goes on
    said = capsys.readouterr()
    assert "There is no script nothing.py" in said.out and "overdrive run ended with 2" in said.err
    assert "`%%writefile train.py` at the top of a cell" in said.err


def test_a_bar_stays_one_line_and_no_byte_is_an_error(
    shell: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "bar.py").write_text("import sys\nsys.stdout.buffer.write(b'\\r 1%\\r 2%\\nbad \\xff')\n")
    assert shell.run_cell("%overdrive run bar.py").success
    assert capsys.readouterr().out.startswith("\r 1%\r 2%\nbad \ufffd")


def test_a_command_that_is_interrupted_is_shown_to_its_end(
    shell: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's whole group has the signal, so that the command ends by itself."""
    (tmp_path / "says.py").write_text("import time\nprint('begins', flush=True)\ntime.sleep(0.5)\nprint('ends')\n")
    show, calls = notebook._show, list[int]()

    def interrupted(output: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        show(output)

    monkeypatch.setattr(notebook, "_show", interrupted)
    assert isinstance(shell.run_cell("%overdrive run says.py").error_in_exec, KeyboardInterrupt)
    assert "begins\nends\n" in capsys.readouterr().out


def test_a_cell_runs_under_a_plan(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    done = shell.run_cell("%%overdrive plan.toml\n" + MAKES + COUNTS)
    assert done.success and shell.user_ns["count"] == 3
    said = capsys.readouterr().err
    assert NO_OPTIMIZER not in said and "steps under" not in said  # it made none
    assert shell.run_cell(MAKES + COUNTS).success
    assert shell.user_ns["count"] != 3  # and only that cell


def test_a_cell_that_trained_is_told_under_what(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    step = "model(torch.ones(1, 2)).sum().backward()\noptimizer.step()\n"
    assert shell.run_cell("%%overdrive plan.toml\n" + MAKES + step + step).success
    assert capsys.readouterr().err.splitlines()[-1] == "overdrive: 2 steps under threads"


def test_a_cell_that_makes_no_optimizer_is_told(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell("%%overdrive plan.toml\nimport torch\nx = torch.ones(1)").success
    assert NO_OPTIMIZER in capsys.readouterr().err


def test_an_error_in_the_cell_is_the_cells(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    done = shell.run_cell("%%overdrive plan.toml\n1 / 0")
    assert isinstance(done.error_in_exec, ZeroDivisionError)
    said = capsys.readouterr()
    assert NO_OPTIMIZER not in said.err and said.out.count("division by zero") == 1


def test_the_last_value_of_a_cell_is_shown_as_in_any_cell(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell("%%overdrive plan.toml\n" + MAKES + "x = 20\n\nx + 22").success
    assert "42" in capsys.readouterr().out and shell.user_ns["x"] == 20


@pytest.mark.parametrize("line", ["%overdrive", "%%overdrive\n1", "%%overdrive train.py\n1"])
def test_a_line_without_what_it_needs_is_told_what_to_write(
    line: str, shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    done = shell.run_cell(line)
    said = capsys.readouterr()
    assert not done.success and "Write for example: %" in said.err and "Traceback" not in said.out + said.err


@pytest.mark.long
def test_the_example_runs_from_top_to_bottom(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 4
    for cell in cells:
        assert shell.run_cell(cell).success, cell
    said = capsys.readouterr().out
    assert "overdrive: " in said and Path("train.overdrive.toml").exists() and "ended with" not in said
