"""What single blocks of a Keras program's steps are recorded for, by its backend's own means."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import BACKENDS, backend
from overdrive.worker.profiling.recorder import LINES, Details, NotHere
from overdrive.worker.profiling.timeline import Timeline
from overdrive.worker.recording import Recorder


class KerasDetails:
    """See `worker.profiling.recorder.Details`. The backend is known when Keras is there: TensorFlow may come before,
    in programs of another backend too."""

    def __init__(self, timeline: Timeline, folder: Path) -> None:
        self._timeline = timeline
        self._folder = folder
        self._models: dict[int, Any] = {}
        self._own: Details | None = None

    def __call__(self, seams: Seams) -> None:
        seams.model_compiled.subscribe(self._compiled)
        seams.framework_ready.subscribe(lambda: self._ready(seams))

    def _compiled(self, model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        self._models[id(model)] = model
        return call(*args, **kwargs)

    def _ready(self, seams: Seams) -> None:
        if self._own is None and "keras" in seams.frameworks and backend() in BACKENDS:
            package = importlib.import_module(f"overdrive.worker.profiling.keras.on_{backend()}")
            self._own = package.make_details(self._timeline, self._folder, self._models)
            self._own(seams)

    def begin(self, what: str, recorder: Recorder) -> None:
        if what == LINES:
            raise NotHere("what to edit is looked for in PyTorch programs only")
        if what and self._own is not None:
            self._own.begin(what, recorder)

    def end(self, what: str, steps: int, seconds: float) -> Mapping[str, Any]:
        return self._own.end(what, steps, seconds) if self._own is not None else {}

    def later(self) -> Mapping[str, Any]:
        return {}
