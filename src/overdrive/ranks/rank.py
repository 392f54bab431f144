"""This process as one rank of a run: from its start to its end."""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overdrive.core.exchanged import Exchanged
from overdrive.core.rng import reseed
from overdrive.core.streams import flush
from overdrive.machine.parent import end_with_parent
from overdrive.ranks.data import DataCompared, FilesRead
from overdrive.ranks.entropy import Entropy, share, share_torch
from overdrive.ranks.files import FileOrder
from overdrive.ranks.first_times import FirstTimes
from overdrive.ranks.input import take_own
from overdrive.ranks.lockstep import Lockstep
from overdrive.ranks.membership import IMAGINED, LOGS, SEED, Membership
from overdrive.ranks.monitor import TOLD, note_told
from overdrive.ranks.output import RankOutput
from overdrive.ranks.own_groups import watch_for_own_groups
from overdrive.ranks.trackers import keep_here
from overdrive.sandbox.isolation import FOLLOWERS, isolate, redirect_torch
from overdrive.seams.arrival import Arrival
from overdrive.seams.keras import control

if TYPE_CHECKING:
    from overdrive.ranks.group import Group
    from overdrive.seams.hub import Seams

_SHARED_FATE = 3.0  # seconds in which rank 0 fails as another one did: then its traceback is enough
_LAST = 3.0  # seconds for which rank 0 keeps the store for a rank that says nothing more
_SHOWN = "shown"  # in the store: a rank above 0 has shown its traceback
_WORDS_OF_THE_END = ("over/0", TOLD, _SHOWN)

_TITLES = {"tensorflow": "TensorFlow", "jax": "JAX"}
_current: list[Rank] = []


def current() -> Rank | None:
    """The rank that this process is; None where it is alone."""
    return _current[0] if _current else None


class Rank:
    """Made before the program starts, and before PyTorch is imported.

    Attributes:
        divides: whether calls are divided; the program may bring its own parallelism.
        technique: that divides them.
        first_times: has the times that the program reads be rank 0's, once it is told to answer.
        batches_alone: whether it divides batches, and nothing else.
        parts: what this rank alone has of parameters, once it has some (see `survive.in_parts.Parts`).
        write_stacks: see `Monitor`.
    """

    def __init__(
        self,
        membership: Membership,
        keep: list[Path],
        catch_failures: Callable[[Any], None],
        trial: bool = False,
        chance: str = "",
    ) -> None:
        """
        Args:
            keep: folders that ranks above 0 really write to.
            catch_failures: takes our frames out of an error's traceback.
            trial: each rank is the worker of a trial, which sees to what it prints and writes.
            chance: of rank 0, the seed of all hidden entropy, where a launcher has started the ranks; "" draws one.
        """
        self._membership, self._clean = membership, catch_failures
        self.rank, self.size = membership.rank, membership.size
        seed = os.environ.pop(SEED, "")
        logs = os.environ.get(LOGS) if seed and not trial else None
        if seed and not trial:
            take_own(logs, self.rank)
        self.output = RankOutput(membership, apart=not trial)
        if seed:  # our own agent started us
            end_with_parent(signal.SIGTERM)
        scratch = self.output.scratch
        self._view = isolate(scratch, [*keep, scratch.parent], for_good=False) if scratch else None
        self._tells_trackers = keep_here() if scratch else lambda: None
        gpus = len(glob.glob("/dev/nvidia[0-9]*"))
        if not gpus:  # else it should be beside its GPU
            membership.take_cores()
        membership.hide()
        membership.take_gpu(gpus)
        self._files: FileOrder | None = None
        self._read: FilesRead | None = None
        self._entropy = Entropy(seed) if seed else self._entropy_of_first(chance)
        share(self._entropy)
        met = lambda: self.__dict__.get("group") if self.divides else None  # noqa: E731
        if not trial:
            self._read = None if membership.one_host else FilesRead()
            self._files = FileOrder(self.rank, self.size, met, self.say, self._read)
        say_own = lambda what: self.output.say(f"{self.name} {what}")  # noqa: E731
        self.lockstep = Lockstep(lambda: self.group, say_own)
        before = Path(logs) / "times" if logs else None
        self.first_times = FirstTimes(self.rank, met, self.lockstep.alone, before, say_own)
        self.technique, self.batches_alone = "data_parallel", True
        self.parts: Any = None
        self.write_stacks: Callable[[str], bool] = lambda why: False
        _current.append(self)

    @property
    def divides(self) -> bool:
        return not self._membership.own

    @property
    def waits_for_others(self) -> bool:
        return "group" in self.__dict__ and self.group.monitor.waiting

    def ask_for_stacks(self) -> None:
        """Of all other ranks."""
        if "group" in self.__dict__:
            self.group.monitor.ask_for_stacks()

    @property
    def name(self) -> str:
        return f"rank {self.rank} of {self.size} on {socket.gethostname()}"

    @cached_property
    def group(self) -> Group:
        from overdrive.ranks.arriving import CannotMeet
        from overdrive.ranks.group import Group
        from overdrive.ranks.imagined import ImaginedGroup

        kind = ImaginedGroup if IMAGINED in os.environ else Group
        try:
            made = kind(self._membership, self._ended)
        except CannotMeet as error:
            if str(error):
                self.output.say(str(error))
            flush()
            os._exit(1)
        made.monitor.write_stacks = lambda why: self.write_stacks(why)
        made.let_write = lambda: self._files.writes.wait_for_end() if self._files is not None else None
        return made

    def observe(self, seams: Seams) -> None:
        """An observer for `Session`."""

        def own(reason: str) -> None:
            seams.leave_out(self.technique, f"the program brings its own parallelism ({reason})")
            self.lockstep.stop()
            self._stand_apart()

        self._membership.on_own.append(own)
        if self._view is not None:
            for library, follow in FOLLOWERS.items():
                Arrival(library, follow).watch()
        seams.framework_arrived.subscribe(lambda: self._torch_arrived(seams))
        seams.keras_used.subscribe(self._keras_used)
        self.lockstep.observe(seams)
        if self._read is not None:
            DataCompared(self._read, lambda: self.group, lambda: self.lockstep.goes, self.say).observe(seams)

    def leave_to_program(self, reason: str) -> None:
        """It brings its own parallelism: nothing is divided or compared from here on."""
        self._membership.leave(reason)

    def say(self, sentence: str) -> None:
        if self.rank == 0:
            self.output.say(sentence)

    def exchanged(self) -> Exchanged:
        """With the others, so far."""
        return self.group.tally.so_far() if "group" in self.__dict__ else Exchanged()

    def leave(self) -> None:
        """This process is about to end for all, and has said why."""
        with contextlib.suppress(RuntimeError):
            note_told(self.group.store)
            self.group.leave_note(True, "")

    def over(self, failure: BaseException | None, code: int) -> int:
        """The program has ended; the exit code for this process."""
        failed = bool(code)
        self.first_times.over()
        if "group" not in self.__dict__:  # it never used PyTorch: each rank ran it alone
            return code if self.rank == 0 else 0
        group = self.group
        if not failed and self.divides:
            self.lockstep.compare("at the end")
        try:
            group.leave_note(failed, _words(failure))
            if self.rank:
                return self._follow_first(failure, code)
            self._wait_for_others(failed)
        except RuntimeError:  # of the store: who had it is gone
            pass
        finally:
            group.monitor.stop()
        return code

    def over_in_trial(self, failed: bool) -> None:
        """The program has ended, or failed; its worker goes on to report, and needs no other rank any more."""
        self.first_times.over()
        if "group" in self.__dict__ and not failed and self.divides:
            self.lockstep.compare("at the end")
        self.over_alone()

    def over_alone(self) -> None:
        """This process needs no other rank any more."""
        if "group" in self.__dict__:
            self.group.monitor.stop()

    # -- inside ---------------------------------------------------------------------------------

    def _stand_apart(self) -> None:
        """In a program with a parallelism of its own each rank has files and chance of its own."""
        self._tells_trackers()
        if self._files is not None:
            self._files.writes.hear_no_more()
        if self._read is not None:
            self._read.notes = False
        if self._view is not None and not self._view.lift() and self.rank == 1:
            self.output.say("what ranks above 0 write is thrown away: this system cannot give them the real files")
        self._entropy.apart(self.rank)
        if not self.lockstep.seeded:
            reseed(self._entropy.number())
            if "torch" in sys.modules:
                sys.modules["torch"].cuda.manual_seed_all(self._entropy.number())

    def _entropy_of_first(self, chance: str) -> Entropy:
        from overdrive.ranks.group import seed_of

        return Entropy(seed_of(self.group, chance))

    def _torch_arrived(self, seams: Seams) -> None:
        if seams.frameworks[-1] != "torch":
            return
        redirect_torch()
        self.first_times.met()
        share_torch(self._entropy)
        watch_for_own_groups(self._membership)
        if self._membership.without_gpu:
            from overdrive.seams.torch.internals import when_cuda_is_used

            when_cuda_is_used(self._refuse_gpu)
        if self.divides:
            self.lockstep.agree_on_chance()
        if self._files is not None:
            from overdrive.seams.torch import late_compiler

            self._files.follow(sys.modules["torch"])
            late_compiler.load_within(self._files.uncounted)  # it makes folders on one rank and not on another

    def _refuse_gpu(self) -> None:
        """Another rank has it: NCCL takes no two ranks of one GPU, and says so in many lines."""
        if self.divides:
            self.group.end(self._membership.without_gpu)

    def _keras_used(self) -> None:
        """Before its first model or optimizer: what cannot be divided is not run as often as there are ranks."""
        if not self.divides:
            return
        if (backend := control.backend()) != "torch":
            self.say(
                f"Keras is divided over ranks where it runs on PyTorch (KERAS_BACKEND=torch), and here it runs on "
                f"{_TITLES.get(backend, backend)}: without ranks this program runs as it is"
            )
        elif not self.batches_alone:
            self.say("of a program of Keras only the batches are divided: leave out --layout, or give data=N")
        else:
            return
        raise SystemExit(1)

    def _follow_first(self, failure: BaseException | None, code: int) -> int:
        """A rank above 0 ends after rank 0, with whose code the run ends; unless it fails alone."""
        group, began = self.group, time.monotonic()
        while (note := group.note_of(0)) is None:
            alone = time.monotonic() - began > _SHARED_FATE or group.store.check(["stuck/0"])
            if code and alone:
                self._tell(failure)
                return code
            time.sleep(0.05)
        group.store.set(f"gone/{self.rank}", "")
        if code and not note["failed"]:
            self._tell(failure)
            return code
        return 0

    def _tell(self, failure: BaseException | None) -> None:
        step = self.group.monitor.step + 1
        self.output.keep()
        self.output.say(f"{self.name} failed in step {step}; what it printed is in {self.output.log}")
        if failure is not None and not isinstance(failure, SystemExit):
            self._clean(failure)
            self.output.tell("".join(traceback.format_exception(failure)))
        self.group.store.set(_SHOWN, "")

    def _wait_for_others(self, failed: bool) -> None:
        """Where rank 0 keeps the store, they are to have read its note; where it has not failed, those too that still
        work on what is asked of no other rank."""
        if self._membership.agents_store:
            return
        store, until = self.group.store, time.monotonic() + _LAST
        beats: dict[int, Any] = {}
        while time.monotonic() < until:
            left = [each for each in range(1, self.size) if not store.check([f"gone/{each}"])]
            if not left:
                return
            before, beats = beats, {each: store.get(f"beat/{each}") for each in left}
            if beats != before and not failed:
                until = time.monotonic() + _LAST
            time.sleep(0.05)

    def _ended(self, sentence: str, store: Any) -> None:
        """Of the group, which ends this process next, and may not have met yet."""
        if not sentence:
            self._wait_until_told(store)
        elif self._first_to_tell(store):
            log = f"; what rank {self.rank} printed is in {self.output.log}" if self.output.log else ""
            self.output.say(sentence + log)
        flush()

    def _wait_until_told(self, store: Any) -> None:
        """Another rank has failed, and tells so once it knows that this one does not fail as well."""
        until = time.monotonic() + 2 * _SHARED_FATE
        with contextlib.suppress(RuntimeError):
            store.set(f"stuck/{self.rank}", "")
            while time.monotonic() < until and not any(store.check([key]) for key in _WORDS_OF_THE_END):
                time.sleep(0.05)

    def _first_to_tell(self, store: Any) -> bool:
        try:
            return note_told(store)
        except RuntimeError:
            return self.rank == 0


def _words(failure: BaseException | None) -> str:
    return "" if failure is None else f"{type(failure).__name__}: {failure}"[:300]
