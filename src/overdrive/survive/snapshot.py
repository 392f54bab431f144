"""A snapshot's file: a header in JSON, raw bytes, and a checksum of all before it.

    b"ODSNAP1\\n" | length of the header, 8 bytes, little endian | header | blocks, one after another | sha256, 32 bytes

The header names each block by its place in the file's third part. It is written under another name, brought to disk,
and renamed: at any moment a file of this name is whole. docs/survive.md has the header's fields.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overdrive.core.atomic_file import sync_folder
from overdrive.survive import restorable
from overdrive.survive.journal import Damaged, Journal, not_read

MAGIC = b"ODSNAP1\n"
_LENGTH = struct.Struct("<Q")
_KEPT = 2


@dataclass(frozen=True)
class Snapshot:
    header: dict[str, Any]
    body: memoryview

    def block(self, number: int) -> memoryview:
        begin, size = self.header["blocks"][number]
        return self.body[begin : begin + size]


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.snapshot"


def part_path(folder: Path, step: int, rank: int) -> Path:
    """Of a rank that has parts of its own; rank 0's is the snapshot's."""
    return folder / f"step-{step:09d}.rank-{rank}.part" if rank else path_of(folder, step)


def write(path: Path, header: dict[str, Any], blocks: Sequence[Any]) -> None:
    """`blocks`: contiguous arrays of bytes.

    Raises:
        OSError: it cannot be written; no other file is left.
    """
    places, end = [], 0
    for block in blocks:
        places.append([end, block.nbytes])
        end += block.nbytes
    text = json.dumps({**header, "blocks": places}).encode()
    temporary = path.with_suffix(".tmp")
    total = hashlib.sha256()
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for part in (MAGIC, _LENGTH.pack(len(text)), text, *blocks):
                file.write(part)
                total.update(part)
            file.write(total.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def read(path: Path) -> Snapshot:
    """
    Raises:
        Damaged: it is not whole.
    """
    try:
        with open(path, "rb") as file:
            data = bytearray(os.fstat(file.fileno()).st_size)  # no more than once, and what is checked is put back
            del data[file.readinto(data) :]
    except OSError as error:
        raise not_read(path.name, error) from None
    start = len(MAGIC) + _LENGTH.size
    whole = memoryview(data)
    if len(data) < start + 32 or whole[: len(MAGIC)] != MAGIC or hashlib.sha256(whole[:-32]).digest() != whole[-32:]:
        raise Damaged(f"{path.name} is not what was written")
    (size,) = _LENGTH.unpack_from(data, len(MAGIC))
    body = whole[start + size : -32]
    try:
        header = json.loads(data[start : start + size])
        blocks = [(begin, long) for begin, long in header["blocks"]]
        sound = type(header["step"]) is int and all(type(each) is int for block in blocks for each in block)
        sound = sound and all(0 <= begin <= begin + long <= len(body) for begin, long in blocks)
    except (ValueError, TypeError, LookupError, RecursionError):
        sound = False
    if not sound:
        raise Damaged(f"{path.name} is no snapshot")
    return Snapshot(header, body)


def found(folder: Path) -> list[Path]:
    """The newest first."""
    return sorted(folder.glob("step-*.snapshot"), reverse=True)


def steps_of(folder: Path) -> list[int]:
    return [int(path.stem.rpartition("-")[2]) for path in found(folder)]


def forget(folder: Path) -> bool:
    """Whether there was one. It needs no room on the disk, as a note would."""
    paths = found(folder)
    for path in [*paths, *folder.glob("step-*.part")]:
        with contextlib.suppress(OSError):
            path.unlink()
    return bool(paths)


def keep(candidate: Path, folder: Path, step: int) -> None:
    """Let it be one of the snapshots, and the oldest go."""
    os.replace(candidate, path_of(folder, step))
    sync_folder(folder)
    kept = found(folder)[:_KEPT]
    others = set(folder.glob("step-*.part")) - {each for path in kept for each in folder.glob(f"{path.stem}.*.part")}
    for path in [*found(folder)[_KEPT:], *others]:
        with contextlib.suppress(OSError):
            path.unlink()


def keep_part(candidate: Path, folder: Path, step: int, rank: int) -> None:
    """Let it be this rank's file of a snapshot, which counts once rank 0 keeps it."""
    os.replace(candidate, part_path(folder, step, rank))
    sync_folder(folder)


def newest_whole(folder: Path, journal: Journal, say: Callable[[str], None]) -> Snapshot | None:
    """The newest that can be gone on from, whose part of the journal was read; others are told of."""
    for path in found(folder):
        try:
            snapshot = read(path)
            restorable.check(snapshot.header, path, journal)
            return snapshot
        except Damaged as error:
            say(f"{error}; an older snapshot is taken")
    return None
