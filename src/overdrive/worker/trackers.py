"""A run's record for who keeps experiments elsewhere: TensorBoard, MLflow, Weights & Biases. Their packages are the
user's; nothing goes over the network unless their own variables say so.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from overdrive.core.run_record import RunRecord

_BATCH = 1000  # metrics that MLflow takes at once


class CannotSend(Exception):
    """The record was not sent; the message is one sentence for people."""


def is_tracker(place: str) -> bool:
    """Whether a record's place names a tracker, `NAME:WHERE`."""
    return place.partition(":")[0] in _TRACKERS and ":" in place


def send(record: RunRecord, place: str) -> None:
    """`tensorboard:FOLDER`, `mlflow:EXPERIMENT` or `wandb:PROJECT`; what stands after the colon may be missing.

    Raises:
        CannotSend: its package is not installed, or fails.
    """
    name, _, where = place.partition(":")
    try:
        _TRACKERS[name](record, where)
    except ImportError as error:
        raise CannotSend(f"the record was not sent to {name}: {error.name or name} is not installed") from None
    except CannotSend:
        raise
    except Exception as error:
        raise CannotSend(f"the record was not sent to {name} ({type(error).__name__}: {error})") from None


def _steps(record: RunRecord) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Of each step, from 1: its loss (the sum, where several were sent backward) and its learning rate."""
    for step, losses in enumerate(record.loss_values, start=1):
        values = {"loss": sum(losses)} if losses else {}
        if step <= len(record.learning_rates):
            values["learning_rate"] = record.learning_rates[step - 1]
        if values:
            yield step, values


def _facts(record: RunRecord) -> dict[str, str]:
    """What is said of the run once."""
    return {
        "program": record.program[:250],
        "techniques": ", ".join(record.techniques) or "none",
        "left_out": ", ".join(record.left_out) or "none",
        "steps": str(record.steps),
        "samples_per_s": f"{record.samples_per_s:.6g}" if record.samples_per_s else "unknown",
    }


def _tensorboard(record: RunRecord, folder: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder or None) as writer:
        writer.add_text("overdrive", "\n\n".join(f"**{key}** {value}" for key, value in _facts(record).items()))
        for step, values in _steps(record):
            for key, value in values.items():
                writer.add_scalar(key, value, step)


def _mlflow(record: RunRecord, experiment: str) -> None:
    import mlflow
    from mlflow.entities import Metric, Param

    client = mlflow.MlflowClient()
    number = mlflow.set_experiment(experiment or "overdrive").experiment_id
    run = client.create_run(number, run_name=record.program[:250]).info.run_id
    client.log_batch(run, params=[Param(key, value) for key, value in _facts(record).items()])
    now = int(time.time() * 1000)
    metrics = [Metric(key, value, now, step) for step, values in _steps(record) for key, value in values.items()]
    for start in range(0, len(metrics), _BATCH):
        client.log_batch(run, metrics=metrics[start : start + _BATCH])
    client.set_terminated(run, "FAILED" if record.error else "FINISHED")


def _wandb(record: RunRecord, project: str) -> None:
    import wandb

    apart: dict[str, Any] = {}
    if getattr(wandb, "run", None) is not None:  # the script's own, which `init` would give back
        if "create_new" not in str(inspect.signature(wandb.init)):  # before 0.19.10
            raise CannotSend("the record was not sent to wandb: the script's own run is open, which it would end")
        apart["reinit"] = "create_new"
    os.environ.setdefault("WANDB_MODE", "offline")
    run = wandb.init(
        **apart,
        project=project or "overdrive",
        name=record.program[:100],
        config=_facts(record),
        settings=wandb.Settings(silent=True),
    )
    for step, values in _steps(record):
        run.log(dict(values), step=step)
    run.finish(exit_code=1 if record.error else 0)


_TRACKERS: Mapping[str, Callable[[RunRecord, str], None]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
NAMES = tuple(_TRACKERS)
