"""What a call depends on besides its arguments, so that it can be made again: chance, autocast, torch's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from overdrive.core.rng import States
from overdrive.seams.torch.autocasts import quiet


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
        there, and their gradients would be lost without a word. Whoever put it in force has been told of by then.
        """
        with ExitStack() as stack:
            for kind, enabled, dtype in self._autocast:
                stack.enter_context(quiet(kind, dtype, enabled=enabled, cache_enabled=False))
            yield


class TorchSettings:
    """What the program has told PyTorch, as it is at this moment, of which bits depend: threads, types, algorithms."""

    def __init__(self) -> None:
        self._values = [get() for get, _ in _SETTINGS]
        self._device = torch.get_default_device()

    @contextmanager
    def again(self) -> Iterator[None]:
        now = [get() for get, _ in _SETTINGS]
        self._set(now, self._values)
        try:
            if self._device == torch.get_default_device():  # another thread may have another one
                yield
            else:
                with self._device:
                    yield
        finally:
            self._set(self._values, now)

    @staticmethod
    def _set(now: list[Any], values: list[Any]) -> None:
        for (_, put), value, known in zip(_SETTINGS, values, now, strict=True):
            if value != known:
                put(value)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    _attribute(torch.backends.mkldnn, "enabled"),
)


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
