"""Trackers of experiments are to be told of one run by one process: neither by a trial nor by ranks above 0."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from overdrive.core.variables import set_variables

# Comet's first one is asked by `comet_ml.start`, the other by libraries that call it. Older versions of SwanLab know no
# "offline".
_HERE = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "COMET_MODE": "offline",
    "SWANLAB_MODE": "disabled",
}
# In which nothing is sent; disabled, W&B starts no process either.
_SILENT = ("offline", "disabled", "dryrun", "debug", "local")
MLFLOW_FOLDER = "mlruns"  # in a trial's own
# The address of a folder for MLflow, in whole runs that are made for a proof and tell nobody.
STORE = "OVERDRIVE_TRACKED_IN"
_SERVER, _MODELS = "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"  # files without them
_OF_SERVER = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID")  # which nobody else knows
_FILES = "MLFLOW_ALLOW_FILE_STORE"  # else files are refused from 3.13 on
_RESOLVED = (
    ("mlflow.tracking._tracking_service.utils", "_resolve_tracking_uri"),
    ("mlflow.tracking._model_registry.utils", "_resolve_registry_uri"),
)
_CLOUDS = ("databricks", "databricks-uc", "uc")


def kept_here(environment: Mapping[str, str], store: str, servers_alone: bool = True) -> dict[str, str | None]:
    """The trackers' own variables, set so that nothing is sent; None for those that are not to be there. A program may
    overrule them, MLflow's too, for which there is `mlflow_kept_here`.

    Args:
        store: the address of a folder for MLflow.
        servers_alone: MLflow's own files stay where they are.
    """
    told: dict[str, str | None] = {
        name: value for name, value in _HERE.items() if environment.get(name, "").lower() not in _SILENT
    }
    if _is_server(environment.get(_SERVER, "")) or (_SERVER in environment and not servers_alone):
        told |= {_SERVER: store, _FILES: "true"}
        told |= dict.fromkeys((*_OF_SERVER, _MODELS))
    elif _is_server(environment.get(_MODELS, "")):
        told[_MODELS] = None
    return told


def keep_here() -> Callable[[], None]:
    """In this process. Returns what puts back those that were set."""
    return set_variables(kept_here(os.environ, "file:mlruns", servers_alone=False))


def mlflow_kept_here(store: str) -> None:
    """The same wherever the program names a server; call it once MLflow is imported.

    By what MLflow finds a store's address with: what it was given, else what was set, else the environment's.
    """
    os.environ[_FILES] = "true"
    for name, resolve in _RESOLVED:
        module: Any = sys.modules.get(name)
        if plain := getattr(module, resolve, None):
            setattr(module, resolve, _elsewhere(plain, store))


def _elsewhere(resolve: Callable[..., str], store: str) -> Callable[..., str]:
    @functools.wraps(resolve)
    def resolved(*args: Any, **kwargs: Any) -> str:
        found = resolve(*args, **kwargs)
        return store if _is_server(str(found)) else found

    return resolved


def _is_server(address: str) -> bool:
    """Whether a store of MLflow's is no file on this machine."""
    kind = address.partition(":")[0]
    return kind in _CLOUDS or ("://" in address and kind not in ("file", "sqlite"))
