"""The fingerprint of a data set: one hash of all it is made of, equal only where the samples must be equal.

Attributes are followed down to plain values, arrays by their content, code by what it is and refers
to, paths by size and modification time. An object whose state cannot be seen makes it no hash at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from overdrive.changes.files import Files, NoFiles
from overdrive.changes.walk.object_walk import ObjectWalk
from overdrive.changes.watch import Watch


@dataclass(frozen=True)
class Fingerprint:
    """`digest` holds for this process; across processes only where nothing is `hidden`."""

    digest: str
    of_objects: str  # the same without the files that they name
    hidden: str | None  # a kind of object, or another reason, why the digest may not tell two states apart
    hidden_here: str | None  # the same within this process, whose code is what it is, whatever its files say
    open_file: bool  # a file that is read from was among the attributes
    written_file: bool  # or one that is only written to, which is not the process's output
    may_speak: bool  # its code may print, or log
    asks_where: bool  # its code may ask in which process it runs
    asks_mode: bool  # what it makes may hang on whether gradients are recorded, which is watched
    watch: Watch
    files: Files


def fingerprint(*roots: Any, besides: str = "", earlier: Fingerprint | None = None) -> Fingerprint:
    """Take the fingerprint of these objects together; files under the folder `besides` do not count.

    Files that an `earlier` one has looked at are taken for what they were then: half of the time, where there are many.
    """
    return _taken(ObjectWalk(Files(besides, earlier.files if earlier else None)), roots)


def of_objects(*roots: Any) -> str:
    """A fingerprint's `of_objects`, alone: a third of the time, where many files are named."""
    return objects_again(*roots).of_objects


def objects_again(*roots: Any) -> Fingerprint:
    """Of the same objects a while later; files do not count."""
    return _taken(ObjectWalk(NoFiles()), roots)


def _taken(walk: ObjectWalk, roots: tuple[Any, ...]) -> Fingerprint:
    digest, objects = walk.take(roots)
    return Fingerprint(
        digest,
        objects,
        walk.hidden,
        walk.hidden_here,
        walk.open_file,
        walk.written_file,
        walk.may_speak,
        walk.asks_where,
        walk.asks_mode,
        walk.watch,
        walk.files,
    )
