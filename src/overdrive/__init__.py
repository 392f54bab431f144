"""Overdrive runs a deep-learning program, as its author wrote it, as fast as the machine allows."""

from typing import Any

from overdrive.api import CannotTune, run, tune, using
from overdrive.version import __version__

__all__ = ["CannotTune", "__version__", "load_ipython_extension", "run", "tune", "using"]


def load_ipython_extension(shell: Any) -> None:
    """For `%load_ext overdrive` in a notebook: `%overdrive COMMAND …` and `%%overdrive PLAN`."""
    from overdrive.notebook import load

    load(shell)
