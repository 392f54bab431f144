"""What all trials of one tune share."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from overdrive.core import scratch
from overdrive.core.facts import Facts
from overdrive.machine.crowding import Crowding
from overdrive.machine.frameworks import lacks_bytecode
from overdrive.techniques.catalogue import also_in
from overdrive.trials.launchers.launcher import Launcher
from overdrive.trials.launchers.local import LocalLauncher
from overdrive.trials.launchers.warm import WarmLauncher
from overdrive.trials.reaper import Reaper


class TrialPool:
    """The launcher and the reaper, a scratch folder, caches, the watchdog's patience."""

    def __init__(
        self,
        isolate: bool = True,
        first_patience: float = 180.0,
        also: Sequence[str] = (),
        launcher: Launcher | None = None,
    ) -> None:
        """
        Args:
            first_patience: seconds that a trial has for its start-up, imports, filling caches, compiling.
            also: modules with techniques from outside the catalogue.
            launcher: how trials are started; as one process each on this machine, where it is not given.
        """
        also_in(also)
        self.launcher: Launcher = launcher or LocalLauncher()
        self._warm: WarmLauncher | None = None
        scratch.sweep()
        self.scratch = scratch.made("overdrive-")
        self.compiled.mkdir()
        self.recordings.mkdir()
        # Where trials leave the bytecode of what they import, for the next; None where Python finds it as it is. What a
        # trial writes beside the modules is thrown away with it: without this, each would compile all of them.
        self.bytecode = self.scratch / "bytecode" if lacks_bytecode() and not sys.pycache_prefix else None
        if self.bytecode:
            self.bytecode.mkdir()
        self.reaper = Reaper()
        self.crowding = Crowding()
        self.isolate = isolate
        self.also = tuple(also)
        self.isolation = ""
        self.prepared_files = 0  # the most that a trial wrote before its first step
        self.last_output = ""  # the end of what the last failed trial printed
        self.on_fill: Callable[[int, int], None] = lambda done, total: None  # samples that a trial caches, for people
        self.first_patience = first_patience
        self.patience = 0.0  # seconds without a step that are no hang; no less than is usual
        self.until = math.inf  # time.monotonic(), from which on no trial is waited for because it lives
        self._trials = itertools.count(1)  # one step in C: trials may be started from several threads

    def __enter__(self) -> TrialPool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._warm is not None:
            self._warm.close()
        self.crowding.close()
        self.reaper.close()
        scratch.discard(self.scratch)

    def untimed_launcher(self, facts: Facts) -> Launcher:
        """What starts trials of this program that nobody times.

        Its processes are forked where that is known to be the same: PyTorch (on a GPU, too: what they are forked from
        has only imported it, and each starts the driver itself), no variables set before it is imported, writes kept
        away by the kernel and not by what is patched first.
        """
        kernel = not self.isolate or self.isolation.startswith("overlay")
        if facts.framework != "torch" or facts.sets_environment or not kernel:
            return self.launcher
        self._warm = self._warm or WarmLauncher(self.launcher)
        return self._warm

    @property
    def compiled(self) -> Path:
        """The compiler's cache, which all trials share: a candidate is compiled once, and not in every process."""
        return self.scratch / "inductor"

    @property
    def recordings(self) -> Path:
        """The folder where trials leave what they recorded for a profile; it is gone with the pool."""
        return self.scratch / "recordings"

    def folder(self) -> Path:
        folder = self.scratch / f"{next(self._trials):03d}"
        folder.mkdir()
        return folder
