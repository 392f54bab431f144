"""What a program holds, as its framework has it: taken for a snapshot, and put back into a run that came as far."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from overdrive.survive.calls import Calls
    from overdrive.survive.in_keras import InKeras
    from overdrive.survive.in_parts import Parts
    from overdrive.survive.snapshot import Snapshot
    from overdrive.survive.taking import Graphs, Numbers


class Taken(Protocol):
    @property
    def graphs(self) -> Graphs: ...

    @property
    def numbers(self) -> Numbers: ...

    def keeps_draws(self) -> bool:
        """Whether something draws random numbers whose state nobody can save."""


class WayBack(Protocol):
    """All may raise errors: the run holds other things than it held then, or they cannot be put back."""

    def compare(self, folder: Path, follows: bool) -> None: ...

    def put_back(self) -> None: ...

    def go_on(self) -> None:
        """The run is recorded from here on."""


def taken(calls: Calls, parts: Parts | None) -> Taken:
    """`parts`: what this rank has of parameters that are divided.

    Raises:
        CannotTake: there is something that cannot be put back.
    """
    in_keras = _in_keras(calls)
    return _OfTorch(calls, parts) if in_keras is None else in_keras.take()


def besides(calls: Calls, folder: Path) -> dict[str, Any]:
    """For the header, what is not in `Taken.numbers`, the same on all ranks. `folder`: the run's, whose files do not
    count."""
    if _in_keras(calls) is not None:
        return {"fetching": [None, [], {}]}
    fetching = calls.fetching
    return {
        "gradients there": calls.gradients.told(),
        "fetching": fetching.told(folder) if fetching else [None, [], {}],
    }


def _in_keras(calls: Calls) -> InKeras | None:
    """Where that is what trains."""
    return calls.in_keras if calls.in_keras is not None and calls.in_keras.trains else None


def way_back(calls: Calls, target: Snapshot, parts: Parts | None) -> WayBack:
    if "keras" not in target.header:
        return _TorchBack(calls, target, parts)
    assert calls.in_keras is not None, "Keras has not been imported"
    return calls.in_keras.way_back(target)


class _OfTorch:
    def __init__(self, calls: Calls, parts: Parts | None) -> None:
        from overdrive.survive import heap, state

        self._calls = calls
        if parts is not None:
            parts.settle()
        self.graphs = heap.Heap(sys._getframe(), parts)
        self.numbers = state.Taking(self.graphs, calls.states, parts)

    def keeps_draws(self) -> bool:
        from overdrive.survive import state

        return state.some_keep_draws(self._calls.made.models)


class _TorchBack:
    def __init__(self, calls: Calls, target: Snapshot, parts: Parts | None) -> None:
        self._calls, self._target, self._parts = calls, target, parts

    def compare(self, folder: Path, follows: bool) -> None:
        if self._calls.fetching:
            self._calls.fetching.compare(folder, self._target.header["fetching"], follows)

    def put_back(self) -> None:
        from overdrive.survive import heap, state
        from overdrive.survive.taking import watch_graphs

        calls, target = self._calls, self._target
        if self._parts is not None:
            self._parts.settle()
        state.make_states(heap.Heap(sys._getframe(), self._parts), calls.states, target.header)
        found = heap.Heap(sys._getframe(), self._parts)
        state.put_back(found, target.header, target.block, self._parts)
        watch_graphs(found, calls.passed_through)
        if calls.fetching:
            calls.fetching.go_on(target.header["fetching"])

    def go_on(self) -> None:
        self._calls.gradients.go_on(self._target.header["gradients there"])
