"""A surviving run's folder, with 10,000 random changes to each of its files: what is put back is the run's own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.sandbox.redirect import WRITES
from overdrive.sandbox.redirected_files import WRITING
from overdrive.survive import part_files, snapshot
from overdrive.survive.before import Before, is_state
from overdrive.survive.changed_paths import changed_paths
from overdrive.survive.files import Files
from overdrive.survive.folder import RunFolder, Unusable
from overdrive.survive.identity import changed_module
from overdrive.survive.inputs import changed_input
from overdrive.survive.journal import Damaged, Journal
from tests.mutations import mutations
from tests.test_mutations import COUNT, nothing_is_run  # noqa: F401

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]


class Survived:
    """A run that survives, with what it has written, beside a file of the user's; and what was written since."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "run"
        (home / "made").mkdir(parents=True)
        self.folder.mkdir()
        (home / "of the user").write_text("theirs")
        (home / "log.csv").write_text("was there")
        self.files = Files(self.folder)
        self.own = {str(home / name) for name in ("log.csv", "made", "made/new", "made/last", "gone")}
        self.files.noting = True
        for path in sorted(self.own):
            self.files.note(path)
        self.files.noting = False
        self._write("")
        journal = Journal(self.folder / "journal")
        journal.add("value", 1.5)
        length, digest = journal.flush()
        self.header = {"step": 1, "rank": 1, "ranks": 2, "journal": {"bytes": length, "sha256": digest}}
        self.header |= {"printed": [4, 0], "positions": [[str(home / "log.csv"), 5, 4096]]}
        self.header |= {"files": self.files.states(), "fetching": [None, [], {}]}
        snapshot.write(snapshot.path_of(self.folder, 1), self.header, [np.arange(50, dtype=np.uint8)])
        snapshot.write(snapshot.part_path(self.folder, 1, 1), self.header, [np.arange(50, dtype=np.uint8)])
        self.written: set[str] = set()
        self._listening = True
        sys.addaudithook(self._hear)

    def _write(self, more: str) -> None:
        for name in ("log.csv", "made/new"):
            (self.home / name).write_text(f"step 1{more}")
        link = self.home / "made" / "last"
        link.unlink(missing_ok=True)
        link.symlink_to("new")

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._listening:
            return
        if event == "open" and isinstance(args[0], str) and isinstance(args[2], int) and args[2] & WRITING:
            self.written.add(args[0])
        elif event in WRITES:
            self.written.update(os.fsdecode(path) for path in changed_paths(event, args))

    def put_back(self, states: dict[str, Any]) -> None:
        """It wrote on, and is gone on with. Sees that nothing else was written."""
        self._write(", and more")
        self.written.clear()
        with contextlib.suppress(Damaged, OSError):
            self.files.put_back(states)
        others = self.written - self.own - {str(self.home)}  # which is there
        assert not others, others
        assert (self.home / "of the user").read_text() == "theirs"
        self.files.put_back(self.header["files"])

    def over(self) -> None:
        self._listening = False


@pytest.fixture
def survived(tmp_path: Path) -> Iterator[Survived]:
    found = Survived(tmp_path / "home")
    yield found
    found.over()


def crafted(header: bytes) -> bytes:
    """A snapshot's file with this header: whoever can change one can make its checksum, too."""
    body = snapshot.MAGIC + struct.pack("<Q", len(header)) + header + bytes(50)
    return body + hashlib.sha256(body).digest()


@pytest.mark.fault("more-changes")
def test_what_crafted_snapshots_put_back_is_the_runs_own(survived: Survived) -> None:
    path = snapshot.path_of(survived.folder, 1)
    header = json.dumps({**survived.header, "blocks": [[0, 50]]}).encode()
    taken = 0
    for data in mutations(header, COUNT, seed=18):
        path.write_bytes(crafted(data))
        said: list[str] = []
        found = snapshot.newest_whole(survived.folder, Journal(survived.folder / "journal"), said.append)
        assert (found is None) is bool(said) and "\n" not in "".join(said)
        if found is not None:
            taken += 1
            assert type(found.header["step"]) is int and found.block(0) is not None
            survived.put_back(found.header["files"])
    assert taken > COUNT / 100


@pytest.mark.fault("more-changes")
def test_parts_of_ranks(survived: Survived) -> None:
    """As they lie there, and with the checksum made anew."""
    path = snapshot.part_path(survived.folder, 1, 1)
    whole, header = path.read_bytes(), json.dumps({**survived.header, "blocks": [[0, 50]]}).encode()
    crafts = map(crafted, mutations(header, COUNT // 2, seed=21))
    for data in [*mutations(whole, COUNT // 2, seed=20), *crafts]:
        path.write_bytes(data)
        try:
            found = part_files.newest_whole(survived.folder, 1, 2, Journal(survived.folder / "journal"), print)
        except part_files.Gone as gone:
            assert "\n" not in str(gone) and not path.exists()
        else:
            assert found is not None
            survived.put_back(found.header["files"])


@pytest.mark.fault("more-changes")
def test_lists_of_a_runs_files(survived: Survived) -> None:
    """One that was cut off at the end of a line is a shorter one; a snapshot that names more is none then."""
    path = survived.folder / "before"
    whole, read = path.read_bytes(), 0
    for data in mutations(whole, COUNT, seed=22):
        path.write_bytes(data)
        try:
            found = Before(survived.folder).read()
        except Unusable as error:
            assert "\n" not in str(error)
        else:
            read += 1
            assert list(found.items()) == list(survived.files.before.items())[: len(found)]
            said: list[str] = []
            taken = snapshot.newest_whole(survived.folder, Journal(survived.folder / "journal"), said.append)
            assert (taken is None) is (len(found) < len(survived.own))
    assert read < COUNT / 2


@pytest.mark.fault("more-changes")
def test_crafted_lists_of_a_runs_files(tmp_path: Path) -> None:
    """What has right sums is a path where a run may write, and a state, or it is refused."""
    states = [["absent"], ["file", "0" * 64, 0o644], ["link", "b"], ["folder", 0o700]]
    whole = json.dumps([[f"/a/{number}", state] for number, state in enumerate(states)]).encode()
    listed, refused = tmp_path / "before", 0
    for data in mutations(whole, COUNT, seed=23):
        listed.unlink(missing_ok=True)
        try:
            told, made = json.loads(data), Before(tmp_path)
            for path, state in told:
                made.add(path, state)
        except (ValueError, TypeError, RecursionError):
            continue
        try:
            for path, state in Before(tmp_path).read().items():
                assert os.path.isabs(path) and is_state(state) and not path.startswith(f"{tmp_path}/")
        except Unusable as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > COUNT / 100


@pytest.mark.fault("more-changes")
@pytest.mark.parametrize("name", ["run.json", "notes.json"])
@pytest.mark.parametrize("sums", ["as they are", "made anew"])
def test_what_a_run_is_and_what_is_noted_of_it(name: str, sums: str, tmp_path: Path) -> None:
    """Opened as the same command does it, or refused in one sentence."""
    identity = {"program": ["train.py"], "versions": {"torch": "2.13"}, "number of ranks": 2}
    folder, path = tmp_path / "run", tmp_path / "run" / name
    made = RunFolder(folder, identity, fresh=False)
    made.note(modules={"/a/b.py": "0" * 64}, **{"no more snapshots": "it forks", "gone on": [1, 0.5, 2.5]})
    made.close()
    whole = path.read_bytes()
    told = {key: value for key, value in json.loads(whole).items() if key != "sha256"}
    refused = 0
    for data in mutations(whole if sums == "as they are" else json.dumps(told).encode(), COUNT, seed=24):
        if sums == "made anew":
            with contextlib.suppress(ValueError, RecursionError):
                changed = json.loads(data)
                digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()
                data = json.dumps({**changed, "sha256": digest} if isinstance(changed, dict) else changed).encode()
        path.write_bytes(data)
        assert isinstance(RunFolder.notes_in(folder), dict)
        try:
            again = RunFolder(folder, identity, fresh=False)
        except Unusable as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            assert isinstance(again.manifest["seed"], str) and isinstance(again.manifest["number of ranks"], int)
            assert isinstance(changed_module(again.notes.get("modules", {})), str)
            assert sums == "made anew" or {**again.manifest, **again.notes}.items() >= told.items()
            again.close()
    assert refused > COUNT / 10


@pytest.mark.fault("more-changes")
def test_what_a_run_has_read(tmp_path: Path) -> None:
    """Of these there is no sum: another one refuses the run with the file's name, or is no list."""
    (data_file := tmp_path / "data").write_text("data")
    path = tmp_path / "inputs"
    whole = json.dumps({str(data_file): [4, data_file.stat().st_mtime_ns, "0" * 64]}).encode()
    for data in mutations(whole, COUNT, seed=25):
        path.write_bytes(data)
        assert isinstance(changed_input(tmp_path), str)
