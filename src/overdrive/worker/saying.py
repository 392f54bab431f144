"""What Overdrive says beside a program's own output."""

from __future__ import annotations

import sys
from typing import Any


def say(text: str) -> None:
    line = f"overdrive: {text}"
    if not _said_above_bars(line):
        print(line, file=sys.stderr)


def announce(name: str, reason: str) -> None:
    """Of a technique that is not there."""
    say(f"left out {name}: {reason}")


def _said_above_bars(line: str) -> bool:
    """Whether it went through tqdm, whose progress bars stand in a line that has not ended: it takes them away, writes,
    and draws them anew."""
    bars: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if not getattr(bars, "_instances", None):
        return False
    try:
        bars.write(line, file=sys.stderr)
    except Exception:  # another library by that name, or a stream that is closed
        return False
    return True
