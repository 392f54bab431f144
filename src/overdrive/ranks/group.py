"""What ranks say to each other: gathers, sums and words, in process groups that the program does not see.

They are not PyTorch's default group: for the program `torch.distributed` is not initialised.
"""

from __future__ import annotations

import copy
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from overdrive.machine.pool.shared_memory import SharedSlots, SharedSum, SharedSums
from overdrive.ranks.arriving import START, CannotMeet, take_place, wait_for_all
from overdrive.ranks.hosts import compare
from overdrive.ranks.lost import is_own, words_of
from overdrive.ranks.membership import Membership
from overdrive.ranks.monitor import DIFFERS, Monitor
from overdrive.ranks.requests import Differing, PartFailed, Requests
from overdrive.ranks.slots import MessageSlots
from overdrive.ranks.tally import Tally
from overdrive.seams.points import reason_of
from overdrive.seams.torch.internals import gather, gloo_group, nccl_group, tcp_store

_PATIENCE = timedelta(hours=24)  # of the groups themselves: the monitor is quicker, and knows why
MOST_TO_ADD = 4  # ranks of which each reads all that is summed; with more gloo divides it among them
_WITH_DATA = ("gather", "sum")  # requests whose data lie in slots that ranks share
_COUNTED_BEFORE = ("sums", "end of sums")  # with what is summed, when it began


class Group:
    """All ranks of this run, or a part of them. Its calls are for the main thread of the process that made it.

    Attributes:
        waited: seconds, for other ranks and for what they send.
        tally: of what this rank exchanges.
        let_write: waits, for so long, for the end of what this rank is in the middle of writing.
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
        self.monitor = Monitor(own, self.rank, self.size, self.end)
        self._run = self
        self._await_all(f"{membership.address}:{membership.port}")
        self._connect("", range(self.size))
        self._requests = Requests(MessageSlots(self._on_cpu("words"), self.size), self.size)
        self._sums: SharedSums | None = None
        self._share_memory()

    def _share_memory(self) -> None:
        """Ranks of one machine talk by memory from here on."""
        if self.size > 1 and (slots := SharedSlots.among(self)) is not None:
            self._requests = Requests(slots, self.size)
            self._sums = SharedSums(self.rank, self.size)
            self.tally.by_memory = True

    def _await_all(self, place: str) -> None:
        try:
            wait_for_all(self.store, self.size, place)
        except CannotMeet:
            self.monitor.stop()
            raise

    def _stores(self, membership: Membership) -> tuple[Any, Any]:
        """The one that all share, and the monitor's own connection to it."""
        room = f"overdrive {membership.attempt}"  # an agent's store has the words of the attempts before
        self._server = self._met(membership)
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

    def _connect(self, name: str, members: Sequence[int]) -> None:
        self._name, self._members = name, members
        self._calls, self._gradients = self._on_cpu("calls"), self._on_cpu("gradients")
        self._on_gpu: dict[str, Any] = {}
        self._stages: Any = None

    def _on_cpu(self, purpose: str) -> Any:
        """All members at once: where a way between two of them is closed, the monitor finds that none goes on."""
        with self._waiting("the connection of ranks", for_one=True):
            return gloo_group(self.store, self._name + purpose, self.rank, self.size, _PATIENCE)

    def part(self, name: str, members: Sequence[int]) -> Group:
        """Some of the ranks of the run, which count from 0 there, in this order; this one is among them.

        Every rank makes its part at the same time, and all ask their parts for the same: they meet as in the run. What
        goes beside that (`begin_sum`, from one to another) is each part's own.
        """
        self._run._meet("connection", f"its {name}", 0)
        made = copy.copy(self._run)
        made.rank, made.size = members.index(self._run.rank), len(members)
        made._connect(f"{name} {members[0]} ", members)
        made._sums = None
        return made

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

    def _count_meeting(self, kind: str, size: int) -> None:
        """Of all ranks, in slots: by memory with what is asked for in them."""
        if not self._shares_memory:
            self.tally.count("all_gather", self.size * self._requests.room)
        elif kind not in _COUNTED_BEFORE:
            self.tally.count("all_gather", self.size * min(size, self._requests.room) if kind in _WITH_DATA else 0)

    # -- words ----------------------------------------------------------------------------------

    @property
    def _shares_memory(self) -> bool:
        return self._run._sums is not None

    def of_all(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        """The numbers (int64, equally many) of each rank."""
        own = torch.tensor(list(numbers), dtype=torch.int64, device="cpu")
        told = self.gather(own, 0, [len(own)] * self.size, what)
        return told.view(self.size, -1).tolist() if len(own) else [[] for _ in range(self.size)]

    def from_first(self, number: float | int, what: str) -> float | int:
        """Rank 0's number."""
        return self.of_each(number, what)[0]

    def of_each(self, number: float | int, what: str) -> list[float | int]:
        """Each rank's number, of the kind that is given."""
        return [each for [each] in self.numbers_of_each([number], what)]

    def numbers_of_each(self, numbers: Sequence[float | int], what: str) -> list[list[float | int]]:
        """Those of each rank, equally many and all of the kind of the first; a slot holds some dozens."""
        kind = "d" if isinstance(numbers[0], float) else "q"
        form = struct.Struct(f"{len(numbers)}{kind}")
        with self._waiting(what):
            self._requests.put(form.pack(*numbers))
            self._meet("float" if kind == "d" else "integer", what, form.size)
        return [[*form.unpack(self._requests.taken(each, form.size))] for each in self._members]

    def told_by_first(self, thing: Any, what: str) -> Any:
        """Rank 0's thing, which JSON can hold."""
        data = json.dumps(thing).encode() if self.tells else b""
        with self._waiting(what):
            self._requests.put(data[: self._requests.room])
            size = self._meet("words", what, len(data), sizes_differ=True)[self._members[0]]
            if size <= self._requests.room:
                return json.loads(self._requests.taken(self._members[0], size))
            told = torch.frombuffer(bytearray(data) if self.tells else bytearray(size), dtype=torch.uint8)
            self.tally.count("broadcast", size)
            self._calls.broadcast([told]).wait()
        return json.loads(bytes(told.tolist()))

    # -- tensors --------------------------------------------------------------------------------

    def gather(self, tensor: torch.Tensor, dim: int, sizes: Sequence[int], what: str) -> torch.Tensor:
        """All ranks' tensors one after the other along `dim`, where rank r's has `sizes[r]`."""
        moved = tensor.detach().movedim(dim, 0).contiguous()
        rest, most = moved.shape[1:], max(sizes)
        if len(moved) < most:
            moved = torch.cat((moved, moved.new_zeros(most - len(moved), *rest)))
        whole = self._gathered(_bytes(moved), what).view(tensor.dtype).view(self.size * most, *rest)
        if min(sizes) < most:
            parts = whole.split(most)  # type: ignore[no-untyped-call]
            whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        return whole.movedim(0, dim)

    def gather_into(self, whole: torch.Tensor, own: torch.Tensor, what: str) -> None:
        """All ranks' tensors, which are as long, one after the other there; both are flat, and `own` may be a part."""
        with self._waiting(what):
            self._meet("gather", what, own.nbytes)
            self.tally.count("all_gather", whole.nbytes)
            gather(self._on(own, self._calls), _bytes(whole), _bytes(own)).wait()

    def _gathered(self, own: torch.Tensor, what: str) -> torch.Tensor:
        """The bytes of all ranks."""
        with self._waiting(what):
            if own.device.type == "cpu" and (self._shares_memory or len(own) <= self._requests.room):
                return self._requests.gathered(own, self._members, lambda: self._meet("gather", what, len(own)))
            # Before they meet, after which the others go on: memory may be short.
            whole = own.new_empty(self.size * len(own))
            self._meet("gather", what, len(own))
            self.tally.count("all_gather", len(whole))
            gather(self._on(own, self._calls), whole, own).wait()
        return whole

    def sum_(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """The sum over ranks, in its place."""
        shares = self._shares_memory and self.size <= MOST_TO_ADD
        with self._waiting(what):
            if tensor.device.type == "cpu" and (shares or tensor.nbytes <= self._requests.room):
                own = tensor.contiguous().view(-1)
                meet = lambda: self._meet("sum", what, own.nbytes)  # noqa: E731
                return tensor.copy_(self._requests.summed(own, self._members, meet).view(tensor.shape))
            self._meet("sum", what, tensor.nbytes)
            self.tally.count("all_reduce", tensor.nbytes)
            self._on(tensor, self._calls).allreduce([tensor]).wait()
        return tensor

    def broadcast(self, tensor: torch.Tensor, source: int, what: str) -> None:
        """That rank's tensor, into all ranks', which are of one piece."""
        with self._waiting(what):
            self._meet("broadcast", what, tensor.nbytes)
            self.tally.count("broadcast", tensor.nbytes)
            self._on(tensor, self._calls).broadcast(tensor, source).wait()

    # -- from one to another ----------------------------------------------------------------------

    def connect_stages(self) -> None:
        """All ranks at the same time, before anything is sent."""
        if self._stages is None:
            self._meet("connection", "the ways between stages", 0)
            self._stages = self._on_cpu("stages")

    def begin_send(self, tensor: torch.Tensor, to: int, tag: int) -> Any:
        """Returns what is waited for before the tensor, which is of one piece, may be written to."""
        self.tally.count("point_to_point", tensor.nbytes)
        with self._reaching():
            return self._stages.send([tensor], to, tag)

    def begin_receive(self, room: torch.Tensor, source: int, tag: int) -> Any:
        with self._reaching():
            return self._stages.recv([room], source, tag)

    def wait_for(self, work: Any, what: str) -> None:
        with self._waiting(what, for_one=True):
            work.wait()

    def _meet(self, kind: str, what: str, size: int, sizes_differ: bool = False) -> list[int]:
        """All ranks ask for this now; `kind`: in what way they exchange it. Returns their sizes."""
        monitor = self.monitor
        self._count_meeting(kind, size)
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

    def begin_sum(self, tensor: torch.Tensor) -> Any:
        """Of gradients, beside the backward pass; `finish` waits for it."""
        self.tally.count("all_reduce", tensor.nbytes)
        with self._reaching():
            return self._on(tensor, self._gradients, "gradients").allreduce([tensor])

    def begin_shared_sum(self, parts: Sequence[torch.Tensor], kind: torch.dtype) -> SharedSum | None:
        """The same of several flat tensors, one after the other, in memory that ranks share; None: not there.

        All that was begun so is to be finished at once, and `sums_read` is said after it, on all ranks.
        """
        on_cpu = all(each.device.type == "cpu" for each in parts)
        if self._sums is None or not on_cpu or (begun := self._sums.begin(parts, kind)) is None:
            return None
        self.tally.count("all_reduce", sum(each.numel() for each in parts) * kind.itemsize)
        return begun

    def finish(self, works: Sequence[Any]) -> None:
        shared = [each for each in works if isinstance(each, SharedSum) and not each.finished]
        with self._waiting("gradients"):
            if shared and self._sums is not None:
                self._sums.finish(shared, lambda: self._meet("sums", "gradients", len(shared)))
            for work in works:
                if not isinstance(work, SharedSum):
                    work.wait()

    def sums_read(self) -> None:
        """What was summed in shared memory is not needed any more."""
        if self._sums is not None and self._sums.to_be_freed:
            with self._waiting("gradients"):
                self._meet("end of sums", "gradients", 0)
            self._sums.free(self)

    def _on(self, tensor: torch.Tensor, on_cpu: Any, purpose: str = "calls") -> Any:
        if tensor.device.type == "cpu":
            return on_cpu
        if purpose not in self._on_gpu:
            self._on_gpu[purpose] = nccl_group(
                self.store, f"{self._name}gpu-{purpose}", self.rank, self.size, _PATIENCE
            )
        return self._on_gpu[purpose]

    @contextmanager
    def _waiting(self, what: str, for_one: bool = False) -> Iterator[None]:
        self.monitor.waits(what, for_one=for_one)
        began = time.monotonic()
        try:
            with self._reaching():
                yield
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


def seed_of(group: Group, own: str) -> str:
    """What rank 0 takes for all hidden entropy: `own`, where it has one."""
    return str(group.told_by_first(own or os.urandom(16).hex(), "the seed"))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its memory as bytes: every type can be gathered so."""
    return tensor.reshape(-1).view(torch.uint8)
