"""What kind of failure an error of the program is, by its message: libraries have no common class for it."""

from __future__ import annotations

# The last two: libraries that ask the driver for memory themselves, beside PyTorch's allocator.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed")
_BUSY = "busy or unavailable"  # of a GPU in exclusive-process mode, to the second process that asks for it


def kind_of(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".lower()
    if isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY):
        return "oom"
    return "busy" if _BUSY in text else "exception"
