"""Ranks above 0 tell no tracker of experiments of a run that rank 0 tells of: what they would send stays here."""

from __future__ import annotations

import os
from collections.abc import Callable

from overdrive.core.variables import set_variables

_HERE = {"WANDB_MODE": "offline", "NEPTUNE_MODE": "offline", "CLEARML_OFFLINE_MODE": "1"}
SILENT = ("offline", "disabled", "dryrun")  # in which W&B sends nothing; disabled, it starts no process either
_SERVER = "MLFLOW_TRACKING_URI"  # files without one


def keep_here() -> Callable[[], None]:
    """By the trackers' own variables, which a program may overrule. Returns what puts back those that were set."""
    told = {name: value for name, value in _HERE.items() if os.environ.get(name) not in SILENT}
    if _SERVER in os.environ:
        told[_SERVER] = "file:mlruns"
    return set_variables(told)
