"""The manifest of a table as text: JSON, with a checksum of what it says."""

from __future__ import annotations

import json
import zlib
from typing import Any

FORMAT = 1
_SUM = "sum"
_FIELDS = frozenset({"format", "count", "layout", "ragged", "coded", "files", "depends", "fill_seconds"})


def written(manifest: dict[str, Any]) -> str:
    return json.dumps({**manifest, _SUM: _sum(manifest)})


def read(text: str) -> dict[str, Any]:
    """
    Raises:
        ValueError, TypeError, AttributeError: it is not what `written` made.
    """
    manifest: dict[str, Any] = json.loads(text)
    told = manifest.pop(_SUM, None)  # tables of before 2026-11-29 have none, nor any other name
    if not manifest.keys() <= _FIELDS or told not in (None, _sum(manifest)):
        raise ValueError("it was changed")
    return manifest


def _sum(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
