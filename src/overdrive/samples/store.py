"""Tables on disk: a folder a key, raw files that are mapped into memory, and a manifest. Never a pickle.

A table is written under another name and renamed when it is whole, so what stands under a key is
complete; that it is unharmed is checked each time it is opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.atomic_file import write_atomically
from overdrive.samples.files import stats_of
from overdrive.samples.layout import Layout
from overdrive.samples.table import Bytes, Table

FORMAT = 1
# zlib.crc32 sums 2 GB/s on each core and lets other threads run meanwhile; in parts of this size.
_PART = 8 << 20
_SHARE_OF_FREE_DISK = 0.2
_DRAFT = "draft-"


class StoreUnavailable(Exception):
    """The cache folder cannot be used; the message says why."""


def home() -> Path:
    """Where samples are kept: $OVERDRIVE_CACHE, else overdrive/samples in the user's cache folder."""
    if chosen := os.environ.get("OVERDRIVE_CACHE"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "overdrive" / "samples"


class Store:
    """The tables under one folder, which is the user's own and nobody else's to read."""

    def __init__(self, folder: Path, packed: bool = False) -> None:
        """
        Args:
            packed: by `overdrive pack`; nothing is made, changed or removed there.

        Raises:
            StoreUnavailable: it cannot be made, is not there, or belongs to somebody else.
        """
        self.folder = folder
        self.packed = packed
        try:
            if not packed:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                raise StoreUnavailable(f"{folder} belongs to another user, or others may write to it")
        except OSError as error:
            raise StoreUnavailable(f"{folder} cannot be used ({error.strerror})") from None
        if not packed:
            self._clean()

    def open(self, key: str) -> Table | None:
        """The table under this key; None where there is none. A damaged or outdated one is removed."""
        place = self.folder / key
        if not place.exists():
            return None
        try:
            table = _opened(place)
        except Exception:  # whatever stands there, it is not one of ours any more
            table = None
        if table is None:
            self.remove(key)
        elif not self.packed:
            with contextlib.suppress(OSError):
                os.utime(place)  # the least recently used go first
        return table

    def remove(self, key: str) -> None:
        """Take it away at once, so that nobody opens it half removed."""
        if self.packed:
            return
        gone = _new_place(self.folder)
        with contextlib.suppress(OSError):
            os.rename(self.folder / key, gone)
            shutil.rmtree(gone, ignore_errors=True)

    def note(self, key: str, name: str, content: Any) -> bool:
        """Write something short (JSON) beside a table; it goes when the table goes. False where there is no table."""
        place = self.folder / key
        text = json.dumps(content)
        try:
            if not (place / "manifest.json").is_file():
                return False
            write_atomically(place / f"{name}.json", json.dumps({"text": text, "sum": zlib.crc32(text.encode())}))
        except OSError:
            return False
        return True

    def noted(self, name: str) -> Any:
        """What was written down under this name, beside any table; None where there is nothing, or it is damaged."""
        for path in self.folder.glob(f"*/{name}.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                note = json.loads(path.read_text())
                if zlib.crc32(note["text"].encode()) == note["sum"]:
                    return json.loads(note["text"])
        return None

    def draft(self, key: str, layout: Layout, count: int) -> Draft | None:
        """A new table to be filled; None where the disk has no room for it, or another process fills it."""
        size = layout.bytes * count
        if size > self._allowed() or self.busy(key):
            return None
        self._evict(size, besides=key)
        if size > self._allowed() - self._used():
            return None
        try:
            return Draft(self, key, layout, count)
        except OSError:
            return None

    def join(self, key: str) -> Table | None:
        """The table that another process is filling, to be read as far as it goes; None where there is none."""
        place = self.folder / f"{_DRAFT}{key}"
        try:
            if not self.busy(key):
                return None
            layout, count = _read_layout(json.loads((place / "layout.json").read_text()))
            leaves = [_mapped(place / f"{k}.raw", count, leaf.bytes) for k, leaf in enumerate(layout.leaves)]
            return Table(layout, count, leaves, _mapped(place / "present", count, 1).reshape(-1).view(np.bool_))
        except (OSError, ValueError, KeyError, TypeError):  # it has just been finished, or given up
            return None

    def room(self) -> int:
        """Bytes of disk that a table may take, once others have gone for it."""
        return 0 if _in_memory(self.folder) else int(self._allowed())

    def busy(self, key: str) -> bool:
        """Whether a living process fills this table. What a dead one has left is removed."""
        place = self.folder / f"{_DRAFT}{key}"
        try:
            with _locked(place / "lock"):
                shutil.rmtree(place, ignore_errors=True)
        except BlockingIOError:
            return True
        except OSError:
            pass  # there is none
        return False

    def _used(self) -> int:
        return sum(_size_of(place) for place in self._tables())

    def _allowed(self) -> float:
        return _SHARE_OF_FREE_DISK * (shutil.disk_usage(self.folder).free + self._used())

    def _tables(self) -> list[Path]:
        with contextlib.suppress(OSError):
            places = [each for each in self.folder.iterdir() if not each.name.startswith(_DRAFT)]
            return sorted((each for each in places if (each / "manifest.json").is_file()), key=_used_at)
        return []

    def _evict(self, needed: int, besides: str) -> None:
        """Make room, the longest unused first. A table that is in use stays readable until it is let go."""
        for place in self._tables():
            if needed <= self._allowed() - self._used():
                return
            if place.name != besides:
                self.remove(place.name)

    def _clean(self) -> None:
        """Remove the drafts of processes that are gone: those whose lock is free."""
        for place in self.folder.glob(_DRAFT + "*"):
            with contextlib.suppress(OSError), _locked(place / "lock"):
                shutil.rmtree(place, ignore_errors=True)


class Draft:
    """A table on disk that is being filled."""

    def __init__(self, store: Store, key: str, layout: Layout, count: int) -> None:
        self._store = store
        self._key = key
        self._began = time.time_ns()
        self.place = _new_place(store.folder)
        self.place.mkdir(mode=0o700)
        self._lock = os.open(self.place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leaves = [
                _new_file(self.place / f"{number}.raw", count * leaf.bytes).reshape(count, leaf.bytes)
                for number, leaf in enumerate(layout.leaves)
            ]
            present = _new_file(self.place / "present", count).view(np.bool_)
            (self.place / "layout.json").write_text(json.dumps({"layout": layout.to_json(), "count": count}))
            self._claim(store.folder / f"{_DRAFT}{key}")
        except OSError:
            self.abandon()
            raise
        self.table = Table(layout, count, leaves, present)

    def _claim(self, name: Path) -> None:
        """Take the name under which other processes find it. Only one can: the others' folder is not empty."""
        os.rename(self.place, name)
        self.place = name

    def finish(self, opened: list[str], seconds: float) -> bool:
        """Put the whole table into its place; False where that was not to be.

        Args:
            opened: the files that samples were read from, as far as the key does not know them.
            seconds: how long filling took.
        """
        depends = stats_of(opened)
        if depends is None or any(modified >= self._began for _, _, modified in depends):
            self.abandon()
            return False
        files = [
            {"name": f"{number}.raw", "bytes": held.nbytes, "sums": _sums(held.reshape(-1))}
            for number, held in enumerate(self.table.leaves)
        ]
        manifest = {
            "format": FORMAT,
            "count": self.table.count,
            "layout": self.table.layout.to_json(),
            "files": files,
            "depends": depends,
            "fill_seconds": round(seconds, 3),
        }
        final = self._store.folder / self._key
        try:
            (self.place / "manifest.json").write_text(json.dumps(manifest))
            for name in ("present", "layout.json"):
                (self.place / name).unlink()
            os.rename(self.place, final)
            (final / "lock").unlink()
        except OSError:  # another process was first, or the disk is full: our own table stays mapped
            shutil.rmtree(self.place, ignore_errors=True)
            self._unlock()
            return False
        self._unlock()
        return True

    def abandon(self) -> None:
        """Remove its files. The table stays usable in this process: mapped files live on without a name."""
        shutil.rmtree(self.place, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._lock)
        self._lock = -1


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock; OSError where another process holds it, or has not made it yet."""
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        if time.time() - path.parent.stat().st_mtime < 3600:
            raise
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _new_file(path: Path, size: int) -> Bytes:
    """A file of this size that is mapped for writing. Its blocks are taken now: a full disk met later, while
    writing to mapped memory, would end the process with SIGBUS."""
    with open(path, "x+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype=np.uint8)


def _opened(place: Path) -> Table | None:
    manifest: dict[str, Any] = json.loads((place / "manifest.json").read_text())
    if manifest["format"] != FORMAT:
        return None
    layout, count = _read_layout(manifest)
    depends = [(str(path), int(size), int(modified)) for path, size, modified in manifest["depends"]]
    if stats_of([path for path, _, _ in depends]) != depends:
        return None
    leaves = []
    for leaf, entry in zip(layout.leaves, manifest["files"], strict=True):
        held = _mapped(place / Path(entry["name"]).name, count, leaf.bytes)
        if entry["bytes"] != held.nbytes or _sums(held.reshape(-1)) != entry["sums"]:
            return None
        leaves.append(held)
    return Table(layout, count, leaves, np.ones(count, dtype=np.bool_))


def _read_layout(data: dict[str, Any]) -> tuple[Layout, int]:
    return Layout.from_json(data["layout"]), int(data["count"])


def _mapped(path: Path, count: int, size: int) -> Bytes:
    """A file of `count` rows of `size` bytes, to be read.

    Raises:
        ValueError: it has another size.
    """
    with open(path, "rb") as file:
        if count * size < 1 or os.fstat(file.fileno()).st_size != count * size:
            raise ValueError(f"{path} has another size than {count} times {size}")
        mapped = mmap.mmap(file.fileno(), count * size, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, dtype=np.uint8).reshape(count, size)


def _in_memory(folder: Path) -> bool:
    """Whether the folder's file system lies in memory, so that files there are no relief for it."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        device = os.stat(folder).st_dev
    except OSError:
        return False
    for mount in mounts:
        _, place, kind, *_ = mount.split()
        with contextlib.suppress(OSError):
            if kind in ("tmpfs", "ramfs", "devtmpfs") and os.stat(place).st_dev == device:
                return True
    return False


def _new_place(folder: Path) -> Path:
    return folder / f"{_DRAFT}{os.getpid()}-{os.urandom(6).hex()}"


def _sums(data: Bytes) -> list[int]:
    """crc32 of each part; 600 MB took 0.17 s on two cores."""
    parts = [data[start : start + _PART] for start in range(0, len(data), _PART)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(zlib.crc32, parts))


def _used_at(place: Path) -> float:
    try:
        return place.stat().st_mtime
    except OSError:
        return 0.0


def _size_of(place: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(file.stat().st_size for file in place.iterdir())
    return 0
