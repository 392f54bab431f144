"""What Overdrive says beside a program's own output."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

_speaking_on: list[Any] = []


def speak_on(stream: Any) -> None:
    """From here on, for as long as the process lives: a program may put another stream in the place of standard error,
    which is its own (a log file) or closed."""
    _speaking_on[:] = [stream]


def errors() -> Any:
    """The stream that we speak on; None where there is none."""
    return _speaking_on[0] if _speaking_on else sys.stderr


def say(text: str) -> None:
    line, stream = f"overdrive: {text}", errors()
    if stream is not None and not _said_above_bars(line, stream):
        with suppress(OSError, ValueError):  # the program has closed it: nobody hears us
            print(line, file=stream)


def announce(name: str, reason: str) -> None:
    """Of a technique that is not there."""
    say(f"left out {name}: {reason}")


def _said_above_bars(line: str, stream: Any) -> bool:
    """Whether it went through tqdm, whose progress bars stand in a line that has not ended: it takes them away, writes,
    and draws them anew."""
    bars: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if not getattr(bars, "_instances", None):
        return False
    try:
        bars.write(line, file=stream)
    except Exception:  # another library by that name, or a stream that is closed
        return False
    return True
