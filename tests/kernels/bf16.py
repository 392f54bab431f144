"""Triton's interpreter cuts bf16 off where a GPU rounds to the nearest, and gets numbers below 1e-38 wrong (3.9.0)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def mend() -> None:
    """Have it convert to and from bf16 as PyTorch does, and GPUs do."""
    plain = interpreter._convert_float

    def convert(given: Any, before: Any, after: Any, rounding: Any) -> Any:
        if before == tl.float32 and after == tl.bfloat16:
            told = torch.from_numpy(np.array(given, np.float32)).bfloat16().view(torch.int16)
            return told.numpy().view(np.uint16)
        if before == tl.bfloat16 and after == tl.float32:
            told = torch.from_numpy(np.array(given).view(np.int16)).view(torch.bfloat16).float()
            return told.numpy().view(np.uint32)
        return plain(given, before, after, rounding)

    interpreter._convert_float = convert
