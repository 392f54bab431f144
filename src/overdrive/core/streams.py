"""Standard output and error, in whose place a program may have put others, or which it may have closed."""

from __future__ import annotations

import sys
from contextlib import suppress


def flush() -> None:
    """Write what lies in their buffers, as far as they let us: what follows has to be done all the same."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
