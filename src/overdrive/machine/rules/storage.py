"""Findings about where files lie."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding

_GIB = 2**30


def shared_files(survey: Survey) -> Iterator[Finding]:
    for place in survey["storage"]:
        if place["kind"] not in ("parallel file system", "network file system"):
            continue
        if place["use"] == "working folder":
            yield finding(
                "shared_files",
                (Severity.ADVICE, Basis.UNKNOWN, Sure.LIKELY),
                f"The {place['use']} lies on a {place['kind']} ({place['type']}).",
                "Opening each small file asks a server first: with many small samples that is what takes the time.",
                "Pack the finished samples into a few large files, or copy the data to a local disk first.",
                "overdrive pack train.py",
                "docs/data.md",
            )
        else:
            samples = place["use"] == "Overdrive's cache"
            variable, folder = ("OVERDRIVE_CACHE", "cache") if samples else ("TMPDIR", "tmp")
            what = "Cached samples" if samples else "Kernels that torch.compile keeps, and what trials write,"
            yield finding(
                "shared_cache",
                (Severity.ADVICE, Basis.UNKNOWN, Sure.LIKELY),
                f"{place['use'][:1].upper()}{place['use'][1:]}: on a {place['kind']} ({place['type']}).",
                f"{what} go over the network.",
                f"Set {variable} to a folder on a local disk.",
                f"export {variable}=/local/$USER/{folder}",
            )


def slow_disk(survey: Survey) -> Iterator[Finding]:
    for place in survey["storage"]:
        if place["kind"] == "spinning disk" and place["use"] == "working folder":
            yield finding(
                "spinning_disk",
                (Severity.ADVICE, Basis.UNKNOWN, Sure.LIKELY),
                "The working folder lies on a spinning disk.",
                "Each small file in random order costs a movement of the head, some milliseconds.",
                "Read the data from a solid-state disk, or pack it, so that it is read in sequence.",
                "overdrive pack train.py",
                "docs/data.md",
            )
        elif place["kind"] == "container's layer" and place["use"] == "working folder":
            yield finding(
                "container_layer",
                (Severity.NOTE, Basis.CITED, Sure.CERTAIN),
                "The working folder lies in the container's own layer.",
                "Files that are changed there are copied first, and all is gone with the container.",
                "Mount data and results as volumes.",
                "docker run -v /data:/data ...",
                "https://docs.docker.com/engine/storage/drivers/",
            )


def full(survey: Survey) -> Iterator[Finding]:
    seen = set()
    for place in survey["storage"]:
        free = place.get("free_bytes")
        if free is not None and free < _GIB and place["mount"] not in seen and place["kind"] != "memory":
            seen.add(place["mount"])
            yield finding(
                "full",
                (Severity.WRONG, Basis.MEASURED, Sure.CERTAIN),
                f"{place['mount']} ({place['use']}) has {free / _GIB:.2f} GiB left.",
                "Checkpoints and caches cannot be written.",
                "Make room.",
                f"du -xh --max-depth=2 {shlex.quote(place['mount'])} | sort -h | tail",
            )


RULES = (full, shared_files, slow_disk)
