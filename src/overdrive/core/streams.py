"""What was written and lies in a buffer: of standard output and error, in whose place a program may have put others or
which it may have closed, and of its files."""

from __future__ import annotations

import gc
import io
import os
import stat
import sys
from contextlib import suppress


def flush() -> None:
    """Write what lies in their buffers, as far as they let us: what follows has to be done all the same."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def flush_files() -> None:
    """Write what lies in the buffers of all files that are open, as Python does at its end for each that it takes down.

    One that is held by what lives longer than a program (a hook, a signal's handler, a function in a library's place)
    it does not take down. Takes some 50 ms where PyTorch is loaded.
    """
    for each in gc.get_objects():
        if type(each) in _WRITERS:
            with suppress(Exception):  # it is closed, say, or the disk is full
                if stat.S_ISREG(os.fstat(each.fileno()).st_mode):  # who reads from a pipe may read no more
                    each.flush()
