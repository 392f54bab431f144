"""The contents of files, kept by their sha256: what comes out is what went in, or it is said that it is not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from overdrive.survive.journal import Damaged, not_read

CONTENTS = "contents"  # a run's, in its folder
_AT_ONCE = 1 << 20


class Contents:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, digest: str) -> Path:
        return self._folder / digest

    def check(self, digest: str, of: str) -> None:
        """
        Args:
            of: the file whose content it was.

        Raises:
            Damaged: it is not there, or another one.
        """
        for _ in self._parts(digest, of):
            pass

    def copy(self, digest: str, of: str, target: BinaryIO) -> None:
        """
        Raises:
            Damaged: as `check`; what is in `target` by then is not to be used.
            OSError: it cannot be written there.
        """
        for part in self._parts(digest, of):
            target.write(part)

    def _parts(self, digest: str, of: str) -> Iterator[bytes]:
        found = hashlib.sha256()
        try:
            with open(self.path(digest), "rb") as source:
                while part := source.read(_AT_ONCE):
                    found.update(part)
                    yield part
        except OSError as error:
            raise not_read(f"the kept content of {of}", error) from None
        if found.hexdigest() != digest:
            raise Damaged(f"the kept content of {of} is not what was kept")
