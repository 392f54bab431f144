"""Overdrive runs a deep-learning program, as its author wrote it, as fast as the machine allows."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

# `python -m overdrive...` looks for modules in the working folder first. What lies there is the program's: its own
# `secrets.py` would be taken for Python's by us. It comes first where the program begins (see `worker.launch`).
if sys.argv[:1] == ["-m"] and not getattr(sys.flags, "safe_path", False):
    _module = next((after for word, after in pairwise(sys.orig_argv) if word == "-m"), "")
    if _module.partition(".")[0] == __name__:
        sys.path[0] = str(Path(__file__).parents[1])

from overdrive.api import CannotTune, run, tune, using
from overdrive.version import __version__

__all__ = ["CannotTune", "__version__", "load_ipython_extension", "run", "tune", "using"]


def load_ipython_extension(shell: Any) -> None:
    """For `%load_ext overdrive` in a notebook: `%overdrive COMMAND …` and `%%overdrive PLAN`."""
    from overdrive.notebook import load

    load(shell)
