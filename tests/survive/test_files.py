"""Which files belong to a run that survives, and how they are found again when it is made again."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from overdrive.survive.files import Files, open_for_writing
from overdrive.survive.rehearsed_files import RehearsedFiles
from overdrive.survive.state import OtherState
from tests.survive.killed import survive
from tests.survive.test_survive import TRAIN

FOLDER = "torch-demo"  # in the temporary folder, where a program runs


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, in which the working folder is."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary" / FOLDER).mkdir(parents=True)
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "temporary" / FOLDER)
    return tmp_path / "temporary"


@pytest.fixture
def files(temporary: Path) -> Iterator[Files]:
    found = Files(temporary.parent / "run")
    found.listen()
    yield found
    found.noting = False


def made_again(files: Files) -> RehearsedFiles:
    """The process was killed, and another one goes on with its run."""
    files.noting = False
    again = Files(files.kept.path("").parent)
    return RehearsedFiles(files.kept.path("").parent / "replay", again)


def library(text: str) -> CodeType:
    """Code of a library's."""
    return compile(text, "/usr/lib/python3/site-packages/library.py", "exec")


@pytest.mark.parametrize("name", ["torch_best.pt", "tmp_best.pt", "wandb_best.pt", f"{FOLDER}/torch_best.pt"])
def test_a_file_in_the_temporary_folder_is_the_runs(name: str, temporary: Path, files: Files) -> None:
    """Else the run that is made again writes its numbers, of which none is right, into the user's file."""
    (temporary / name).write_text("best")
    then = files.states()
    again = made_again(files)
    again.enter()
    try:
        assert not (temporary / name).exists()
        Path(again.path_to_write(str(temporary / name))).write_text("zeros")
    finally:
        again.leave(then, [])
    assert (temporary / name).read_text() == "best"


@pytest.mark.parametrize(
    "name", ["tmpab12_d34", "tmpab12_d34.pt", "pymp-ab12_d34", "torch-shm-dir-aBcDeF", "torch_x.py"]
)
def test_what_libraries_make_there_passes(name: str, temporary: Path, files: Files) -> None:
    """Sockets, say, which a process that goes on cannot use. A file that lies in the working folder never passes."""
    place = str(temporary / name)
    exec(library("with open(place, 'w') as file: file.write('x')"), {"place": place})
    assert not files.before and not files.counts(place) and files.unkept() == ""
    assert files.counts(str(temporary / FOLDER / name))


def test_a_temporary_folder_that_the_program_makes_is_the_runs(
    temporary: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch's tutorials keep their best model. It has the same name when the run is made again."""
    folder = temporary / "tmpab12cd34"

    def keep(path: Any) -> None:
        folder.mkdir()
        Path(path(str(folder / "best.pt"))).write_text("best")

    keep(files.noted)
    exec(library("open(place, 'w').close()"), {"place": str(folder / "config.json")})
    then = files.states()
    again = made_again(files)
    again.enter()
    try:
        assert not folder.exists()
        keep(again.path_to_write)
        folder.joinpath("best.pt").write_text("zeros")
    finally:
        again.leave(then, [])
    assert (folder / "best.pt").read_text() == "best" and (folder / "config.json").read_text() == ""


def test_what_the_program_keeps_in_a_librarys_temporary_folder_is_told(temporary: Path, files: Files) -> None:
    folder = temporary / "tmpab12cd34"
    exec(library("import os; os.mkdir(folder)"), {"folder": str(folder)})
    exec(library("open(place, 'w').close()"), {"place": str(folder / "log")})
    assert files.unkept() == ""
    Path(files.noted(str(folder / "best.pt"))).write_text("best")
    assert files.unkept() == str(folder / "best.pt")
    (folder / "best.pt").unlink()
    assert files.unkept() == ""
    (folder / "notes").write_text("by a line of the program's")
    assert files.unkept() == str(folder / "notes")


def test_a_temporary_file_is_no_change_of_its_folder(temporary: Path, files: Files) -> None:
    """`tempfile` tells audit hooks of both; all that lies in the temporary folder was copied."""
    (temporary / "large").write_text("of somebody else")
    before = dict(files.before)
    with tempfile.NamedTemporaryFile() as first, tempfile.TemporaryFile():
        assert files.before.keys() - before.keys() <= {first.name}


@pytest.mark.parametrize("move", [lambda *names: os.rename(*names), shutil.move], ids=["rename", "move"])
def test_a_folder_that_is_renamed_has_its_files_there(move: Any, temporary: Path, files: Files) -> None:
    """As checkpoints are made, so that none is seen half written: what is left of it is in the way of the next run."""

    def publish() -> None:
        os.makedirs("step-5.tmp/parts")
        Path("step-5.tmp/parts/model.pt").write_text("5")
        Path("step-5.tmp/config.json").write_text("{}")
        move("step-5.tmp", "step-5")

    publish()
    then = files.states()
    again = made_again(files)
    again.enter()
    try:
        assert os.listdir() == []
        publish()
        assert sorted(os.listdir()) == ["step-5"] and sorted(os.listdir("step-5")) == ["config.json", "parts"]
    finally:
        again.leave(then, [])
    assert Path("step-5/parts/model.pt").read_text() == "5"
    shutil.rmtree("step-5")  # the oldest of them
    Files(files.kept.path("").parent).put_back({})
    assert os.listdir() == []


def _log(path: str) -> str | None:
    return path if path.endswith("/log.csv") else None


@pytest.mark.parametrize("blocks", [1, 0])
def test_what_python_keeps_back_of_an_open_file_is_the_same_or_the_run_is_made_anew(
    blocks: int, temporary: Path, files: Files
) -> None:
    """Its buffer is as large as the blocks of the file system are, which is another one in the run's folder."""
    log = open("log.csv", "w")  # noqa: SIM115
    log.writelines(["1,2\n"] * 3000)
    (_, path, place, size, _), then = open_for_writing(_log)[-1], files.states()
    log.close()
    assert path.endswith("log.csv") and 0 < place < 12_000
    again = made_again(files)
    again.enter()
    log = open("log.csv", "w")  # noqa: SIM115
    log.writelines(["1,2\n"] * 3000)
    try:
        again.leave(then, [[path, place + blocks, size + blocks]])
        assert not blocks and open_for_writing(_log)[-1][1:4] == (path, place, size)
    except OtherState as error:
        again._redirection.exit()
        assert blocks and "log.csv was written in blocks of" in str(error)
    log.close()


# As PyTorch's tutorials keep their best model.
BEST = (
    TRAIN.replace(
        'log = open("log.csv", "a")',
        'import tempfile; kept = tempfile.TemporaryDirectory(); log = open("log.csv", "a")',
    ).replace('"best.pt")', 'kept.name + "/best.pt")')
    + """
best = torch.load(kept.name + "/best.pt")
print(best["step"], *(f"{each.double().sum().item():.17g}" for each in best["model"].values()))
"""
)


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_a_best_model_in_a_temporary_folder_is_kept(tmp_path: Path) -> None:
    """Where the folder is still there, and on another node."""
    temporary = {name: {"TMPDIR": str(tmp_path / name)} for name in ("first", "other")}
    for name in temporary:
        (tmp_path / name).mkdir()
    whole = survive(tmp_path, "whole", BEST, variables=temporary["other"])
    assert whole.returncode == 0, whole.stderr
    parts = [survive(tmp_path, "killed", BEST, dies=dies, variables=temporary["first"]) for dies in (18, 20)]
    left = list((tmp_path / "first").glob("tmp*"))
    assert left, "the folder went with its node only if it was there"
    for each in left:
        shutil.rmtree(each)
    parts.append(survive(tmp_path, "killed", BEST, variables=temporary["first"]))
    told = "".join(each.stderr for each in parts)
    assert told.count("gone on after step") == 2 and "from its start" not in told, told
    assert "".join(each.stdout for each in parts) == whole.stdout


def test_bytecode_is_none_of_the_runs_files(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONPYCACHEPREFIX a run that was made again told of its modules' bytecode as of what it had written."""
    monkeypatch.setattr(sys, "pycache_prefix", str(temporary.parent / "bytecode"))
    files = Files(temporary.parent / "run")
    assert not files.counts(str(temporary.parent / "bytecode" / "data.cpython-311.pyc"))
    assert files.counts(str(temporary / "best.pt"))
