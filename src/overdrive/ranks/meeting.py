"""How ranks meet: where they find each other, what each exchange begins with, and how they end together.

Their process groups are not PyTorch's default one: for the program `torch.distributed` is not initialised.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch

from overdrive.ranks.arriving import START, CannotMeet, room_of_start, take_place, wait_for_all
from overdrive.ranks.hosts import compare
from overdrive.ranks.lost import is_own, words_of
from overdrive.ranks.membership import Membership
from overdrive.ranks.monitor import DIFFERS, Monitor
from overdrive.ranks.requests import Differing, PartFailed, Requests
from overdrive.ranks.slots import MessageSlots
from overdrive.ranks.tally import Tally
from overdrive.seams.points import reason_of
from overdrive.seams.torch.internals import gloo_group, nccl_group, tcp_store

_PATIENCE = timedelta(hours=24)  # of the groups themselves: the monitor is quicker, and knows why
_COUNTED_BEFORE = ("sums", "end of sums")  # with what is summed, when it began


class Meeting:
    """All ranks of this run, or a part of them. Its calls are for the main thread of the process that made it.

    Attributes:
        waited: seconds, for other ranks and for what they send.
        tally: of what this rank exchanges.
        let_write: waits, for so long, for the end of what this rank is in the middle of writing.
        under_way: bytes of what goes beside the program, by what can be waited for.
        tells: whether this rank finds out what is told to all.
        may_undo: whether what this rank does now can be undone, should another rank's part of it fail.
        may_differ: whether ranks that then ask for different things undo it, too; else the run ends.

    Raises:
        CannotMeet: ranks do not, or this one's host has other versions than rank 0's.
    """

    def __init__(self, membership: Membership, end: Callable[[str, Any], None]) -> None:
        """`end`: called with a sentence, and the store, when all are to end."""
        self.rank, self.size = membership.rank, membership.size
        self.waited = 0.0
        self.tally = Tally()
        self.may_undo = self.may_differ = False
        self.let_write: Callable[[], None] = lambda: None
        self._process = os.getpid()
        self._end = end
        self.tells = self.rank == 0
        self.store, own = self._stores(membership)
        self._run: Any = self
        self.under_way: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.monitor = Monitor(own, self.rank, self.size, self.end)
        self._await_all(f"{membership.address}:{membership.port}")
        self.connect("", range(self.size))
        self._requests = Requests(MessageSlots(self._on_cpu("words"), self.size), self.size)

    def _await_all(self, place: str) -> None:
        try:
            wait_for_all(self.store, self.size, place)
        except CannotMeet:
            self.monitor.stop()
            raise

    def _stores(self, membership: Membership) -> tuple[Any, Any]:
        """The one that all share, and the monitor's own connection to it."""
        self._server = self._met(membership)
        room = room_of_start(self._server, self.rank) if membership.may_restart else "overdrive"
        compare(self._server.within(room), self.rank, membership.run)
        take_place(self._server.within(room), self.rank)
        # PyTorch's default is to wait for the store for five minutes.
        own = tcp_store(membership.address, membership.port, False, START).within(room)
        return self._server.within(room), own

    def _met(self, membership: Membership) -> Any:
        hosts = not membership.agents_store and self.rank == 0
        try:
            return tcp_store(membership.address, membership.port, hosts, START)
        except RuntimeError as error:
            place = f"{membership.address}:{membership.port}"
            what = f"cannot keep the store at {place}" if hosts else f"does not reach rank 0 at {place}"
            why = reason_of(error)
            raise CannotMeet(
                f"rank {self.rank} {what}: set MASTER_ADDR, or MASTER_PORT to a free port ({why})"
            ) from None

    def connect(self, name: str, members: Sequence[int]) -> None:
        """Make the groups of these ranks, which are all of this object's."""
        self._name, self._members = name, members
        self._calls, self._gradients = self._on_cpu("calls"), self._on_cpu("gradients")
        self._on_gpu: dict[str, Any] = {}
        self._stages: Any = None

    def _on_cpu(self, purpose: str) -> Any:
        """All members at once: where a way between two of them is closed, the monitor finds that none goes on."""
        with self._waiting("the connection of ranks", for_one=True):
            return gloo_group(self.store, self._name + purpose, self.rank, self.size, _PATIENCE)

    def mine(self) -> bool:
        """Whether this is the thread and the process that takes part: no loader's worker, no thread of the program."""
        return os.getpid() == self._process and threading.current_thread() is threading.main_thread()

    def end(self, sentence: str) -> None:
        """End this process, without the program's cleaning up."""
        if not self.mine():  # but by the monitor
            self._run.let_write()
        self.monitor.stop()
        self._end(sentence, self.store)
        os._exit(1)

    # -- what an exchange begins with ------------------------------------------------------------

    def _meet(self, kind: str, what: str, size: int, sizes_differ: bool = False) -> list[int]:
        """All ranks ask for this now; `kind`: in what way they exchange it. Returns their sizes."""
        self._count_meeting(kind)
        return self._marked(kind, what, size, sizes_differ)

    def _count_meeting(self, kind: str, moved: int = 0) -> None:
        """Of all ranks of the run, in slots.

        Args:
            moved: bytes of this rank's that are exchanged in slots, and by nothing else.
        """
        if not self.tally.by_memory:
            self.tally.count("all_gather", self._run.size * self._requests.room)
        elif kind not in _COUNTED_BEFORE:
            self.tally.count("all_gather", self._run.size * moved)

    def _marked(self, kind: str, what: str, size: int, sizes_differ: bool = False) -> list[int]:
        monitor = self.monitor
        try:
            return self._requests.meet(monitor.number, monitor.step, kind, what, size, sizes_differ)
        except Differing as differing:
            if self._run.may_undo and self._run.may_differ and differing.in_step:  # all ranks see so
                raise PartFailed(str(differing)) from None
            self.end(f"{differing}: {DIFFERS}")
            raise
        except PartFailed as failed:
            if not self._run.may_undo:
                self.end(
                    f"a part of a call failed on another rank ({failed}), where this one asks for {what}: {DIFFERS}"
                )
            raise

    def part_failed(self, reason: str, how: str) -> bool:
        """This rank's part of a call failed, which all undo then. Returns whether those of all ranks did, and in the
        same way (`how`)."""
        with self._waiting("what the others make of a part that failed"):
            return self._requests.fail(self.monitor.number, self.monitor.step, reason, how)

    def _on(self, tensor: torch.Tensor, on_cpu: Any, purpose: str = "calls") -> Any:
        if tensor.device.type == "cpu":
            return on_cpu
        if purpose not in self._on_gpu:
            self._on_gpu[purpose] = nccl_group(
                self.store, f"{self._name}gpu-{purpose}", self.rank, self.size, _PATIENCE
            )
        return self._on_gpu[purpose]

    @contextmanager
    def _waiting(self, what: str, moved: int = 0, for_one: bool = False) -> Iterator[None]:
        """`moved`: bytes over the network, beside those of what goes on meanwhile."""
        self.monitor.waits(what, for_one=for_one, moved=moved + sum(self._run.under_way.values()))
        began = time.monotonic()
        try:
            with self._reaching():
                yield
        except Exception:
            if self._run.may_undo and not for_one and self._requests.told < self.monitor.number:
                self.monitor.number -= 1  # it has not asked: that it failed is told in the place of this
            raise
        finally:
            self.monitor.goes_on()
            took = time.monotonic() - began
            self._run.waited += took
            self.tally.seconds += took

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Others, of which one may be gone: that is no error of the program's."""
        try:
            yield
        except RuntimeError as error:
            self._run.lost(error)

    def lost(self, error: RuntimeError) -> None:
        """A rank is gone, which has said why, or does so in a moment.

        Raises:
            RuntimeError: this one, where it has nothing to do with other ranks.
        """
        if is_own(error):
            raise error
        others = [rank for rank in range(self.size) if rank != self.rank]
        self.end(words_of(error, self.rank, others, self.store, self.note_of))

    # -- the end --------------------------------------------------------------------------------

    def leave_note(self, failed: bool, error: str) -> None:
        note = {"failed": failed, "error": error, "step": self.monitor.step}
        self.store.set(f"over/{self.rank}", json.dumps(note))

    def note_of(self, rank: int) -> Any:
        key = f"over/{rank}"
        return json.loads(self.store.get(key)) if self.store.check([key]) else None
