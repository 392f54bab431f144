"""Losses as they are before a scaler of the program's multiplies them, where these are what is sent backward."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from overdrive.seams.hub import Seams

_WAITING = 8  # losses of a scaler that may wait to be sent backward


class ScaledLosses:
    """A `GradScaler` changes its scale as it goes: what it scaled leaps with that, and says nothing of the loss."""

    def __init__(self, hub: Seams) -> None:
        self._scaled: deque[tuple[Any, Any]] = deque(maxlen=_WAITING)  # a loss times a scale, and the loss
        hub.loss_scaled.subscribe(lambda loss, scaled: self._scaled.append((weakref.ref(scaled), loss)))

    def plain(self, loss: Any) -> Any:
        """Of a loss that is sent backward."""
        return next((plain for scaled, plain in self._scaled if scaled() is loss), loss)
