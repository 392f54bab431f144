"""Files of a run are kept by what they hold: whatever was damaged there is not written into the user's files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overdrive.survive import snapshot
from overdrive.survive.before import Before, is_state
from overdrive.survive.contents import CONTENTS, Contents
from overdrive.survive.file_states import State
from overdrive.survive.files import Files
from overdrive.survive.folder import LEFT, Unusable
from overdrive.survive.journal import Damaged, Journal
from overdrive.survive.left_behind import put_back
from overdrive.survive.rehearsed_files import RehearsedFiles
from tests.survive.killed import files_of, survive
from tests.survive.test_survive import TRAIN


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


Damage = Callable[[Path], object]
DAMAGES: dict[str, Damage] = {"a bit": _flip, "cut off": _cut, "gone": Path.unlink}
damages = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


class Run:
    """One that has written a log over one of the user's, and a model."""

    def __init__(self, place: Path) -> None:
        self.folder, self.log, self.model = place / "run", place / "log.csv", place / "model.pt"
        self.folder.mkdir()
        self.log.write_text("of the user")
        self.files = Files(self.folder)
        self.files.noting = True
        self.journal = Journal(self.folder / "journal")

    def writes(self, step: int) -> dict[str, State]:
        """The states of its files after it."""
        for path in (self.log, self.model):
            self.files.note(str(path))
            path.write_text(f"{path.name} of step {step}")
        return self.files.states()

    def keeps(self, step: int, **other: Any) -> None:
        """A snapshot."""
        files = self.writes(step)
        length, digest = self.journal.flush()
        header = {"step": step, "journal": {"bytes": length, "sha256": digest}, "printed": [0, 0], "positions": []}
        header |= {"files": files, "fetching": [None, [], {}], **other}
        snapshot.write(self.folder / "candidate", header, [])
        snapshot.keep(self.folder / "candidate", self.folder, step)

    def kept(self, text: str) -> Path:
        return self.folder / CONTENTS / hashlib.sha256(text.encode()).hexdigest()

    def newest(self, said: list[str]) -> int | None:
        found = snapshot.newest_whole(self.folder, Journal(self.folder / "journal"), said.append)
        return None if found is None else int(found.header["step"])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@damages
@pytest.mark.fault(12)
def test_a_damaged_content_is_not_put_back_and_nothing_else_is(damage: Damage, run: Run) -> None:
    then = run.writes(3)
    run.writes(4)
    damage(run.kept("model.pt of step 3"))
    with pytest.raises(Damaged, match=rf"the kept content of {run.model} (is not what was kept|cannot be read)"):
        run.files.put_back(then)
    assert run.log.read_text() == "log.csv of step 4" and run.model.read_text() == "model.pt of step 4"
    damage(run.kept("of the user"))
    with pytest.raises(Damaged, match=str(run.log)):
        run.files.put_back({})
    assert run.log.read_text() == "log.csv of step 4" and run.model.exists()


@pytest.mark.fault(12)
def test_a_content_that_is_not_needed_may_be_damaged(run: Run) -> None:
    """The file is still as it was then."""
    then = run.writes(3)
    _flip(run.kept("model.pt of step 3"))
    run.log.write_text("later")
    run.files.put_back(then)
    assert run.log.read_text() == "log.csv of step 3"


@pytest.mark.fault(12)
def test_what_is_copied_is_what_was_looked_at(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails may give another content the second time."""
    then = run.writes(3)
    run.writes(4)
    _flip(run.kept("model.pt of step 3"))
    monkeypatch.setattr(Contents, "check", lambda *_: None)
    with pytest.raises(Damaged, match="is not what was kept"):
        run.files.put_back(then)


@damages
@pytest.mark.fault(12)
def test_a_snapshot_whose_files_are_damaged_is_passed_over(damage: Damage, run: Run) -> None:
    for step in (3, 6):
        run.keeps(step)
    said: list[str] = []
    assert run.newest(said) == 6 and not said
    damage(run.kept("model.pt of step 6"))
    assert run.newest(said) == 3
    (told,) = said
    assert told.startswith(f"of step-000000006.snapshot, the kept content of {run.model} ")
    assert told.endswith("; an older snapshot is taken")


@damages
@pytest.mark.fault(12)
def test_where_the_users_own_content_is_damaged_the_run_says_so_and_touches_nothing(damage: Damage, run: Run) -> None:
    """It can neither be made again up to a snapshot, nor begin from its start: both begin with that file."""
    run.keeps(3)
    damage(run.kept("of the user"))
    again = Files(run.folder)
    rehearsed = RehearsedFiles(run.folder / "replay", again)
    for act in (rehearsed.enter, lambda: put_back(again, run.folder, lambda told: None)):
        with pytest.raises(Unusable, match=r"^[^\n]*kept content of .*log\.csv .*: --fresh begins it anew"):
            act()
        assert run.log.read_text() == "log.csv of step 3" and run.model.read_text() == "model.pt of step 3"
    assert not (run.folder / f"{LEFT}1").exists()


@pytest.mark.survive
@pytest.mark.fault(12)
def test_a_killed_run_with_a_damaged_file_goes_on_from_the_snapshot_before(tmp_path: Path) -> None:
    text = TRAIN.replace('open("log.csv", "a")', 'open("log.csv", "a", 1)')  # each line at once: another file each step
    whole = survive(tmp_path, "whole", text)
    first = survive(tmp_path, "killed", text, dies=20)
    older, newest = (snapshot.read(path) for path in sorted((tmp_path / "killed-run").glob("*.snapshot")))
    there = {state[1] for state in older.header["files"].values() if state[0] == "file"}
    own = [state[1] for state in newest.header["files"].values() if state[0] == "file" and state[1] not in there]
    _flip(tmp_path / "killed-run" / CONTENTS / own[0])
    second = survive(tmp_path, "killed", text)
    assert second.returncode == 0 and "is not what was kept; an older snapshot is taken" in second.stderr, second.stderr
    assert f"gone on after step {older.header['step']}\n" in second.stderr, second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


# -- what a snapshot and the list of files name ---------------------------------------------------------------


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    "other",
    [
        {"files": {"/somewhere/else": ["absent"]}},
        {"positions": [["/somewhere/else", 0, 1]]},
        {"printed": 3},
        {"printed": [-1, 0]},
        {"fetching": None},
        {"files": [3]},
        {"positions": [3]},
        {"journal": {"bytes": "9", "sha256": ""}},
    ],
)
def test_a_snapshot_that_names_other_files_is_none(other: dict[str, Any], run: Run) -> None:
    run.keeps(3)
    run.keeps(6, **other)
    said: list[str] = []
    assert run.newest(said) == 3 and "\n" not in said[0] and said[0].startswith("step-000000006.snapshot ")


@pytest.mark.fault(24)
def test_nothing_is_written_or_removed_through_a_link(run: Run, tmp_path: Path) -> None:
    """A folder that the program has replaced by a link to the user's, or of which a snapshot says that it is one."""
    other, made = tmp_path / "other", tmp_path / "made"
    other.mkdir()
    made.mkdir()
    for path in (made, made / "new"):
        run.files.note(str(path))
    (made / "new").write_text("the run's")
    (other / "new").write_text("of the user")
    then = run.files.states()
    run.files.put_back({**then, str(made): ["link", str(other)]})
    assert made.is_symlink() and (other / "new").read_text() == "of the user"
    run.files.put_back(then)
    assert not made.is_symlink() and (made / "new").read_text() == "the run's"
    (made / "new").unlink()
    made.rmdir()
    made.symlink_to(other)
    run.files.put_back({})
    assert not made.is_symlink() and not list(made.iterdir()) and (other / "new").read_text() == "of the user"


LINES: list[tuple[str, State]] = [
    ("/a/b", ["absent"]),
    ("/a/c", ["file", "0" * 64, 0o644]),
    ("/a/\udc80", ["link", "b"]),
    ("/a", ["folder", 0o700]),
]


def _written(folder: Path) -> Path:
    listed = Before(folder)
    for path, state in LINES:
        listed.add(path, state)
    return folder / "before"


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines, b"3"],
        lambda lines: [*lines, b"[]"],
        lambda lines: [*lines, b"[" * 100_000],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[0], lines[0], *lines[1:]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [lines[0].replace(b"/a/b", b"/a/d"), *lines[1:]],
    ],
)
def test_a_list_of_files_that_is_another_one_is_refused(change: Any, tmp_path: Path) -> None:
    path = _written(tmp_path)
    assert Before(tmp_path).read() == dict(LINES)
    path.write_bytes(b"".join(line + b"\n" for line in change(path.read_bytes().splitlines())))
    with pytest.raises(Unusable, match="before is not what was written; --fresh begins the run anew"):
        Files(tmp_path)


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    "place", ["/dev/sda", "/proc/self/mem", "a/b", "/a/../b", "/a//b", "/a\0b", "RUN/run.json", ""]
)
def test_no_run_has_written_there(place: str, tmp_path: Path) -> None:
    Before(tmp_path).add(place.replace("RUN", str(tmp_path)), ["absent"])
    with pytest.raises(Unusable):
        Before(tmp_path).read()


_DIGEST = "0" * 64
NO_STATES: list[Any] = [
    3,
    None,
    {},
    [],
    ["x"],
    ["absent", 1],
    ["folder"],
    ["folder", "7"],
    ["folder", True],
    ["link", 3],
]
NO_STATES += [["link", "a\0"], ["file", _DIGEST[1:], 0], ["file", _DIGEST, -1], ["file", _DIGEST, 0o10000]]
NO_STATES += [["file", f"../{_DIGEST[3:]}", 0]]


@pytest.mark.parametrize("state", NO_STATES)
def test_what_is_no_state(state: Any) -> None:
    assert not is_state(state) and all(is_state(each) for _, each in LINES)


@pytest.mark.fault(13, 14)
def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a kill: nothing had been changed by then. Where the disk was full it is written with the next."""
    path = _written(tmp_path)
    whole = path.read_bytes()
    for cut in (1, 30, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        again = Before(tmp_path)
        found = again.read()
        assert list(found.items()) == LINES[: len(found)] and len(found) < len(LINES)
        again.add("/a/new", ["absent"])
        assert Before(tmp_path).read() == {**found, "/a/new": ["absent"]}
    with monkeypatch.context() as patched:

        def full(*args: object) -> None:
            path.write_bytes(path.read_bytes() + b'["/a/half')
            raise OSError(28, "No space left on device")

        patched.setattr(os, "lseek", full)
        with pytest.raises(OSError, match="No space"):
            again.add("/a/full", ["absent"])
    again.add("/a/last", ["absent"])
    assert list(Before(tmp_path).read())[-3:] == ["/a/new", "/a/full", "/a/last"]


ENDS = """
import os
open("a", "w").write("a")
os.kill(os.getpid(), 9)
"""


@pytest.mark.fault(24)
@pytest.mark.parametrize("name", ["before", "run.json", "notes.json"])
def test_a_file_of_the_folder_that_is_no_more_than_a_number_is_told(name: str, tmp_path: Path) -> None:
    assert survive(tmp_path, "killed", ENDS).returncode == -9
    assert json.loads((tmp_path / "killed-run" / "before").read_text())[0].endswith("/a")
    (tmp_path / "killed-run" / name).write_text("3\n")
    told = survive(tmp_path, "killed", ENDS)
    assert told.returncode == 2 and "Traceback" not in told.stderr, told.stderr
    assert f"{name} is not what was written; --fresh begins the run anew" in told.stderr
    assert (tmp_path / "killed" / "a").read_text() == "a"
    assert survive(tmp_path, "killed", ENDS, "--fresh").returncode == -9
