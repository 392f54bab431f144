"""Why no snapshot is taken, or none is gone on from."""

from __future__ import annotations


class CannotTake(Exception):
    """The program holds what cannot be put back; the message says what."""


class OtherState(Exception):
    """The run that came here holds other things; the message names the first."""
