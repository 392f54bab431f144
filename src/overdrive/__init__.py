"""Overdrive runs a deep-learning program, as its author wrote it, as fast as the machine allows."""

from overdrive.api import CannotTune, run, tune, using
from overdrive.version import __version__

__all__ = ["CannotTune", "__version__", "run", "tune", "using"]
