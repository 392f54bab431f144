"""How many ranks of a program run on this machine: they share its memory."""

from __future__ import annotations

import os

RANKS_HERE = "OVERDRIVE_RANKS_HERE"  # for a rank, whose launcher's own variables are hidden


def ranks_here() -> int:
    """As far as a launcher says; 1 for a program that is alone."""
    for name in (RANKS_HERE, "LOCAL_WORLD_SIZE"):
        if (told := os.environ.get(name, "")).isdigit():
            return max(1, int(told))
    return 1
