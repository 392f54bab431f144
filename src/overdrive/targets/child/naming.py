"""Names of a model's inputs and outputs, as the signature has them."""

from __future__ import annotations

import re
from collections.abc import Sequence


def name(words: Sequence[str], of: str) -> str:
    """Of one, by its place in what it comes in: a letter stands first. `of`: "input" or "output"."""
    joined = re.sub(r"\W+", "_", "_".join(words))
    return f"{of}_{joined}".rstrip("_") if not joined or joined[0].isdigit() else joined


def distinct(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    for place, each in enumerate(names):
        if each in seen:
            names[place] = f"{each}_{place}"
        seen[names[place]] = place
    return names
