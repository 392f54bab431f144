"""What fails while a run is made again: mostly for want of something (a GPU that is still full, a download, a disk),
which is no difference from the first time.

So the snapshots stay, and the same command tries again. The same failure a second time in a row is taken for what
making the run again leads to; want of memory or of a disk never is.
"""

from __future__ import annotations

import contextlib
import errno
import re
from pathlib import Path

from overdrive.core.atomic_file import write_atomically
from overdrive.core.out_of_memory import out_of_memory

_NAME = "failed"  # in the run's folder: the last failure
_ADDRESS = re.compile(r"0x[0-9a-f]+")  # of an object, another one in each process
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
_KEPT = "it failed while it was made again: its snapshots are kept, and the same command tries once more"


def may_be_outage(error: BaseException) -> bool:
    """Whether it says nothing yet of what the run holds, wherever it comes from."""
    return isinstance(error, OSError) or _is_outage(error)


def came_from(call: object, error: BaseException) -> bool:
    """Whether it was raised within this function."""
    code, trace = getattr(call, "__code__", None), error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    return trace is not None


def _is_outage(error: BaseException) -> bool:
    of_disk = isinstance(error, OSError) and error.errno in _OF_DISKS
    return of_disk or out_of_memory(error) or "CUDA error" in str(error)


class Failures:
    """Of one rank, each process of which ends with one at most."""

    def __init__(self, folder: Path, rank: int) -> None:
        """`folder`: the run's."""
        self._path = folder / (f"{_NAME}-{rank}" if rank else _NAME)

    def comes_again(self, error: BaseException) -> bool:
        """Whether the process before this one has ended with it, too; it is noted for the one after it."""
        if _is_outage(error):
            self.forget()
            return False
        told = _told(error)
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.read_text(errors="replace") == told:
                return True
            write_atomically(self._path, told)
        return False

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def what_then(error: BaseException) -> str:
    """For people: what comes of one that does not come again."""
    if _is_outage(error):
        return f"{_KEPT}; --fresh begins the run anew"
    return f"{_KEPT}; if it fails in the same way then, the run begins from its start"


def _told(error: BaseException) -> str:
    place, trace = "", error.__traceback__
    while trace is not None:
        place, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
    return ascii(f"{type(error).__qualname__} at {place}: {_ADDRESS.sub('', str(error))}")
