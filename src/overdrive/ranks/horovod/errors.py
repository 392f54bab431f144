"""The errors that Horovod raises, by its names."""

from __future__ import annotations

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


class HorovodInternalError(RuntimeError):
    """Ranks ask for different things under one name."""


class HostsUpdatedInterrupt(RuntimeError):
    """Never raised: the number of ranks stays what it is."""
