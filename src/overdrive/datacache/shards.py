"""Many small files in a few large ones: plain tar archives, each with an index of its own beside it.

    FOLDER/index.json           all shards, and what was packed
    FOLDER/shard-000000.tar     a plain tar, uncompressed, which `tar` and webdataset read as well
    FOLDER/shard-000000.json    where each file lies in it, its size, modification time and crc32

A shard is written under another name, and renamed when it is whole; its index comes last. So a shard
with an index is whole, and a pack that was broken off goes on after the last of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

from overdrive.core.atomic_file import write_atomically

FORMAT = 1
INDEX = "index.json"
PLAN = "plan.toml"
# A file that fills a quarter of a shard gains nothing by lying in one.
LARGEST_SHARE = 4

_LOCK = ".lock"
_PARTIAL = ".partial-"
_OURS = re.compile(rf"shard-\d{{6}}\.(tar|json)|{INDEX}|{PLAN}|\.lock|\.partial-.*|\..*\.tmp")
_BLOCK = 512  # of a tar: headers and contents fill whole ones
_READERS = 8  # on a parallel file system it is waiting that takes the time
_AT_ONCE = 64  # files that are read ahead
_SUMMED = 8 << 20


class PackError(Exception):
    """Files cannot be packed, or a pack cannot be used; the message is a sentence for people, or its end."""


class File(NamedTuple):
    """A file as it was when it was to be packed."""

    path: str  # absolute, as the program spells it
    size: int
    modified: int  # nanoseconds


class Entry(NamedTuple):
    """Where a packed file's content lies in its shard."""

    path: str
    offset: int
    size: int
    modified: int
    crc: int


class Packing(NamedTuple):
    """What a call of `pack` came to."""

    shards: int
    found: int  # shards that an earlier call had left whole
    files: int
    bytes: int
    changed: int  # files that were changed or gone when their turn came, and are left in their own places


def look_at(paths: Sequence[str]) -> tuple[list[File], int]:
    """The files as they are, in this order, and how many of them are not there."""
    found, missing = [], 0
    for path in dict.fromkeys(paths):
        try:
            status = os.stat(path)
        except OSError:
            missing += 1
            continue
        found.append(File(path, status.st_size, status.st_mtime_ns))
    return found, missing


def cut(files: Sequence[File], shard_size: int) -> list[list[File]]:
    """The files of each shard; the same for the same files."""
    shards: list[list[File]] = [[]]
    held = 0
    for file in files:
        if shards[-1] and held + file.size > shard_size:
            shards.append([])
            held = 0
        shards[-1].append(file)
        held += file.size
    return [shard for shard in shards if shard]


def pack(
    files: Sequence[File],
    folder: Path,
    shard_size: int,
    about: dict[str, Any],
    on_shard: Callable[[int, int], None] = lambda done, total: None,
) -> Packing:
    """Write the files into shards; those that are there already, whole and of the very same files, stay.

    Args:
        about: what to note in the index besides.
        on_shard: told after each shard: shards done, shards in all.

    Raises:
        PackError: the folder holds other things, or another pack writes to it.
        OSError: it cannot be written to; what is whole stays.
    """
    check_folder(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder):
        for left in folder.glob(f"{_PARTIAL}*"):
            left.unlink()
        # Until the new index is there, the old one must not speak of shards that are being replaced.
        (folder / INDEX).unlink(missing_ok=True)
        root = common_root(files)
        plans = cut(files, shard_size)
        began = time.time_ns()
        names, found, changed, packed, size = [], 0, 0, 0, 0
        for number, plan in enumerate(plans):
            tar = folder / f"shard-{number:06d}.tar"
            entries = _whole(tar, root, plan)
            if entries is None:
                entries = _write(tar, root, plan, began)
            else:
                found += 1
            changed += len(plan) - len(entries)
            packed += len(entries)
            size += sum(entry.size for entry in entries)
            names.append(tar.name)
            on_shard(number + 1, len(plans))
        index = {"format": FORMAT, **about, "files": packed, "bytes": size, "shards": names}
        write_atomically(folder / INDEX, json.dumps(index, indent=1) + "\n")
        _remove_others(folder, names)
    return Packing(len(names), found, packed, size, changed)


def common_root(files: Sequence[File]) -> str:
    """The folder that all of them lie in."""
    return os.path.commonpath([os.path.dirname(file.path) for file in files]) if files else os.sep


def check_folder(folder: Path, ours: re.Pattern[str] = _OURS) -> None:
    """`ours`: the names of what may be there already.

    Raises:
        PackError: it is no place to write a pack to.
    """
    try:
        strange = [name for name in os.listdir(folder) if not ours.fullmatch(name)]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise PackError(f"{folder} is a file: choose another folder with --output.") from None
    if strange:
        raise PackError(f"{folder} holds other things ({min(strange)}): choose an empty folder with --output.")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PackError(f"Another `overdrive pack` is writing to {folder}: wait for it.") from None
        except OSError:
            pass  # some parallel file systems have no locks
        yield
    finally:
        os.close(lock)


def _write(tar: Path, root: str, files: Sequence[File], began: int) -> list[Entry]:
    """Write one shard, then its index."""
    partial = tar.with_name(f"{_PARTIAL}{tar.name}")
    index = tar.with_suffix(".json")
    index.unlink(missing_ok=True)
    try:
        with open(partial, "xb") as out, ThreadPoolExecutor(_READERS) as pool:
            entries = []
            for start in range(0, len(files), _AT_ONCE):
                part = files[start : start + _AT_ONCE]
                for file, content in zip(part, pool.map(lambda file: _content(file, began), part), strict=True):
                    if content is not None:
                        entries.append(_append(out, os.path.relpath(file.path, root), file, content))
            out.write(bytes(2 * _BLOCK))
            out.write(bytes(-out.tell() % tarfile.RECORDSIZE))
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        sum_ = _sum(partial)
        os.replace(partial, tar)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    lines = ",\n".join(
        json.dumps([os.path.relpath(each.path, root), each.offset, each.size, each.modified, each.crc])
        for each in entries
    )
    head = json.dumps({"format": FORMAT, "root": root, "bytes": size, "crc32": sum_})[:-1]
    write_atomically(index, f'{head}, "entries": [\n{lines}\n]}}\n')
    return entries


def _content(file: File, began: int) -> bytes | None:
    """What is in the file, or None where it is another one than it was, or may be changed again unseen."""
    try:
        with open(file.path, "rb") as source:
            content = source.read()
            status = os.fstat(source.fileno())
    except OSError:
        return None
    same = (status.st_size, status.st_mtime_ns) == (file.size, file.modified) and len(content) == file.size
    return content if same and file.modified < began else None


def _append(out: IO[bytes], name: str, file: File, content: bytes) -> Entry:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mtime = file.modified // 1_000_000_000
    out.write(info.tobuf(tarfile.PAX_FORMAT))
    offset = out.tell()
    out.write(content)
    out.write(bytes(-len(content) % _BLOCK))
    return Entry(file.path, offset, len(content), file.modified, zlib.crc32(content))


def _whole(tar: Path, root: str, files: Sequence[File]) -> list[Entry] | None:
    """The entries of a shard that an earlier pack finished, if it holds just these files and is unharmed."""
    try:
        entries, was_root, sum_ = _read_index(tar)
        same = was_root == root and [(each.path, each.size, each.modified) for each in entries] == list(files)
        return entries if same and _sum(tar) == sum_ else None
    except (OSError, PackError):
        return None


def _read_index(tar: Path) -> tuple[list[Entry], str, int]:
    """Entries, root, and the whole shard's crc32.

    Raises:
        PackError: it is damaged, or the shard has another size.
        OSError: there is none.
    """
    with open(tar.with_suffix(".json"), "rb") as file:
        text = file.read()
    try:
        data = json.loads(text)
        root, size = str(data["root"]), int(data["bytes"])
        entries = [
            Entry(os.path.join(root, name), int(offset), int(length), int(modified), int(crc))
            for name, offset, length, modified, crc in data["entries"]
        ]
        sound = data["format"] == FORMAT and all(0 < each.offset <= each.offset + each.size <= size for each in entries)
        sum_ = int(data["crc32"])
    except (ValueError, TypeError, KeyError):
        raise PackError(f"the index of {tar} is damaged") from None
    if not sound:
        raise PackError(f"the index of {tar} is damaged, or of another version")
    if os.stat(tar).st_size != size:
        raise PackError(f"{tar} is not whole")
    return entries, root, sum_


def _sum(path: Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while part := file.read(_SUMMED):
            crc = zlib.crc32(part, crc)
    return crc


def _remove_others(folder: Path, names: list[str]) -> None:
    """Shards of an earlier pack that had more of them."""
    kept = {Path(name).stem for name in names}
    for path in folder.glob("shard-*"):
        if path.stem not in kept:
            path.unlink()


def shards_of(index: Path) -> list[Path]:
    """The shards of a pack.

    Raises:
        PackError: there is no pack, or it is another user's.
    """
    folder = index.parent
    try:
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PackError(f"{folder} belongs to another user, or others may write to it")
        data = json.loads(index.read_bytes())
        names = [Path(name).name for name in data["shards"]]
        known = data["format"] == FORMAT
    except OSError as error:
        raise PackError(f"there is no whole pack at {index} ({error.strerror}); run `overdrive pack` (again)") from None
    except (ValueError, TypeError, KeyError):
        raise PackError(f"{index} is damaged; run `overdrive pack` again") from None
    if not known:
        raise PackError(f"{index} is of another version; run `overdrive pack` again")
    return [folder / name for name in names]


def entries_of(tar: Path) -> list[Entry]:
    """What lies in a shard.

    Raises:
        PackError: it cannot be used.
    """
    try:
        return _read_index(tar)[0]
    except OSError as error:
        raise PackError(f"{tar} cannot be read ({error.strerror})") from None
