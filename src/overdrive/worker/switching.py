"""Switches the techniques of a running session: which are on in the next block."""

from __future__ import annotations

from collections.abc import Collection

from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session


def switch(session: Session, on: Collection[str]) -> None:
    """Have these techniques on, and all others off that can be switched; between two steps only.

    What is to be off goes first, the latest installed at the beginning: what is on never lies upon what is gone.
    """
    switchable = [name for name in catalogue() if name in session.handles and catalogue()[name].switchable]
    for name in reversed(switchable):
        if name not in on:
            session.handles[name].off()
    for name in switchable:
        if name in on:
            session.handles[name].on()


def switched_on(session: Session) -> tuple[str, ...]:
    """The techniques that act now."""
    return tuple(name for name in session.active if name in session.handles and session.handles[name].active)
