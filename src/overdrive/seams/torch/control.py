"""What a trial asks of PyTorch itself: seeds, waiting for the device, memory, determinism."""

from __future__ import annotations

import torch


def seed(seed: int) -> None:
    torch.manual_seed(seed)


def synchronize() -> None:
    """Wait for the GPU, where one is in use."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def peak_memory() -> int:
    """The most bytes in use at once so far on all GPUs; 0 where none is used."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return sum(torch.cuda.max_memory_allocated(each) for each in range(torch.cuda.device_count()))


def refuse_chance() -> None:
    """Have operations fail that may differ from run to run."""
    torch.use_deterministic_algorithms(True)


def product_precision(backend: str, operation: str) -> str:
    """What products of 32-bit numbers are rounded to there: "none" where nobody has said."""
    return str(torch._C._get_fp32_precision_getter(backend, operation))


def set_product_precision(backend: str, operation: str, precision: str) -> None:
    torch._C._set_fp32_precision_setter(backend, operation, precision)
