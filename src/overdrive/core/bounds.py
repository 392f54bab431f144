"""What a reader asks of a dataclass's fields before it believes a file: `report.reading.read` holds them to it."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def text(limit: int) -> Any:
    """A field for a text of which a reader shows `limit` characters at most."""
    return field(default="", metadata={"limit": limit})


def positive() -> Any:
    """A field for a number that is above 0 where it is known."""
    return field(default=None, metadata={"positive": True})
