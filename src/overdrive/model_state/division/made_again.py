"""Activations that are made again in the backward pass, by checkpoints: where nobody watches."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils import checkpoint

from overdrive.model_state.division.chance import Deviation

_CHECKPOINTS = checkpoint.__file__


def refuse_made_again(what: str) -> None:
    """
    Raises:
        Deviation: this is asked for where such activations are made, and hangs on `what`.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINTS:
            raise Deviation(f"its activations are made again in the backward pass, with {what}")
        frame = frame.f_back
