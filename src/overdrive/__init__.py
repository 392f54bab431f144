"""Overdrive runs a deep-learning program, as its author wrote it, as fast as the machine allows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from overdrive.version import __version__

if TYPE_CHECKING:
    from overdrive.worker.session import Session

__all__ = ["__version__", "using"]


def using(plan: str | Path) -> Session:
    """A block of code, in a notebook or a library, under a plan.

    Example:
        with overdrive.using("train.overdrive.toml"):
            model, optimizer = make()  # make the optimizer inside: that is where models are altered
            train(model, optimizer)

    Techniques that must be there before the process starts are left out, with a line that says so.

    Raises:
        overdrive.core.plan.PlanError: the plan cannot be used; the message names the line.
        OSError: it cannot be read.
    """
    from overdrive.cli.run import announce, announce_removed
    from overdrive.core.plan import Plan
    from overdrive.techniques.catalogue import catalogue
    from overdrive.worker.session import Session

    read = Plan.read(Path(plan), catalogue())
    announce_removed(read)
    return Session([(each.name, each.settings) for each in read.techniques], on_left_out=announce)
