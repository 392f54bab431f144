"""A run that survives, as this process is one rank of it or all: which snapshots it finds, and what it agrees on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from overdrive.survive.folder import DAMAGED, FROM_START

if TYPE_CHECKING:
    from pathlib import Path

    from overdrive.seams.clocks import Read
    from overdrive.survive.in_group import InGroup
    from overdrive.survive.in_parts import Parts
    from overdrive.survive.journal import Journal
    from overdrive.survive.snapshot import Snapshot


class RankOfRun:
    """
    Attributes:
        number: 0 where it is the only process.
        alone: it is.
        in_parts: where each rank keeps parts of the parameters, and of a snapshot; else None.
        follows: rank 0 decides, and writes what is the run's.
        passive: it keeps nothing of its own either: rank 0 notes what it is asked.
        launched: see `InGroup`.
    """

    def __init__(self, group: InGroup | None) -> None:
        self._group = group
        self.alone, self.number = group is None, group.rank if group is not None else 0
        self.in_parts = group.in_parts if group is not None else None
        self.follows = self.number > 0
        self.passive = self.follows and self.in_parts is None
        self.launched = group is not None and group.launched

    @property
    def parts(self) -> Parts | None:
        """What it has of parameters that are divided, once some are."""
        return self.in_parts.here() if self.in_parts is not None else None

    def journal_in(self, journal_of: Callable[[int], Path]) -> Path:
        """`journal_of`: gives the file of a rank that has one of its own."""
        return journal_of(self.in_parts.rank if self.in_parts is not None else 0)

    def newest(
        self,
        folder: Path,
        journal: Journal,
        say: Callable[[str], None],
        start_again: Callable[[str, str], NoReturn],
    ) -> Snapshot | None:
        """The newest snapshot that is whole, with what this rank has of it."""
        from overdrive.survive import part_files, snapshot

        parts = self.in_parts
        if parts is None:
            return snapshot.newest_whole(folder, journal, say)
        try:
            return part_files.newest_whole(folder, parts.rank, parts.ranks, journal, say)
        except part_files.Gone as gone:
            start_again(DAMAGED, str(gone))
        except OSError as error:
            start_again(FROM_START, f"{folder} holds a damaged snapshot ({error.strerror})")

    def agreed(self, wanted: bool, over: bool, make_whole: Callable[[], None]) -> bool:
        """Asked once a step: whether a snapshot is taken now.

        Args:
            wanted: by this rank. Only rank 0's counts.
            over: none will be taken any more.
            make_whole: has all of the optimizers' state made whole, which all ranks do at once.
        """
        if self.in_parts is not None:
            return self.in_parts.agreed(wanted, over)
        if self._group is None or self._group.agree is None:
            return wanted
        agreed = self._group.agree(wanted)
        if agreed:
            make_whole()
        return agreed

    @contextlib.contextmanager
    def reading_alone(self) -> Iterator[None]:
        """What is read within is read on this rank alone, and nothing is made whole for it."""
        with contextlib.ExitStack() as stack:
            if self._group is not None:
                stack.enter_context(self._group.aside())
            if self.parts is not None:
                stack.enter_context(self.parts.as_it_is())
            yield

    def told(self, read: Read) -> Read:
        """`read`, whose answers on rank 0 are those of all."""
        return read if self._group is None else self._group.times(read)

    def leave(self) -> None:
        """Before this process ends by itself."""
        if self._group is not None:
            self._group.leave()
