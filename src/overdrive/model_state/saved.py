"""What operations save for their backward pass, taken over by a technique whose own errors do not end that pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from overdrive.seams.points import reason_of

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


def taken_over(pack: Pack, unpack: Unpack, failed: Callable[[str], object]) -> saved_tensors_hooks:
    """
    Args:
        unpack: leaves all that it needs for another try, wherever it fails.
        failed: told why, where it failed once and then did not.
    """

    def tried_twice(packed: Any) -> torch.Tensor:
        try:
            return unpack(packed)
        except Exception as error:
            reason = f"what was let go could not be made again at once ({reason_of(error)})"
        found = unpack(packed)  # an error of the program's own comes once more, and passes
        failed(reason)
        return found

    return saved_tensors_hooks(pack, tried_twice)
