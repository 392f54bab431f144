"""What kind of failure an error of the program is, by its message: libraries have no common class for it."""

from __future__ import annotations

from overdrive.core.out_of_memory import out_of_memory

_BUSY = "busy or unavailable"  # of a GPU in exclusive-process mode, to the second process that asks for it


def kind_of(error: BaseException) -> str:
    if out_of_memory(error):
        return "oom"
    return "busy" if _BUSY in f"{type(error).__name__}: {error}".lower() else "exception"
