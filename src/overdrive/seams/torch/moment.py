"""What a call depends on besides its arguments, so that it can be made again later: chance and autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from overdrive.core.rng import States


class Circumstances:
    """Autocast as it is at this moment, for the devices in use."""

    def __init__(self) -> None:
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in ("cpu", "cuda")
            if kind == "cpu" or in_use
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        """As it was, but without the cache of cast weights.

        What is cast while no gradients are recorded has none; later uses under the same autocast would find it
        there, and their gradients would be lost without a word.
        """
        with ExitStack() as stack:
            for kind, enabled, dtype in self._autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
            yield


@contextmanager
def chance_as(states: States | None) -> Iterator[None]:
    """Random numbers as they were then; afterwards they go on from where they are now."""
    if states is None:
        yield
        return
    now = States.now()
    states.restore()
    try:
        yield
    finally:
        now.restore()
