"""Where the phases of a Keras program's step begin and end, on any backend.

What runs in a graph passes as one phase, "graph": what it consists of is told from a recording. Where steps run
eagerly, their parts are phases of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend, started, synchronize
from overdrive.worker.profiling.timeline import GRAPH, WATCHING, Timeline


def make_timeline(seams: Seams) -> Timeline:
    timeline = Timeline(_Wait())
    _Phases(timeline)(seams)
    return timeline


class _Phases:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._watching = False
        self._trained = False

    def __call__(self, seams: Seams) -> None:
        seams.part_run.subscribe(self._run)
        seams.at_work.subscribe(self._looked_at)
        seams.step_ends.subscribe(self._told)

    def _run(self, kind: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = backend()
        if name == "tensorflow":
            if not sys.modules["tensorflow"].executing_eagerly():
                return call(*args, **kwargs)  # traced: nothing of it runs
            self._told(None)
            self._trained = kind == GRAPH
        elif self._timeline.phase == GRAPH:
            return call(*args, **kwargs)  # what of a compiled step passes all the same is a part of it
        elif name == "jax":
            return self._timeline.within(kind, self._done, call, *args, **kwargs)
        return self._timeline.within(kind, call, *args, **kwargs)

    def _done(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """JAX's calls return before their results are there, on a CPU too."""
        result = call(*args, **kwargs)
        if self._timeline.heeded:
            sys.modules["jax"].block_until_ready(result)
        return result

    def _looked_at(self) -> None:
        """A compiled function of TensorFlow's has returned, and is asked which steps it made: that is our own doing."""
        if self._trained and not self._watching:
            self._watching = True
            self._timeline.begin(WATCHING)

    def _told(self, optimizer: Any) -> None:
        self._trained = False
        if self._watching:
            self._watching = False
            self._timeline.end(WATCHING)


class _Wait:
    """For GPUs of TensorFlow and PyTorch, once they have been started; for nothing on a CPU, whose calls return when
    they are done."""

    def __init__(self) -> None:
        self._gpus: bool | None = None

    def __call__(self) -> None:
        if self._gpus is None:
            self._gpus = _gpus()
        if self._gpus:
            synchronize()


def _gpus() -> bool | None:
    """None while that cannot be told without starting them."""
    if backend() == "torch":
        return bool(sys.modules["torch"].cuda.is_available())
    if backend() != "tensorflow":
        return False if backend() else None  # what JAX gives is waited for where it is given
    found = started()
    return bool(found.list_physical_devices("GPU")) if found is not None else None
