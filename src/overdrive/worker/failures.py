"""What kind of failure an error of the program is, by its message: libraries have no common class for it."""

from __future__ import annotations

from overdrive.core.out_of_memory import out_of_memory

_MOST_CAUSES = 10  # that are looked through: they may go round
# A loader's worker that the kernel has ended, most likely for want of memory, as a trial that it ends.
_WORKER_KILLED = "killed by signal: killed"
_BUSY = "busy or unavailable"  # of a GPU in exclusive-process mode, to the second process that asks for it


def kind_of(error: BaseException) -> str:
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            break
        text = f"{type(cause).__name__}: {cause}".lower()
        if out_of_memory(cause) or _WORKER_KILLED in text:
            return "oom"
        if _BUSY in text:
            return "busy"
        cause = cause.__cause__
    return "exception"
