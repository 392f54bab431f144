"""The files that the program reads before its model's first call, compared between hosts: by their size and their ends.

Noted is what Python's `open` and `os.open` open in this process. Libraries that open files in C (h5py, safetensors,
Arrow, OpenCV) and loaders' workers are not seen: what differs there shows in the losses of the first steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.core.file_ends import ENDS, digest_of_ends
from overdrive.core.whose import is_library, is_ours

if TYPE_CHECKING:
    from overdrive.ranks.group import Group
    from overdrive.seams.hub import Seams

_MOST = 1_000  # files, the first ones: of as many small ones all takes 0.1 s
_WHAT = "the files that are read"
# What a host has of its own, or the interpreter does.
_SYSTEMS = ("/dev/", "/proc/", "/sys/", "/etc/", "/usr/", "/run/", "/var/lib/", "/var/run/")
_PREFIXES = tuple(os.path.join(each, "") for each in {sys.prefix, sys.base_prefix} - {"/"})
_CACHES = (os.sep + ".", "/__pycache__/")  # in hidden folders lie settings and caches of libraries


class FilesRead:
    """By this process, from here on. Attributes: `notes`: whether it wants to hear of them, until it has told them."""

    def __init__(self) -> None:
        self.notes = True
        self._since = time.time()
        self._read: dict[str, str] = {}  # as the program names them, and where that is
        self._made: set[str] = set()

    def opened(self, path: Any) -> None:
        """For reading, or to change it in its place."""
        given = os.fsdecode(path)
        if len(self._read) < _MOST and given not in self._read and _may_be_data(place := os.path.abspath(given)):
            self._read[given] = place

    def made(self, path: Any) -> None:
        """By the program itself, which may write what is a rank's own (a time, a name) and read it again."""
        self._made.add(os.path.abspath(os.fsdecode(path)))

    def told(self) -> dict[str, tuple[int, str]]:
        """Size and digest of each by its name, as far as they are files that were there when the program began."""
        self.notes = False
        files = {given: place for given, place in self._read.items() if place not in self._made}
        return {given: found for given, place in files.items() if (found := _looked_at(place, self._since))}


def _may_be_data(place: str) -> bool:
    belongs = place.startswith((*_SYSTEMS, *_PREFIXES)) or is_library(place) or is_ours(place)
    return not (belongs or any(each in place for each in _CACHES))


def _looked_at(place: str, since: float) -> tuple[int, str] | None:
    try:
        found = os.stat(place)
        if not stat.S_ISREG(found.st_mode) or found.st_mtime >= since:  # to open a pipe may take for ever
            return None
        return found.st_size, digest_of_ends(place, found.st_size)
    except (OSError, ValueError):
        return None


class DataCompared:
    """Once, when the model's first call or an optimizer's first step begins.

    Args:
        goes: whether ranks are compared at all.
        say: tells a sentence for all ranks.
    """

    def __init__(
        self, read: FilesRead, group_of: Callable[[], Group], goes: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        self._read, self._group_of, self._goes, self._say = read, group_of, goes, say

    def observe(self, seams: Seams) -> None:
        def model_begins(module: Any) -> None:
            from overdrive.seams.torch.modules import first_parameter

            if first_parameter(module) is not None:  # else a transform, of the first sample
                begins(module)

        def begins(subject: Any) -> None:
            if self._goes():
                seams.model_begins.unsubscribe(model_begins)
                seams.step_begins.unsubscribe(begins)
                if said := compared(self._read.told(), self._group_of()):
                    self._say(f"{said}. If that is data, ranks will part in the first steps: all hosts need the same")

        seams.model_begins.subscribe(model_begins)
        seams.step_begins.subscribe(begins)


def compared(mine: Mapping[str, tuple[int, str]], group: Group) -> str:
    """Which file of one name is not the same for two ranks; "" where none is.

    It is told, and no reason to end: it may be settings of a host's own. Data that differ end in the first steps, in
    the comparison of what these come to.
    """
    own = int(hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()[:15], 16)
    digests = group.of_all([own], _WHAT)
    return differing(_lists(mine, group)) if any(each != digests[0] for each in digests) else ""


def differing(lists: Sequence[tuple[str, Mapping[str, Sequence[Any]]]]) -> str:
    """Which file of two hosts is not the same, and in what; "" where none is. What only one has read is no difference.

    Args:
        lists: of each rank, its host's name, and what `FilesRead.told` gives.
    """
    first: dict[str, int] = {}
    for rank, (host, files) in enumerate(lists):
        for name, (size, digest) in files.items():
            other = first.setdefault(name, rank)
            others_host, others = lists[other]
            if [size, digest] == [*others[name]]:
                continue
            how = f"{size:,} bytes, and {others[name][0]:,} there"
            if size == others[name][0]:
                how = f"{size:,} bytes in both places, of which the first or the last {ENDS:,} are not the same"
            return f"rank {rank} on {host} has another {name} than rank {other} on {others_host} ({how})"
    return ""


def _lists(mine: Mapping[str, tuple[int, str]], group: Group) -> list[tuple[str, dict[str, Any]]]:
    import torch

    words = bytearray(json.dumps([socket.gethostname(), mine]).encode())
    sizes = [each[0] for each in group.of_all([len(words)], _WHAT)]
    told = group.gather(torch.frombuffer(words, dtype=torch.uint8), 0, sizes, _WHAT)
    return [json.loads(bytes(each.tolist())) for each in told.split(sizes)]  # type: ignore[no-untyped-call]
