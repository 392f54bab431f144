"""The ledger: every trial ever run here, in SQLite, so that a killed tune continues where it was."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

_SCHEMA = 1  # in SQLite's user_version
_WAIT_SECONDS = 5.0  # for another process that is writing
_CREATE = """
CREATE TABLE entry (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    written TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
    UNIQUE (key, kind, name)
)
"""
_UPSERT = """
INSERT INTO entry (key, kind, name, value, checksum) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (key, kind, name) DO UPDATE SET
    value = excluded.value,
    checksum = excluded.checksum,
    written = strftime('%Y-%m-%dT%H:%M:%SZ', 'now')
"""
# A page of a damaged file may hold anything, and then reading it fails in more ways than SQLite's own.
_FAULTS = (sqlite3.Error, OSError, ValueError, OverflowError)
_SHARED_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "fuse")


class Ledger:
    """Values by key (which tune), kind ("duel", "trial", "proof") and name.

    A fault of the file never stops a tune: what cannot be written is kept in memory for as long as the process
    lives, and `notice` says so.
    """

    def __init__(self) -> None:
        self.notice: str | None = None  # one sentence for people, where the ledger is not as it should be
        self._file: sqlite3.Connection | None = None
        self._writable = False
        self._memory: dict[tuple[str, str], dict[str, str]] = {}  # what the file could not take
        self._forgotten: set[str] = set()  # keys that the file could not forget
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """The ledger in this file, made where there is none. A damaged file is set aside, never deleted."""
        ledger = cls()
        try:
            _make_folder(path.parent)
            before = _identity(path)
            try:
                ledger._file = _connect(path)
            except _Damaged:
                aside = _set_aside(path, before)
                ledger._file = _connect(path)
                if aside is not None:
                    ledger.notice = f"The ledger was damaged and is now {aside}; a new one was begun."
            ledger._writable = True
        except _Foreign as error:
            ledger._say(f"The ledger {path} {error}, so nothing is kept of this run.")
        except (_Damaged, *_FAULTS) as error:
            ledger._say(f"The ledger {path} cannot be used ({_reason(error)}), so nothing is kept of this run.")
        return ledger

    @property
    def keeps(self) -> bool:
        """Whether what is remembered now outlives this process; where not, `notice` says why."""
        return self._writable

    def remember(self, key: str, kind: str, name: str, value: Mapping[str, Any]) -> None:
        """Keep a value, in place of an older one of the same key, kind and name. On disk when it returns."""
        text = json.dumps(value, default=_plain)
        with self._lock:
            if self._writable and self._file is not None:
                try:
                    self._file.execute(_UPSERT, (key, kind, name, text, _checksum(key, kind, name, text)))
                    return
                except _FAULTS as error:
                    self._stop_writing(error)
            self._memory.setdefault((key, kind), {})[name] = text

    def recall(self, key: str, kind: str) -> dict[str, dict[str, Any]]:
        """The values by name, in the order in which the names were first remembered."""
        with self._lock:
            texts = dict(self._from_file(key, kind))
            texts.update(self._memory.get((key, kind), {}))
        return {name: json.loads(text) for name, text in texts.items()}

    def forget(self, key: str) -> None:
        """Drop all that was remembered under this key."""
        with self._lock:
            for place in [place for place in self._memory if place[0] == key]:
                del self._memory[place]
            if self._file is None:
                return
            try:
                self._file.execute("DELETE FROM entry WHERE key = ?", (key,))
            except _FAULTS as error:
                self._forgotten.add(key)
                self._stop_writing(error)

    def close(self) -> None:
        with self._lock, contextlib.suppress(*_FAULTS):
            if self._file is not None:
                file, self._file = self._file, None
                file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _from_file(self, key: str, kind: str) -> Iterator[tuple[str, str]]:
        if self._file is None or key in self._forgotten:
            return
        try:
            rows = self._file.execute(
                "SELECT name, value, checksum FROM entry WHERE key = ? AND kind = ? ORDER BY id", (key, kind)
            ).fetchall()
        except _FAULTS as error:
            self._say(f"The ledger cannot be read ({_reason(error)}), so what it held is measured again.")
            return
        for name, text, checksum in rows:
            if _checksum(key, kind, str(name), str(text)) == checksum:
                yield name, text
            else:
                self._say("Part of the ledger is damaged; it was left out and is measured again.")

    def _stop_writing(self, error: Exception) -> None:
        self._writable = False
        self._say(f"The ledger cannot be written ({_reason(error)}), so what follows is not kept.")

    def _say(self, notice: str) -> None:
        """Report the first fault only; the others follow from it."""
        self.notice = self.notice or notice


def default_path() -> Path:
    """$XDG_STATE_HOME/overdrive/ledger.sqlite, or the same under ~/.local/state."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():  # the specification says to ignore these
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:  # a container's user without a name or a home
            return Path(tempfile.gettempdir()) / f"overdrive-{os.getuid()}" / "ledger.sqlite"
    return state / "overdrive" / "ledger.sqlite"


class _Damaged(Exception):
    """The file is no whole SQLite database."""


class _Foreign(Exception):
    """The file is a database that this version did not make; it is left alone."""


def _connect(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _check(file)
        # WAL needs memory that all its processes share, which two machines on one network folder do not.
        _keep_journal(file, "DELETE" if _on_network(path) else "WAL")
        file.execute("PRAGMA synchronous = FULL")
        _prepare(file)
    except sqlite3.OperationalError as error:
        file.close()
        if "malformed" in str(error) or "file format" in str(error):
            raise _Damaged from error
        raise
    except sqlite3.DatabaseError as error:
        file.close()
        raise _Damaged from error
    except BaseException:
        file.close()
        raise
    return file


def _check(file: sqlite3.Connection) -> None:
    if file.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise _Damaged


def _keep_journal(file: sqlite3.Connection, mode: str) -> None:
    """SQLite waits for others everywhere but here: of processes that begin a file at once, all but one are refused."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            file.execute(f"PRAGMA journal_mode = {mode}").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.01)


def _prepare(file: sqlite3.Connection) -> None:
    """Make the table, once, though other processes may be about to do the same."""
    file.execute("BEGIN IMMEDIATE")
    try:
        version = file.execute("PRAGMA user_version").fetchone()[0]
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if not tables and version == 0:
            file.execute(_CREATE)
            file.execute(f"PRAGMA user_version = {_SCHEMA}")
        elif version != _SCHEMA or "entry" not in tables:
            raise _Foreign(f"was not made by this version of Overdrive (its schema is {version})")
        file.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            file.execute("ROLLBACK")
        raise


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat().st_uid
    if os.getuid() not in (0, owner):  # such as a folder that was waiting for us in /tmp
        raise PermissionError(f"{folder} belongs to another user")


def _set_aside(path: Path, seen: tuple[int, int] | None) -> Path | None:
    """Rename a damaged file; None where another process was quicker."""
    if _identity(path) != seen:
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for number in range(2, 100):
        if not aside.exists():
            break
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    # The log goes too: left behind, it would be played back into the new file.
    for suffix in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _on_network(path: Path) -> bool:
    """Whether the file system is one that several machines may share; not sure means no."""
    real = os.path.realpath(path)
    best, kind = "", ""
    try:
        for partition in psutil.disk_partitions(all=True):
            point = partition.mountpoint
            if real.startswith(point.rstrip("/") + "/") and len(point) >= len(best):
                best, kind = point, partition.fstype
    except (OSError, psutil.Error):
        return False
    return kind.startswith(_SHARED_FILE_SYSTEMS)


def _checksum(*texts: str) -> int:
    """A checksum of a value: SQLite would not notice a flipped bit, and a plan could depend on it."""
    return zlib.crc32("\0".join(texts).encode("utf-8", "surrogatepass"))


def _plain(value: Any) -> Any:
    """NumPy's numbers, as numbers."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"the ledger cannot keep a {type(value).__name__}")


def _reason(error: BaseException) -> str:
    if isinstance(error, _Damaged):
        return "damaged"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
