"""A run that is made again up to a snapshot: where it writes meanwhile, and what is put back at the snapshot's step."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from overdrive.survive.rehearsed_files import RehearsedFiles

if TYPE_CHECKING:
    from overdrive.survive.calls import Calls
    from overdrive.survive.files import Files
    from overdrive.survive.in_parts import Parts
    from overdrive.survive.output import UnsavedOutput
    from overdrive.survive.snapshot import Snapshot
    from overdrive.survive.under_plan import UnderPlan


class Replay:
    """
    Attributes:
        files: it finds what it found the first time, and writes into a copy.
        since: its first skipped step was over (time.monotonic); None before.
    """

    def __init__(self, target: Snapshot, folder: Path, files: Files, rank: int) -> None:
        """
        Args:
            target: that it is made again up to.
            folder: the run's.
            rank: 0 writes the run's files.
        """
        self._target, self._folder, self._follows = target, folder, rank > 0
        self._clock = time.monotonic  # before the program's lines are told recorded times
        self.since: float | None = None
        self.files = RehearsedFiles(folder / (f"replay-{rank}" if rank else "replay"), files)

    @property
    def fetches_can_be_told(self) -> bool:
        """Whether what fetches leave behind can be compared, so that they may be left out."""
        return self._target.header["fetching"][0] is not None

    def begin(self, calls: Calls, output: UnsavedOutput) -> None:
        if calls.fetching is not None:
            calls.fetching.goes_to(self._target.header["fetching"])
        self.files.enter()
        output.mute(True)

    def passes(self, step: int) -> bool:
        """This step was skipped; whether it is the snapshot's."""
        if self.since is None:
            self.since = self._clock()
        return step == int(self._target.header["step"])

    def put_back(
        self,
        calls: Calls,
        output: UnsavedOutput,
        plan: UnderPlan,
        reading_alone: Callable[[], AbstractContextManager[None]],
        parts: Parts | None,
    ) -> None:
        """At the snapshot's step.

        Args:
            reading_alone: what is asked of tensors within is no question of the program's.
            parts: what this rank has of parameters that are divided.

        Raises:
            Exception: the run holds other things than it held then, or they cannot be put back.
        """
        from overdrive.survive import held

        target = self._target
        back = held.way_back(calls, target, parts)
        back.compare(self._folder, self._follows)
        with reading_alone():
            back.put_back()
        output.go_on_at(*target.header["printed"])
        self.files.leave(target.header["files"], target.header["positions"])
        plan.take_back(target.header["techniques"])
        back.go_on()
