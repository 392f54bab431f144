"""What a library has to offer to answer in a model's place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
# Of one signature: given its inputs, the results in order, in memory of their own. Called by one thread at a time.
Engine = Callable[[Sequence[Array]], Sequence[Array]]


class Runtime(Protocol):
    """A library, in one number format."""

    @property
    def title(self) -> str:
        """As people write it."""

    @property
    def calibrating(self) -> int:
        """Calls whose inputs an engine is built from, for the ranges of values in it; 0: those of one, for shapes."""

    @property
    def narrow(self) -> bool:
        """Whether it computes in fewer bits than the graph says: its answers are none that differ by rounding alone."""

    def missing(self) -> str | None:
        """What has to be installed, as the reason for people; None where all is there. Imports nothing."""

    def build(self, graph: Any, examples: Sequence[Sequence[Array]], threads: int) -> Engine:
        """An engine for inputs of these shapes and types. `examples`: what one call or several were given."""


@contextmanager
def unlogged() -> Iterator[None]:
    """What the libraries tell of their work is no line of the program's."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
