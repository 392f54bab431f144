"""What ranks above 0 print: into a file, whose place is told when something fails."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from overdrive.core import scratch
from overdrive.core.streams import flush
from overdrive.ranks.membership import LOGS, Membership


class RankOutput:
    """
    Attributes:
        log: where it goes; None for rank 0.
        told: people were told of that place.
        scratch: an empty folder for what this rank writes, which is thrown away; None for rank 0.
    """

    def __init__(self, membership: Membership, apart: bool) -> None:
        """`apart`: whether that of ranks above 0 is kept apart; in a trial, all that is printed goes to one file."""
        self._real, self._process = os.dup(2), os.getpid()
        self.log: Path | None = None
        self.told = False
        self.scratch: Path | None = None
        if membership.rank and apart:
            if LOGS in os.environ:
                folder = Path(os.environ[LOGS])
                scratch.hold(folder)
            else:  # a launcher did, once for all of a job
                scratch.sweep()
                folder = scratch.made("overdrive-ranks-")
            self.scratch = folder / f"scratch{membership.rank}"
            self.scratch.mkdir(mode=0o700)
            if LOGS not in os.environ:  # else who started us sees to it
                atexit.register(self._discard)
            self.log = folder / f"rank{membership.rank}.log"
            handle = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            flush()
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os.close(handle)
        os.environ.pop(LOGS, None)

    def _discard(self) -> None:
        """At this process's end: what nobody was told of."""
        if self.scratch is None or os.getpid() != self._process:  # a fork of the program's that comes to its own end
            return
        stacks = any(each.stat().st_size for each in self.scratch.parent.glob("*.stacks.log"))
        if self.told or stacks:
            self.keep()
            scratch.discard(self.scratch)
        else:
            scratch.discard(self.scratch.parent)

    def keep(self) -> None:
        """People are told of its place: it stays."""
        self.told = True
        if self.log is not None:
            scratch.keep(self.log.parent)

    def tell(self, text: str) -> None:
        """On the real standard error, whatever the rank."""
        flush()
        os.write(self._real, text.encode(errors="replace"))

    def say(self, sentence: str) -> None:
        self.tell(f"overdrive: {sentence}\n")
