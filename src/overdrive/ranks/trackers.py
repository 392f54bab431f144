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
_SERVER, _MODELS = "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"  # files without them
_OF_SERVER = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID")  # which nobody else knows
_CLOUDS = ("databricks", "databricks-uc", "uc")


def kept_here(environment: Mapping[str, str], store: str, servers_alone: bool = True) -> dict[str, str | None]:
    """The trackers' own variables, set so that nothing is sent; None for those that are not to be there. A program may
    overrule them; `mlflow_kept_here` is for that.

    Args:
        store: the address of a folder for MLflow.
        servers_alone: MLflow's own files stay where they are.
    """
    told: dict[str, str | None] = {
        name: value for name, value in _HERE.items() if environment.get(name, "").lower() not in _SILENT
    }
    if _is_server(environment.get(_SERVER, "")) or (_SERVER in environment and not servers_alone):
        told |= {_SERVER: store, "MLFLOW_ALLOW_FILE_STORE": "true"}  # else refused from 3.13 on
        told |= dict.fromkeys((*_OF_SERVER, _MODELS))
    elif _is_server(environment.get(_MODELS, "")):
        told[_MODELS] = None
    return told


def keep_here() -> Callable[[], None]:
    """In this process. Returns what puts back those that were set."""
    return set_variables(kept_here(os.environ, "file:mlruns", servers_alone=False))


def mlflow_kept_here(store: str) -> None:
    """The same where the program itself names a server; call it once MLflow is imported."""
    for name in ("mlflow", "mlflow.tracking"):
        module: Any = sys.modules.get(name)
        if hasattr(module, "set_tracking_uri"):
            module.set_tracking_uri = _elsewhere(module.set_tracking_uri, store)
    client = getattr(sys.modules["mlflow"], "MlflowClient", None)
    if client is not None:
        client.__init__ = _elsewhere(client.__init__, store)


def _elsewhere(function: Callable[..., Any], store: str) -> Callable[..., Any]:
    def kept(given: Any) -> Any:
        return store if _is_server(str(given)) else given

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*map(kept, args), **{name: kept(value) for name, value in kwargs.items()})

    return called


def _is_server(address: str) -> bool:
    """Whether a store of MLflow's is no file on this machine."""
    kind = address.partition(":")[0]
    return kind in _CLOUDS or ("://" in address and kind not in ("file", "sqlite"))
