"""What ranks say to each other: words, gathers, sums, and what one sends to another."""

from __future__ import annotations

import copy
import json
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from overdrive.machine.pool.shared_memory import SharedSlots, SharedSum, SharedSums
from overdrive.ranks.meeting import Meeting
from overdrive.ranks.membership import Membership
from overdrive.ranks.requests import Requests
from overdrive.seams.torch.internals import gather

MOST_TO_ADD = 4  # ranks of which each reads all that is summed; with more gloo divides it among them


class Group(Meeting):
    """All ranks of this run, or a part of them. Its calls are for the main thread of the process that made it."""

    def __init__(self, membership: Membership, end: Callable[[str, Any], None]) -> None:
        super().__init__(membership, end)
        self._sums: SharedSums | None = None
        self._share_memory()

    def _share_memory(self) -> None:
        """Ranks of one machine talk by memory from here on."""
        if self.size > 1 and (slots := SharedSlots.among(self)) is not None:
            self._requests = Requests(slots, self.size)
            self._sums = SharedSums(self.rank, self.size)
            self.tally.by_memory = True

    def part(self, name: str, members: Sequence[int]) -> Group:
        """Some of the ranks of the run, which count from 0 there, in this order; this one is among them.

        Every rank makes its part at the same time, and all ask their parts for the same: they meet as in the run. What
        goes beside that (`begin_sum`, from one to another) is each part's own.
        """
        self._run._meet("connection", f"its {name}", 0)
        made: Group = copy.copy(self._run)
        made.rank, made.size = members.index(self._run.rank), len(members)
        made.connect(f"{name} {members[0]} ", members)
        made._sums = None
        return made

    # -- words ----------------------------------------------------------------------------------

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
        with self._waiting(what, moved=whole.nbytes):
            self._meet("gather", what, own.nbytes)
            self.tally.count("all_gather", whole.nbytes)
            gather(self._on(own, self._calls), _bytes(whole), _bytes(own)).wait()

    def _gathered(self, own: torch.Tensor, what: str) -> torch.Tensor:
        """The bytes of all ranks."""
        in_slots = own.device.type == "cpu" and (self.tally.by_memory or len(own) <= self._requests.room)
        with self._waiting(what, moved=0 if in_slots else self.size * len(own)):
            if in_slots:
                self._count_meeting("gather", len(own))
                return self._requests.gathered(own, self._members, lambda: self._marked("gather", what, len(own)))
            # Before they meet, after which the others go on: memory may be short.
            whole = own.new_empty(self.size * len(own))
            self._meet("gather", what, len(own))
            self.tally.count("all_gather", len(whole))
            gather(self._on(own, self._calls), whole, own).wait()
        return whole

    def sum_(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """The sum over ranks, in its place."""
        shares = self.tally.by_memory and self.size <= MOST_TO_ADD
        in_slots = tensor.device.type == "cpu" and (shares or tensor.nbytes <= self._requests.room)
        with self._waiting(what, moved=0 if in_slots else tensor.nbytes):
            if in_slots:
                own = tensor.contiguous().view(-1)
                self._count_meeting("sum", own.nbytes)
                meet = lambda: self._marked("sum", what, own.nbytes)  # noqa: E731
                return tensor.copy_(self._requests.summed(own, self._members, meet).view(tensor.shape))
            self._meet("sum", what, tensor.nbytes)
            self.tally.count("all_reduce", tensor.nbytes)
            self._on(tensor, self._calls).allreduce([tensor]).wait()
        return tensor

    def broadcast(self, tensor: torch.Tensor, source: int, what: str) -> None:
        """That rank's tensor, into all ranks', which are of one piece."""
        with self._waiting(what, moved=tensor.nbytes):
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
            return self._begun(self._stages.send([tensor], to, tag), tensor.nbytes)

    def begin_receive(self, room: torch.Tensor, source: int, tag: int) -> Any:
        with self._reaching():
            return self._begun(self._stages.recv([room], source, tag), room.nbytes)

    def wait_for(self, work: Any, what: str) -> None:
        with self._waiting(what, for_one=True):
            work.wait()
            self._run.under_way.pop(work, None)

    def _begun(self, work: Any, size: int) -> Any:
        self._run.under_way[work] = size
        return work

    # -- gradients --------------------------------------------------------------------------------

    def begin_sum(self, tensor: torch.Tensor) -> Any:
        """Of gradients, beside the backward pass; `finish` waits for it."""
        self.tally.count("all_reduce", tensor.nbytes)
        with self._reaching():
            return self._begun(self._on(tensor, self._gradients, "gradients").allreduce([tensor]), tensor.nbytes)

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
                    self._run.under_way.pop(work, None)

    def sums_read(self) -> None:
        """What was summed in shared memory is not needed any more."""
        if self._sums is not None and self._sums.to_be_freed:
            with self._waiting("gradients"):
                self._meet("end of sums", "gradients", 0)
            self._sums.free(self)


def seed_of(group: Group, own: str) -> str:
    """What rank 0 takes for all hidden entropy: `own`, where it has one."""
    return str(group.told_by_first(own or os.urandom(16).hex(), "the seed"))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its memory as bytes: every type can be gathered so."""
    return tensor.reshape(-1).view(torch.uint8)
