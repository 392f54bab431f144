"""What a launcher is: it starts the processes of a trial, one or one a rank, as a group that acts as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import BinaryIO, Protocol


class ProcessGroup(Protocol):
    """The processes of one trial. Each runs `overdrive.worker.main`, and with it whatever the program starts."""

    @property
    def size(self) -> int:
        """How many workers there are; they are numbered from 0, and 0 speaks for the program."""

    @property
    def pids(self) -> Sequence[int]:
        """Leaders of process groups of this machine, which are ended should the tuner be killed."""

    @property
    def reports(self) -> Sequence[int]:
        """File descriptors, one of which can be read where there is something to `read`."""

    def send(self, line: bytes) -> None:
        """To every worker; one that is over hears nothing."""

    def read(self, seconds: float) -> list[tuple[int, bytes]]:
        """Whole lines that came within so many seconds, each with its worker's number."""

    def pause(self) -> None:
        """Have all processes stand still, those that the workers started included."""

    def resume(self) -> None: ...

    def exit_code(self) -> int | None:
        """Of the first worker that ended badly, 0 where all ended well, None otherwise. Negative: a signal's number."""

    def wait(self, seconds: float) -> bool:
        """Whether all workers are over within so many seconds."""

    def stop(self, grace: float) -> None:
        """End all processes: ask those that live, and kill them after `grace` seconds."""


class Launcher(Protocol):
    def start(self, environment: Mapping[str, str], output: BinaryIO) -> ProcessGroup:
        """A fresh group. `output`: the file for what its processes print."""
