"""A digest of the beginning and end of a file: it tells one that was cut off, another version, another split."""

from __future__ import annotations

import hashlib

ENDS = 1 << 16  # bytes of the beginning, and of the end


def digest_of_ends(path: str, size: int) -> str:
    """sha256. `size`: of the file, in bytes.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read(ENDS))
        file.seek(max(0, size - ENDS))
        digest.update(file.read(ENDS))
    return digest.hexdigest()
