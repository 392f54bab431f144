"""Files that a run reads: another one is told before anything is gone on with."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from overdrive.survive import inputs
from overdrive.survive.files import Files
from overdrive.survive.identity import changed_module, modules_of_program
from overdrive.survive.inputs import Inputs, changed_input
from tests.survive.killed import PICTURES, survive

pytest.importorskip("torch")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def kept(run: Path, *paths: Path, written: tuple[str, ...] = ()) -> Inputs:
    found = Inputs(run, Files(run).counts)
    for path in paths:
        found.heard(str(path))
    found.keep(set(written))
    return found


def made(path: Path, content: str = "one two") -> Path:
    path.write_text(content)
    os.utime(path, (1e9, 1e9))
    return path


def test_another_content_is_another_file_and_a_copy_is_not(run: Path, tmp_path: Path) -> None:
    data = made(tmp_path / "data.csv")
    kept(run, data)
    assert changed_input(run) == ""
    os.utime(data, (2e9, 2e9))  # copied anew, say
    assert changed_input(run) == ""
    data.write_text("one ten")
    assert changed_input(run) == str(data)
    data.write_text("one two three")
    assert changed_input(run) == str(data)
    data.unlink()
    assert changed_input(run) == ""  # the program will say so itself


def test_modules_that_the_run_has_made_itself_need_not_be_there_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch Geometric writes and imports one in the temporary folder for each layer."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    files = Files(run)
    own, passing, written = tmp_path / "model.py", tmp_path / "temporary" / "torch_layer.py", tmp_path / "layer.py"
    files.before[str(written)] = ["absent"]
    for number, each in enumerate((own, passing, written)):
        module = ModuleType(f"module_of_a_run_{number}")
        module.__file__ = str(made(each))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    noted = modules_of_program(files.made)
    assert str(own) in noted and not {str(passing), str(written)} & noted.keys()
    own.write_text("another")
    assert changed_module(noted) == str(own)


def test_where_there_are_many_only_sizes_count(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_MOST_DIGESTS", 1)
    first, second = made(tmp_path / "a.png"), made(tmp_path / "b.png")
    kept(run, first, second)
    second.write_text("one ten")
    assert changed_input(run) == ""
    second.write_text("one")
    assert changed_input(run) == str(second)


def test_what_is_no_data_does_not_count(run: Path, tmp_path: Path) -> None:
    """What the run writes, what changes while it goes on, code, libraries, what is ours, and what is no file."""
    log, control, code = made(tmp_path / "log"), made(tmp_path / "control"), made(tmp_path / "model.py")
    (tmp_path / ".git").mkdir()
    others = made(tmp_path / ".git" / "HEAD"), Path(os.__file__), Path("/etc/hosts"), made(run / "notes.json")
    found = kept(run, log, control, code, tmp_path, *others)
    control.write_text("stop")
    found.keep({str(log)})
    control.write_text("go on")
    found.keep({str(log)})
    assert inputs.noted_in(run).keys() == set()


def test_what_an_earlier_process_read_stays_noted(run: Path, tmp_path: Path) -> None:
    first, second = made(tmp_path / "a"), made(tmp_path / "b")
    kept(run, first)
    kept(run, second)
    assert inputs.noted_in(run).keys() == {str(first), str(second)}
    first.write_text("another")
    assert changed_input(run) == str(first)


def test_a_damaged_list_is_no_list(run: Path, tmp_path: Path) -> None:
    kept(run, made(tmp_path / "a"))
    for text in ("", "[]", "{", '{"a": 3}', '{"a": [1, 2]}', '{"a": ["x", 2, 3]}'):
        (run / "inputs").write_text(text)
        assert changed_input(run) == ""


def test_who_opens_files_is_heard(run: Path, tmp_path: Path) -> None:
    """By Python's own report of each; a child's are none of the run's."""
    files = Files(run)
    found = Inputs(run, files.counts)
    files.on_read = found.heard
    data, of_child = made(tmp_path / "data"), made(tmp_path / "of-child")
    files.listen()
    try:
        (tmp_path / "data").read_text()
        child = os.fork()
        if child == 0:
            of_child.read_text()
            found.keep(())
            os._exit(0)
        os.waitpid(child, 0)
        with open(tmp_path / "written", "w"):
            pass
    finally:
        files.noting = False
    found.keep(files.before)
    assert inputs.noted_in(run).keys() == {str(data)}
    assert str(tmp_path / "written") in files.before


@pytest.mark.survive
@pytest.mark.fault(28)
def test_a_run_whose_data_was_exchanged_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    data = made(tmp_path / "killed" / "weights.txt")
    text = PICTURES.replace("model = Net()", "print(open('weights.txt').read())\nmodel = Net()")
    first = survive(tmp_path, "killed", text, dies=20)
    assert first.returncode == -signal.SIGKILL
    data.write_text("one ten")
    second = survive(tmp_path, "killed", text)
    assert second.returncode == 2 and "weights.txt is not what it was when this run began" in second.stderr
    data.write_text("one two")
    third = survive(tmp_path, "killed", text)
    assert third.returncode == 0 and "gone on after step" in third.stderr, third.stderr


def test_a_module_that_is_imported_as_it_is_used_is_not_imported_to_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `six.moves` has them, which many libraries bring: one of another system cannot be."""
    from overdrive.survive.names import roots

    class Later(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ModuleNotFoundError("No module named '_gdbm'")

    monkeypatch.setitem(sys.modules, "later", Later("later"))
    assert "later" not in modules_of_program(lambda path: False)
    assert not any(name.startswith("later.") for name, _ in roots(sys._getframe()))
