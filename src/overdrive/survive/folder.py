"""A run's folder: what the run is, so that the same command goes on with it, and nobody else does."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from overdrive.core.atomic_file import unfinished, write_atomically
from overdrive.survive.identity import RANKS

FORMAT = 3
# Notes why a run that is made again begins from its start, or fetches the samples of all steps.
FROM_START, FETCHES = "from the start", "fetches are made"
DAMAGED = "a damaged snapshot"  # notes a rank's part of one that was deleted
NO_MORE = "no more snapshots"  # notes why none was taken from then on, in the process that noted it
COST, GONE_ON = "a snapshot took", "gone on"  # notes: seconds; after which step, and when the first and this were over
_MANIFEST, _NOTES, _LOCK, _OUTPUT = "run.json", "notes.json", "lock", "output"
_PROCESS = "process"
LEFT = "left-"  # and a number: a folder of what a run had written that was begun from its start again
_SUM = "sha256"  # of all else in such a file
_SEED, _MODULES = "seed", "modules"
_KINDS = {_SEED: str, RANKS: int, FROM_START: str, FETCHES: str, DAMAGED: str, NO_MORE: str, _MODULES: dict}
_PATIENCE = 30.0  # seconds for what a killed run had started: a loader's workers look every five


class Unusable(Exception):
    """The folder cannot be gone on with; the message is one sentence for people."""


def sentence_of(note: str, reason: str) -> str:
    """For people: what comes of such a note."""
    if note == FETCHES:
        return f"made again with the samples of all steps fetched, since without that {reason}"
    if note == DAMAGED:
        return f"a damaged part of a snapshot is left out: {reason}"
    return f"the run begins from its start: {reason}"


class RunFolder:
    """
    Attributes:
        manifest: what the run was when it began.
        notes: what was found out since, of which each is written at once.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], fresh: bool, seed: str = "") -> None:
        """Makes the folder, or opens the one that is there.

        Raises:
            Unusable: it is another program's, or another process has it.
            OSError: it cannot be made or read.
        """
        self.path = path
        self.notes: dict[str, Any]
        if path.exists() and not (path / _MANIFEST).exists() and _others_in(path):
            raise Unusable(
                f"{path} is there already, and is no folder of a run: name another one with --survive=FOLDER"
            )
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_whose(path)
        self._lock()
        try:
            self._open(identity, fresh, seed)
        except BaseException:
            self.close()
            raise

    @classmethod
    def joined(cls, path: Path) -> RunFolder:
        """As a process that the one which holds the folder has started."""
        folder = cls.__new__(cls)
        folder.path = path
        folder.is_new = not folder.output.exists()
        folder.manifest = _read(path / _MANIFEST, needed=_SEED)
        folder.notes = folder.read_notes()
        return folder

    @staticmethod
    def is_finished(path: Path) -> bool:
        """Whether the run there, if there is one, is over."""
        return bool(RunFolder.notes_in(path).get("finished"))

    @staticmethod
    def notes_in(path: Path) -> dict[str, Any]:
        """Of a run that somebody else has open, if there is one."""
        try:
            return _read(path / _NOTES)
        except (OSError, Unusable):  # who opens it tells of that
            return {}

    def _open(self, identity: Mapping[str, Any], fresh: bool, seed: str) -> None:
        path = self.path
        if fresh:
            self._empty()
        self.is_new = not (path / _MANIFEST).exists()
        if self.is_new:
            for each in unfinished(path / _MANIFEST):
                each.unlink()
            self.manifest = {"format": FORMAT, _SEED: seed or secrets.token_hex(16), **identity}
            _write(path / _MANIFEST, self.manifest)
        else:
            self.manifest = _read(path / _MANIFEST, needed=_SEED)
            self._compare(identity)
        self.notes = self.read_notes()

    def read_notes(self) -> dict[str, Any]:
        return _read(self.path / _NOTES) if (self.path / _NOTES).exists() else {}

    @property
    def output(self) -> Path:
        """All that the program has written to standard output."""
        return self.path / _OUTPUT

    def journal_of(self, rank: int) -> Path:
        """Of a rank that has parts of its own; rank 0's is all others', too."""
        return self.path / (f"journal-{rank}" if rank else "journal")

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)

    def note(self, **notes: Any) -> None:
        self.notes.update(notes)
        _write(self.path / _NOTES, self.notes)

    @staticmethod
    def _check_whose(path: Path) -> None:
        """What is in it becomes the user's files and output: nobody else may have put it there."""
        found = path.stat()
        if found.st_uid == os.getuid() and not _others_in(path):
            path.chmod(0o700)  # made by hand
        elif found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise Unusable(f"{path} belongs to another user, or others may write to it: name another folder")

    def _lock(self) -> None:
        """One is the process's own, the other is held by its forks, too: a killed run's may write for a while."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._handles = [os.open(self.path / name, flags, 0o600) for name in (_PROCESS, _LOCK)]
        own, all_forks = self._handles
        until = time.monotonic() + _PATIENCE
        try:
            with _in_use(f"{self.path} is in use by another process: this run is under way already"):
                fcntl.lockf(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with _in_use(f"{self.path} is still in use by processes that an earlier run has started: end them first"):
                while not _locked(all_forks, last=time.monotonic() >= until):
                    time.sleep(0.05)
        except BaseException:
            self.close()
            raise

    def _empty(self) -> None:
        for entry in self.path.iterdir():
            if _stays(entry):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                with contextlib.suppress(FileNotFoundError):
                    entry.unlink()

    def _compare(self, identity: Mapping[str, Any]) -> None:
        for name, value in identity.items():
            then = self.manifest.get(name)
            if then is None or (then != value and name != RANKS):
                raise Unusable(f"{_other(name, then, value)}: --fresh begins the run anew")


def _write(path: Path, told: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps({**told, _SUM: _sum_of(told)}, indent=1) + "\n")


def _read(path: Path, needed: str = _SUM) -> dict[str, Any]:
    """
    Raises:
        Unusable: it is not what was written, or of another version.
        OSError: it cannot be read.
    """
    try:
        found = json.loads(path.read_text())
        if found.get("format", FORMAT) != FORMAT:
            raise Unusable(f"{path.parent} is of another version of Overdrive; --fresh begins the run anew")
        sound = needed in found and found.pop(_SUM) == _sum_of(found)
        sound = sound and all(type(found[name]) is kind for name, kind in _KINDS.items() if name in found)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise Unusable(f"{path} is not what was written; --fresh begins the run anew")
    return dict(found)


def _sum_of(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _stays(entry: Path) -> bool:
    """Whether it is no part of a run: our locks, and what earlier ones had written, which is the user's."""
    return entry.name in (_LOCK, _PROCESS) or entry.name.startswith(LEFT)


def _others_in(path: Path) -> bool:
    """Whether more lies there than what a run leaves which is killed at once."""
    begun = unfinished(path / _MANIFEST)
    return not all(_stays(each) or each in begun for each in path.iterdir())


@contextlib.contextmanager
def _in_use(sentence: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise Unusable(sentence) from None


def _locked(handle: int, last: bool) -> bool:
    """
    Raises:
        OSError: others hold it, and this was the `last` try.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if last:
            raise
        return False
    return True


def _other(name: str, then: Any, now: Any) -> str:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*now, *then]:
            if then.get(key) != now.get(key):
                return f"{key} is not what it was when this run began ({then.get(key)}, and now {now.get(key)})"
    return f"this run began with something else as its {name} ({then}, and now {now})"
