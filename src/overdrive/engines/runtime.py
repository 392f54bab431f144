"""What a library has to offer to answer in a model's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
# Of one signature: given its inputs, the results in order, in memory of their own. Called by one thread at a time.
Engine = Callable[[Sequence[Array]], Sequence[Array]]


class Runtime(Protocol):
    """A module of `overdrive.engines`."""

    TITLE: str  # as people write it

    def missing(self) -> str | None:
        """What has to be installed, as the reason for people; None where all is there. Imports nothing."""

    def build(self, graph: Any, inputs: Sequence[Array], threads: int) -> Engine:
        """An engine for inputs of these shapes and types, which computes in the number formats of the graph."""
