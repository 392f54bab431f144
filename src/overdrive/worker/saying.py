"""What Overdrive says beside a program's own output."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    print(f"overdrive: {text}", file=sys.stderr)


def announce(name: str, reason: str) -> None:
    """Of a technique that is not there."""
    say(f"left out {name}: {reason}")
