"""Whether an error says that memory is short, by its message: libraries have no common class for it."""

from __future__ import annotations

# The last two: libraries that ask the driver for memory themselves, beside PyTorch's allocator.
_WORDS = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed")


def out_of_memory(error: BaseException) -> bool:
    text = f"{type(error).__name__}: {error}".lower()
    return isinstance(error, MemoryError) or any(words in text for words in _WORDS)
