"""Serves the kept first halves of samples: each fetch gets its values from there, and goes on for real."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

from overdrive.core.in_place import STANDS_FOR
from overdrive.datacache.cached_dataset import CachedDataset
from overdrive.datacache.draws import Draws, Generators
from overdrive.datacache.switch import SharedFlag
from overdrive.datacache.unchanged import UnchangedInFork
from overdrive.seams.torch.fetchers import before_each_batch, in_worker
from overdrive.techniques.data.prefix_cache.finding import Paused
from overdrive.techniques.data.prefix_cache.guard import Reached
from overdrive.techniques.data.prefix_cache.prefix import Odd, Prefix, PrefixSource
from overdrive.techniques.data.prefix_cache.recall import Recall
from overdrive.techniques.data.prefix_cache.remade import RemadeWhole
from overdrive.techniques.data.prefix_cache.sequence import Strayed

NOT_HERE = object()
_LOOKS_EVERY = 64  # samples, between two looks at the processes that make some of them


class Served:
    """One method of one object whose first halves are kept.

    Args:
        shared_out: whether this process's loader never asks for more than a share of them. Other processes then
            make none: they would read what is another machine's.
    """

    def __init__(
        self,
        prefix: Prefix,
        kept: CachedDataset,
        source: PrefixSource,
        generators: Generators,
        recall: Recall,
        shared_out: bool = False,
    ) -> None:
        self.prefix = prefix
        self.kept = kept
        self._source = source
        self._owner = prefix.method.owner
        self._kind: Any = prefix.method.kind
        self._count = kept.table.count
        self._generators = generators
        self._process = os.getpid()
        self._off = False  # in this process
        self.new_batch = False  # since the last sample
        self._made = False  # one was made, which may have changed what those in the table depend on
        self.in_batch = False  # a batch is being fetched, before which all was looked at
        self._fetched = 0
        self._recall = recall
        self._shared_out = shared_out
        self._in_worker: UnchangedInFork | None = None  # in this one
        self._note()

    @property
    def in_force(self) -> bool:
        return not self._off and self.kept.dropped is None

    def fetch(self, index: Any, before: Draws) -> Any:
        """One sample, as the real method makes it; NOT_HERE where that has to make it.

        Args:
            before: what the generators are, as they are again where it is not made here.
        """
        if self.kept.filler.beside or not self.kept.table.complete:
            self._let_others_fill()
        if not self.in_force or type(index) is not self._kind or not 0 <= index < self._count:
            return NOT_HERE
        there = self.kept.table.present[index]
        if there and self._made:
            self.new_batch, self._made = True, False
        if self._stale():
            return NOT_HERE
        if not there:
            return self._first_time(index, before)
        return self._finish(index, self.prefix.unpack(self.kept.table.row(index)), before)

    def draws(self) -> Draws:
        return self._generators.now()

    def _first_time(self, index: Any, before: Draws) -> Any:
        # What a worker reads, this process would not watch.
        watched = self.kept.watched if os.getpid() == self._process else self.kept.heard
        try:
            with watched() as did:
                values = self.prefix.begin(index)
        except (Exception, Reached):  # the program's own errors come out of its own method, as without us
            before.restore()
            return NOT_HERE
        if reason := did():
            self.give_up(reason)
        elif before.same(self._generators.now()):
            self._write(index, values)
        self._made = True
        return self._finish(index, values, before)

    def _finish(self, index: Any, values: tuple[Any, ...], before: Draws) -> Any:
        try:
            return self.prefix.finish(self._owner, index, values)
        except Strayed:
            before.restore()
            return NOT_HERE

    def _let_others_fill(self) -> None:
        """Idle cores make first halves too, from the far end."""
        self._fetched += 1
        if self._shared_out or self._fetched % _LOOKS_EVERY != 1 or not self.in_force or os.getpid() != self._process:
            return
        try:
            if self.kept.filler.beside:
                self.kept.filler.look()
            else:
                self.kept.filler.fill_beside(None)
        except Exception as error:  # ours: the program must not meet it
            self.give_up(f"{type(error).__name__}: {error}")

    def _write(self, index: Any, values: tuple[Any, ...]) -> None:
        with contextlib.suppress(Odd):
            self.kept.table.put(index, self.prefix.pack(values))

    def _stale(self) -> bool:
        """Whether the object was changed since: quick enough for each sample, and thorough before each batch."""
        if os.getpid() != self._process:
            return self._stale_in_worker()
        thorough, self.new_batch = self.new_batch or not self.in_batch, False
        try:
            if self.prefix.rebound() or (thorough and self.prefix.class_rebound()):
                self.give_up("the data set was changed")
            elif (thorough or self.kept.touched()) and self.kept.changed():
                return True
        except Exception as error:
            self.give_up(f"{type(error).__name__}: {error}")
        return not self.in_force

    def _stale_in_worker(self) -> bool:
        """The same in a process that was forked since: of what it shares with the program, that tells it."""
        try:
            if not in_worker():
                self._off = True
            elif self._in_worker is None:
                self._in_worker = self.kept.in_fork()
                before_each_batch(self._begin_batch)
                self.new_batch = True
            thorough, self.new_batch = self.new_batch, False
            self._off |= not self.kept.valid or self.prefix.rebound() or self.kept.touched()
            if thorough and self._in_worker is not None:
                self._off |= self.prefix.class_rebound() or self._in_worker.changed()
        except Exception:  # what cannot be looked at is not served
            self._off = True
        return self._off

    def _begin_batch(self) -> None:
        self.new_batch = True

    def look_for_workers(self) -> None:
        """A worker is about to be given a batch: has anything changed that it shares with this process?"""
        if self._source.workers and self.in_force and (reason := self.kept.changed_for_workers()):
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        self._off = True
        if os.getpid() == self._process:  # what is on disk is the business of the process that began it
            self.kept.drop(reason)

    def look(self) -> None:
        """A loader is about to be opened: has anything changed, and is the table whole?"""
        self.kept.expect_audit()
        if not self._has_changed():
            self.finish()

    def _has_changed(self) -> bool:
        if self.prefix.rebound() or self.prefix.class_rebound():
            self.give_up("the data set was changed")
        return not self.in_force or self.kept.changed()

    def before_batch(self) -> None:
        """The program has been at work since the last one, which is fetched in this process."""
        self.new_batch = self.in_batch = True
        if (audit := self.kept.audit) is not None:
            audit.look()
        if not self._source.workers:
            self.have_audited()

    def have_audited(self) -> None:
        """Have some samples made again, if it is time, as they are made now, or in workers that begin now."""
        audit = self.kept.audit if self.in_force and self.kept.as_in_forks is not False else None
        if audit is None or not (seconds := audit.allowance()):
            return
        try:
            if not self._has_changed():
                as_here = bool(self.kept.as_in_forks)
                remade = RemadeWhole(self.prefix, self._source, self.kept.table, self._generators, as_here)
                audit.begin(remade, [], seconds, opening=self._source.workers > 0)
        except Exception as error:  # ours: the program must not meet it
            self.give_up(f"{type(error).__name__}: {error}")

    def finish(self) -> None:
        if self.in_force:
            self.kept.filler.look()
            self.kept.count_others()
            self._note()

    def _note(self) -> None:
        """Where the table is on disk, write down beside it where the method was cut."""
        if self.in_force and self.kept.table.complete and os.getpid() == self._process:
            self._recall.write(self.kept.key)


def serving(real: Any, all_served: dict[tuple[int, bool], Served], switch: SharedFlag) -> Any:
    """A method that takes the place of the real one, for all objects of its class."""

    @functools.wraps(real)
    def fetch(self: Any, index: Any) -> Any:
        if not switch:
            return real(self, index)
        served = all_served.get((id(self), in_worker()))
        # The object may have several methods of this name, of which one calls the other with `super()`.
        if served is None or Paused.now or served.prefix.method.function is not real:
            return real(self, index)
        before, reason = None, ""
        try:
            before = served.draws()
            sample = served.fetch(index, before)
        except Exception as error:  # the program's own come out of its own method
            if before is not None:
                before.restore()
            sample, reason = NOT_HERE, f"{type(error).__name__}: {error}"
        if sample is NOT_HERE:
            sample = real(self, index)
        if reason:
            served.give_up(reason)  # it is none of the program's errors
        return sample

    setattr(fetch, STANDS_FOR, real)
    return fetch
