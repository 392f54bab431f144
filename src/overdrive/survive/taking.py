"""Snapshots as the program makes its steps: taken, written beside it, and kept once it is known that they are sound.

A snapshot is of no use where a loss is sent back later through what was computed before it: the graph of that is not
in it. So it is watched for a round of the optimizers' steps, and let go if that is seen; then another place in the
round is tried. A loss that comes back still later is seen by the run that goes on.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from overdrive.survive import snapshot

_CANDIDATE = "candidate"
# Steps of other optimizers that are waited for: a program may make a new one for each task, of which none steps again.
MOST_OTHERS, MOST_IN_HASTE = 256, 16


class Graphs(Protocol):
    """Tensors with the paths that led to them, of which some have the graph of their making."""

    @property
    def tensors(self) -> Sequence[tuple[str, Any]]: ...


class Numbers(Protocol):
    """Of a snapshot: its header's own part, and its blocks of bytes."""

    @property
    def header(self) -> Mapping[str, Any]: ...

    @property
    def blocks(self) -> list[Any]: ...


def watch_graphs(heap: Graphs, passed: Callable[[], None]) -> Callable[[], None]:
    """`passed` is called where a backward pass goes through what is computed by now. Returns what ends that."""
    handles = []
    for _, tensor in heap.tensors:
        if tensor.grad_fn is not None:
            handles.append(tensor.grad_fn.register_prehook(lambda *_: passed()))

    def end() -> None:
        while handles:
            handles.pop().remove()

    return end


class Snapshots:
    """
    Attributes:
        kept: the last step whose snapshot is kept.
        unsound: whether none may be gone on from, also the one under way.
        crossed: optimizers after whose step a loss was sent back through what came before.
        cost: seconds of the run that the last one took: copying, waiting for it to be written, and writing, which takes
            a core meanwhile.
    """

    def __init__(self, folder: Path, rank: int = 0, all_have: Callable[[bool], bool] = bool) -> None:
        """
        Args:
            rank: whose part these are of, where each has its own.
            all_have: given whether this one is written, whether those of all ranks are.
        """
        self._folder, self._rank, self._all_have = folder, rank, all_have
        self.kept = 0
        self.unsound = False
        self.cost = 0.0
        self.crossed: set[int] = set()
        self.failure: OSError | None = None
        self._step = 0
        self._optimizer: Any = None
        self._left = self._others = 0  # steps of the same optimizer, and of others, until it is kept
        self._went_through = False
        self._end_watch: Callable[[], None] = lambda: None
        self._writer: threading.Thread | None = None
        self._writing = 0.0  # processor seconds of the thread that wrote the last one

    def forget_candidate(self) -> None:
        """Of a process that was killed."""
        with contextlib.suppress(OSError):
            self._candidate.unlink()

    @property
    def _candidate(self) -> Path:
        return self._folder / (f"{_CANDIDATE}-{self._rank}" if self._rank else _CANDIDATE)

    @property
    def under_way(self) -> bool:
        return self._optimizer is not None

    def take(self, heap: Graphs, optimizer: Any, header: dict[str, Any], taking: Numbers, hasty: bool = False) -> None:
        """After a step of this optimizer (or, in Keras, model). Returns when all is copied. `hasty`: see `hasten`."""
        if self.under_way:
            self._drop()  # as rank 0 did, whose part it was of
        self._optimizer, self._step, self._went_through = optimizer, header["step"], False
        self._left, self._others = (1, MOST_IN_HASTE) if hasty else (2, MOST_OTHERS)
        self._end_watch, self.cost = watch_graphs(heap, self._passed), 0.0
        self._writer = threading.Thread(target=self._write, args=({**header, **taking.header}, taking.blocks))
        self._writer.start()

    def hasten(self) -> int:
        """Keep the one under way after one more step of its optimizer, as far as it was watched by then: where a loss
        does come back through it later, the run that goes on sees that. Its step; 0 where none is under way."""
        self._left, self._others = min(self._left, 1), min(self._others, MOST_IN_HASTE)
        return self._step if self.under_way else 0

    def stepped(self, optimizer: Any) -> bool:
        """Another step was made; whether a snapshot was let go by that, so that one is due."""
        if self.unsound:
            self._drop()
            return False
        if self._went_through:
            self.crossed.add(id(self._optimizer))
            self._drop()
            return True
        if optimizer is self._optimizer:
            self._left -= 1
        else:
            self._others -= 1
        if self._optimizer is not None and min(self._left, self._others) <= 0:
            self._keep()
        return False

    def _passed(self) -> None:
        self._went_through = True

    def _drop(self) -> None:
        self._end_watch()
        self._join()
        self._optimizer = None
        with contextlib.suppress(OSError):
            self._candidate.unlink()

    def _keep(self) -> None:
        self._end_watch()
        self._join()
        self._optimizer = None
        if not self._all_have(self.failure is None) and self.failure is None:
            self.failure = OSError(errno.EIO, "another rank has not written its part")
        if self.failure is None:
            try:
                snapshot.keep(self._candidate, self._folder, self._step)
                self.kept = self._step
            except OSError as error:
                self.failure = error

    def over(self) -> None:
        """The program has ended. One that is under way holds what the program made, and what has a signal's handler
        lives longer than all of that: Python would not write what lies in its files' buffers."""
        if self.under_way:
            self._drop()

    def keep_part(self) -> bool:
        """Of a rank above 0, which keeps its part where rank 0 is about to: whether it is there."""
        if not self.under_way:
            return False
        self._end_watch()
        self._join()
        self._optimizer = None
        if self.failure is None:
            try:
                snapshot.keep_part(self._candidate, self._folder, self._step, self._rank)
            except OSError as error:
                self.failure = error
        return self.failure is None

    def _join(self) -> None:
        if self._writer:
            began = time.perf_counter()
            self._writer.join()
            self.cost += time.perf_counter() - began + self._writing
            self._writer = None

    def _write(self, header: dict[str, Any], blocks: list[Any]) -> None:
        try:
            snapshot.write(self._candidate, header, blocks)
            self.failure = None
        except OSError as error:
            self.failure = error
        self._writing = time.thread_time()
