"""What batches and other things hold, as one number."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch

from overdrive.seams.batches import leaves
from overdrive.seams.torch.layouts import as_bytes, is_plain, kind_of, strided_parts
from overdrive.worker.digests import spacing

_MOST_BYTES_HASHED = 16 << 20  # of each tensor: 16 MiB take about 10 ms


def checksum(thing: Any, crc: int = 0) -> int:
    """crc32 over the tensors, arrays and numbers of a batch, in logical order whatever their memory format.

    Of a tensor of more than 16 MiB, over elements from all over it.
    """
    for leaf in leaves(thing):
        if isinstance(leaf, torch.Tensor):
            crc = _checksum(leaf, crc)
        elif isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            crc = zlib.crc32(f"{leaf.dtype}{leaf.shape}".encode(), crc)
            crc = zlib.crc32(_some(leaf.reshape(-1), leaf.itemsize).tobytes(), crc)
        elif isinstance(leaf, (int, float, str, bool)):
            crc = zlib.crc32(repr(leaf).encode(), crc)
    return crc


def _checksum(tensor: torch.Tensor, crc: int) -> int:
    crc = zlib.crc32(kind_of(tensor).encode(), crc)
    if not is_plain(tensor):
        return checksum(strided_parts(tensor), crc)
    some = _some(tensor.detach().contiguous().reshape(-1), tensor.element_size())
    return zlib.crc32(as_bytes(some.cpu()), crc)


def _some(flat: Any, element_size: int) -> Any:
    most = _MOST_BYTES_HASHED // max(1, element_size)
    return flat[:: spacing(len(flat), most)] if len(flat) > most else flat
