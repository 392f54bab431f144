"""What PyTorch keeps for a whole process, and what tests that share one must leave as they found it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Cores, threads, precisions, deterministic operations and denormal numbers are as before afterwards."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    # One by one: setting the whole leaves "ieee" where the default is "none".
    places = [(backend, operation) for backend in ("cuda", "mkldnn") for operation in ("matmul", "conv", "rnn")]
    products = torch.get_float32_matmul_precision()
    precisions = [torch._C._get_fp32_precision_getter(*place) for place in places]
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(products)
        for place, precision in zip(places, precisions, strict=True):
            torch._C._set_fp32_precision_setter(*place, precision)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_flush_denormal(False)  # it cannot be read; PyTorch's default
