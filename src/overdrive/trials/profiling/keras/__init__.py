"""What a trial records of a Keras program on TensorFlow for `overdrive profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend
from overdrive.trials.profiling.keras.phases import make_timeline
from overdrive.trials.profiling.recorder import Details, NotHere, Timed
from overdrive.trials.profiling.timeline import Timeline

__all__ = ["check", "make_details", "make_timed", "make_timeline"]


def check(seams: Seams) -> None:
    def refuse() -> None:
        if backend() not in ("", "tensorflow"):
            raise NotHere(
                f"a profile of a Keras program needs TensorFlow as its backend, and this one runs on {backend()}"
            )

    def fit(model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        refuse()
        return call(*args, **kwargs)

    seams.fit_called.subscribe(fit)
    seams.step_ends.subscribe(lambda optimizer: refuse() if "keras" in type(optimizer).__module__ else None)


def make_timed(seams: Seams) -> tuple[Timeline, Timed]:
    timeline = make_timeline(seams)
    return timeline, timeline


def make_details(timeline: Timeline, folder: Path) -> Details:
    from overdrive.trials.profiling.keras.details import KerasDetails

    return KerasDetails(timeline, folder)
