"""What kind of failure an error of the program is, by its message: libraries have no common class for it."""

from __future__ import annotations

_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    # Libraries that ask the driver for memory themselves, beside PyTorch's allocator.
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    # A loader's worker that the kernel has ended, most likely for want of memory, as a trial that it ends.
    "killed by signal: killed",
)
_MOST_CAUSES = 10  # that are looked through: they may go round
_BUSY = "busy or unavailable"  # of a GPU in exclusive-process mode, to the second process that asks for it


def kind_of(error: BaseException) -> str:
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            break
        text = f"{type(cause).__name__}: {cause}".lower()
        if isinstance(cause, MemoryError) or any(words in text for words in _OUT_OF_MEMORY):
            return "oom"
        if _BUSY in text:
            return "busy"
        cause = cause.__cause__
    return "exception"
