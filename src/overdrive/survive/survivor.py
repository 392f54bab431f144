"""One run that survives, inside its process: it is recorded, or made again up to a snapshot and then recorded.

While it is made again (`replaying`), calls of models, backward passes and optimizers' steps are not made; what they
return is made of zeros, and whatever the program asks of a tensor is answered from the journal. So no number of a
tensor counts until the snapshot's step, where all of them are put back. Whatever does not come out as the first time
ends that attempt: the run begins anew from its start, which is always right.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from overdrive.sandbox.redirect import on_path
from overdrive.seams.patch import Patches
from overdrive.seams.points import reason_of
from overdrive.survive import clocks
from overdrive.survive.calls import Calls
from overdrive.survive.ending import Ending, end_children
from overdrive.survive.files import Files, open_for_writing
from overdrive.survive.identity import modules_of_program
from overdrive.survive.journal import Damaged, Journal
from overdrive.survive.rehearsed_files import RehearsedFiles
from overdrive.survive.taking import Snapshots, watch_graphs

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.survive.folder import RunFolder
    from overdrive.survive.interval import SnapshotInterval
    from overdrive.survive.output import SavedOutput
    from overdrive.survive.snapshot import Snapshot
    from overdrive.survive.under_plan import UnderPlan


class Survivor:
    """An observer for `Session`."""

    def __init__(
        self,
        folder: RunFolder,
        output: SavedOutput,
        interval: SnapshotInterval,
        ending: Ending,
        say: Callable[[str], None],
        start_again: Callable[[str], NoReturn],
        plan: UnderPlan,
    ) -> None:
        """
        Args:
            start_again: begins the run from its start, in this process's place; given the reason.
            plan: that it runs under.
        """
        self.folder, self._output, self._interval, self._say = folder, output, interval, say
        self._start_again = start_again
        self.ending = ending
        self.plan = plan
        self.keeps_samples = plan.keeps_samples
        self._told_failure = False
        self._asked_at = 0  # the step before which that was
        self.journal = Journal(folder.journal)
        self.steps = 0
        self.inside = False  # a call that is skipped as a whole: what is asked in it is not told
        self.why_not: str = folder.notes.get("from the start", "")  # why a run that ends here begins from its start
        self._target: Snapshot | None = None
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._due_at = time.monotonic() + interval.seconds
        self._plain_clock = time.monotonic
        self._files = Files(folder.path)
        self._files.on_started = lambda: self.cannot_skip("it starts another program, whose work cannot be skipped")
        self._files.on_lost = self._lost
        self._states: dict[int, Any] = {}  # of its files, by the snapshot's step
        self._rehearsed: RehearsedFiles | None = None
        self._patches: Patches | None = None
        self._snapshots = Snapshots(folder.path)
        self._calls = Calls(self)

    @property
    def replaying(self) -> bool:
        return self._target is not None

    @property
    def warming(self) -> bool:
        return self.replaying and self.steps < self.plan.settling

    def begin(self) -> None:
        """Before the program starts: find the newest snapshot that is whole."""
        clocks.tell(self._calls.time)
        self.ending.listen()
        self._find()
        if self._target is not None:
            self._rehearsed = RehearsedFiles(self.folder.path, self._files)
            self._rehearsed.enter()
            self._output.mute(True)
        else:
            if not self.folder.is_new:
                self._say(f"begun from its start again: {self.why_not or 'there is no snapshot yet'}")
                self._files.put_back({})
            self._files.listen()

    def ask(self) -> None:
        """For a snapshot after the step that is under way."""
        self._due_at = self._plain_clock()

    def _find(self) -> None:
        from overdrive.survive import snapshot

        for path in snapshot.found(self.folder.path) if not self.why_not else ():
            try:
                found = snapshot.read(path)
                self.journal.read(found.header["journal"]["bytes"], found.header["journal"]["sha256"])
            except Damaged as error:
                self._say(f"{error}; an older snapshot is taken")
                continue
            self._target = found
            return

    def __call__(self, seams: Seams) -> None:
        self.plan.follow(seams)
        seams.framework_arrived.subscribe(self._follow_torch)
        self._calls.follow(seams)
        seams.step_ends.subscribe(self.guarded(self._step_ends))

    def guarded(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """`act`, whose failure ends what it is part of: who is left out by the hub must not have begun to answer."""

        @functools.wraps(act)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return act(*args, **kwargs)
            except Exception as error:
                if not self._elsewhere():
                    reason = f"at step {self.steps}, {reason_of(error)}"
                    self.begin_anew(reason) if self.replaying else self.cannot_skip(reason)
                raise

        return guarded

    def begin_anew(self, reason: str) -> NoReturn:
        """The attempt to go on has failed."""
        self.folder.note(**{"from the start": reason})
        self._output.mute(False)
        end_children()
        self._start_again(reason)

    def cannot_skip(self, reason: str) -> None:
        """Found out while recording: the program cannot be made again up to a snapshot."""
        if not self.why_not:
            self.why_not = reason
            with contextlib.suppress(OSError):  # no room there: then it is found out again
                self.folder.note(**{"from the start": reason})
            self._say(f"this program cannot be gone on with in its middle: {reason}. Killed, it begins from its start")

    def _lost(self, error: OSError) -> None:
        self.cannot_skip(f"{self.folder.path} takes no more ({error.strerror})")

    def over(self, failure: BaseException | None) -> None:
        """The program has ended; by itself, where nothing is given or its code is 0."""
        self._files.noting = False
        if self.replaying:
            self.begin_anew("it ended before it came to the snapshot's step" + (f" ({failure})" if failure else ""))
        if failure is None or (isinstance(failure, SystemExit) and not failure.code):
            with contextlib.suppress(OSError):
                self.folder.note(finished=True)

    def aside(self) -> bool:
        """Whether nothing is to be noted or answered: inside of a call, in a thread or a process of the program's."""
        return self.inside or bool(self.why_not) or self._elsewhere()

    def _elsewhere(self) -> bool:
        if os.getpid() != self._process:
            return True
        return threading.get_ident() != self._thread

    def _follow_torch(self) -> None:
        """Given a path, PyTorch opens it where nobody hears of it."""
        import torch

        if self._rehearsed is not None and self.replaying:
            self._rehearsed.follow()
        elif self._patches is None:
            self._patches = Patches()
            self._patches.replace(torch, "save", on_path(torch.save, 1, self._files.noted))

    def _known_path(self, path: str) -> str | None:
        return path if path in self._files.before else None

    def _step_ends(self, optimizer: Any) -> None:
        if self._elsewhere():
            return
        self.steps += 1
        if self._output.failure:
            self._lost(self._output.failure)
        if self.ending.asked_by and (self.why_not or self.replaying):
            self._end("it begins from its start again" if self.why_not else "it goes on from the snapshot before")
        if self._target is not None:
            if self.steps == self._target.header["step"]:
                self._go_on(self._target)
            return
        if self.ending.asked_by and not self._asked_at:
            self._asked_at = self.steps
        due = self._plain_clock() >= self._due_at or self._asked_at > max(self._snapshots.kept, 0)
        if self._snapshots.under_way:
            due = self._snapshots.stepped(optimizer)
            if not self._snapshots.under_way and not due:
                self._interval.took(self._snapshots.cost)
                self._due_at = self._plain_clock() + self._interval.seconds
                self._drop_contents()
                self._tell_failure()
        if self._asked_at and self._snapshots.kept >= self._asked_at:
            self._end(f"the same command goes on after step {self._snapshots.kept:,}")
        if due and not self.why_not and id(optimizer) not in self._snapshots.crossed:
            self._take(optimizer)

    def _tell_failure(self) -> None:
        """Of a snapshot that was due to be kept: there may be room for the next."""
        failure = self._snapshots.failure
        if failure and not self._told_failure:
            self._told_failure = True
            self._say(f"no snapshot after step {self.steps:,}: {self.folder.path} takes no more ({failure.strerror})")
        if failure and self.ending.asked_by:
            before = any(self.folder.path.glob("step-*.snapshot"))
            self._end(f"it {'goes on from the snapshot before' if before else 'begins from its start again'}")

    def _drop_contents(self) -> None:
        """A snapshot was kept, and an old one is gone: so are the files' contents that only that one had."""
        from overdrive.survive import snapshot

        steps = snapshot.steps_of(self.folder.path)
        self._states = {step: self._states[step] for step in steps if step in self._states}
        if len(self._states) == len(steps):  # else one is an earlier process's
            self._files.keep_only(list(self._states.values()))

    def _end(self, sentence: str) -> NoReturn:
        self._say(f"stopped by {signal.Signals(self.ending.asked_by).name}: {sentence}")
        self.ending.end()

    def _take(self, optimizer: Any) -> None:
        from overdrive.survive import heap, state

        self.inside = True
        began = self._plain_clock()
        try:
            found = heap.Heap(sys._getframe())
            taking = state.Taking(found)
            length, digest = self.journal.flush()
            header: dict[str, Any] = {
                "format": 1,
                "step": self.steps,
                "journal": {"bytes": length, "sha256": digest},
                "gradients there": self._calls.with_gradients,
                "printed": self._output.at,
                "files": self._files.states(),
                "techniques": self.plan.told(),
                "positions": [[path, place] for _, path, place, _ in open_for_writing(self._known_path)],
            }
            if self.folder.notes.get("modules") != (modules := modules_of_program()):
                self.folder.note(modules=modules)
            self._states[self.steps] = header["files"]
            self._snapshots.take(found, optimizer, header, taking)
            self._snapshots.cost += self._plain_clock() - began
        except state.CannotTake as error:
            self.cannot_skip(str(error))
        except Exception as error:
            self.cannot_skip(f"no snapshot could be taken ({type(error).__name__}: {error})")
        finally:
            self.inside = False
        self._due_at = self._plain_clock() + self._interval.seconds

    def _go_on(self, target: Snapshot) -> None:
        from overdrive.survive import heap, state

        if self.journal.to_come:
            self.begin_anew(f"at step {self.steps}, it asked for less than the first time")
        self.inside = True
        try:
            found = heap.Heap(sys._getframe())
            state.put_back(found, target.header, target.block)
            watch_graphs(found, self._calls.passed_through)
            assert self._rehearsed is not None
            self._output.go_on_at(*target.header["printed"])
            self._rehearsed.leave(target.header["files"], target.header["positions"])
            self.plan.take_back(target.header["techniques"])
            self._calls.with_gradients = target.header["gradients there"]
        except Exception as error:
            self.begin_anew(f"what it holds at step {self.steps} is not what it held then: {error}")
        finally:
            self.inside = False
        self._target = None
        self._files.listen()
        self._follow_torch()
        self._output.mute(False)
        self._say(f"gone on after step {self.steps:,}")
        self._due_at = self._plain_clock() + self._interval.seconds
