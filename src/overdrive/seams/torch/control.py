"""What a trial asks of PyTorch itself: seeds, waiting for the device, memory, determinism."""

from __future__ import annotations

import torch

# By GPU: bytes that PyTorch's allocator counts though they lie in main memory, and the peak before they were taken.
_set_aside: dict[int, tuple[int, int]] = {}


def seed(seed: int) -> None:
    torch.manual_seed(seed)


def synchronize() -> None:
    """Wait for the GPU, where one is in use."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def peak_memory() -> int:
    """The most bytes that PyTorch has held at once so far on all GPUs; 0 where none is used.

    Held, not in use: the memory of CUDA graphs is in no tensor's use between two replays, and nobody else's either.
    What the driver and libraries take for themselves is not counted.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return sum(map(_peak, range(torch.cuda.device_count())))


def _peak(gpu: int) -> int:
    elsewhere, before = _set_aside.get(gpu, (0, 0))
    return max(before, torch.cuda.max_memory_reserved(gpu) - elsewhere)


def set_aside(gpu: int, size: int) -> None:
    """`size` bytes more of main memory are about to be held by PyTorch's allocator as if they were this GPU's."""
    elsewhere, _ = _set_aside.get(gpu, (0, 0))
    _set_aside[gpu] = elsewhere + size, _peak(gpu)


def refuse_chance() -> None:
    """Have operations fail that may differ from run to run."""
    torch.use_deterministic_algorithms(True)


def compute_carefully() -> None:
    """On one thread, without TF32, with deterministic operations where there are any."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)


def product_precision(backend: str, operation: str) -> str:
    """What products of 32-bit numbers are rounded to there: "none" where nobody has said."""
    return str(torch._C._get_fp32_precision_getter(backend, operation))


def set_product_precision(backend: str, operation: str, precision: str) -> None:
    torch._C._set_fp32_precision_setter(backend, operation, precision)
