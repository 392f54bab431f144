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
from collections.abc import Callable, Iterator
from os import getpid
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from overdrive.core.streams import flush
from overdrive.ranks.entropy import seed_tensorflow
from overdrive.seams import clocks
from overdrive.seams.points import reason_of
from overdrive.survive.calls import Calls
from overdrive.survive.ending import IN_VAIN, Ending, end_children
from overdrive.survive.failures import Failures, came_from, may_be_outage, what_then
from overdrive.survive.files import Files
from overdrive.survive.folder import FETCHES, FROM_START, NO_MORE
from overdrive.survive.in_keras import InKeras
from overdrive.survive.inputs import Inputs
from overdrive.survive.journal import Journal
from overdrive.survive.left_behind import put_back
from overdrive.survive.library_files import LibraryFiles
from overdrive.survive.rank_of_run import RankOfRun
from overdrive.survive.recording import Recording
from overdrive.survive.replay import Replay

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.survive.folder import RunFolder
    from overdrive.survive.in_group import InGroup
    from overdrive.survive.in_parts import Parts
    from overdrive.survive.interval import SnapshotInterval
    from overdrive.survive.output import UnsavedOutput
    from overdrive.survive.under_plan import UnderPlan


class Survivor:
    """An observer for `Session`."""

    def __init__(
        self,
        folder: RunFolder,
        output: UnsavedOutput,
        interval: SnapshotInterval,
        ending: Ending,
        say: Callable[[str], None],
        start_again: Callable[[str, str], NoReturn],
        plan: UnderPlan,
        group: InGroup | None = None,
    ) -> None:
        """
        Args:
            start_again: begins this process anew; given the note that is to be taken, and the reason.
            plan: that it runs under.
            group: of ranks that this process is one of.
        """
        self.folder, self.output, self.say = folder, output, say
        self._start_again = start_again
        self.ending = ending
        self.plan = plan
        self._rank = RankOfRun(group)
        self._passive = self._rank.passive
        self.keeps_samples = plan.keeps_samples
        self.journal = Journal(self._rank.journal_in(folder.journal_of))
        self.steps = 0
        self.inside = False  # a call that is skipped as a whole: what is asked in it is not told
        self.why_not: str = folder.notes.get(FROM_START, "")  # why no snapshot is taken (any more)
        self._began_at = 0  # the last snapshot's step as this process began
        self._replay: Replay | None = None
        self._failures = Failures(folder.path, self._rank.number)
        self._process, self._thread = getpid(), get_ident()
        self.files = Files(folder.path)
        self.files.on_started = lambda what: self.cannot_skip(f"it {what}, whose work cannot be skipped")
        self.files.on_lost = self._lost
        self._library_files = LibraryFiles(self.files, lambda: self._replay.files if self._replay else None)
        self.inputs = Inputs(folder.path, self.files.lasts)
        self.files.on_read = self.inputs.heard
        ending.at_once = self._end_without_a_step
        self.calls = Calls(self)
        self._recording = Recording(self, interval, self._rank.in_parts)

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    @property
    def skips_fetches(self) -> bool:
        replay = self._replay
        return replay is not None and replay.fetches_can_be_told and FETCHES not in self.folder.notes

    @property
    def warming(self) -> bool:
        return self.replaying and self.steps < self.plan.settling

    def begin(self) -> None:
        """Before the program starts: find the newest snapshot that is whole.

        Raises:
            Unusable: there is none, and the files cannot be made what they were.
        """
        clocks.tell(self._rank.told(self.calls.times.time), self.calls.times.in_library)
        self.ending.pass_over() if self._rank.follows else self.ending.listen()
        self._library_files.listen()
        self._find()
        self._began_at = self._last_snapshot()
        if not self._passive:
            self._recording.snapshots.forget_candidate()
        if self._replay is not None:
            self._replay.begin(self.calls, self.output)
        else:
            if not self.folder.is_new:
                reason = self.why_not or self.folder.notes.get(NO_MORE) or "there is no snapshot yet"
                self.say(f"begun from its start again: {reason}")
                put_back(self.files, self.folder.path, None if self._rank.follows else self.say)
            self._listen()

    def _listen(self) -> None:
        if not self._rank.follows:
            self.files.listen()

    def ask(self) -> None:
        """For a snapshot after the step that is under way."""
        self._recording.ask()

    def _find(self) -> None:
        if self.why_not:
            return
        if target := self._rank.newest(self.folder.path, self.journal, self.say, self._start_again):
            self._replay = Replay(target, self.folder.path, self.files, self._rank.number)

    def __call__(self, seams: Seams) -> None:
        self.plan.follow(seams)
        seams.framework_arrived.subscribe(lambda: self._arrived(seams))

    def _arrived(self, seams: Seams) -> None:
        """A framework; what divides calls over ranks has subscribed by now: we act outside of it, too."""
        if seams.frameworks[-1] != "torch":
            return self._keras_arrived(seams)
        self._library_files.torch_arrived()
        self.calls.follow(seams)
        if self._rank.launched:
            from overdrive.seams.torch.workers_apart import set_workers_apart

            seams.on_undo(set_workers_apart())
        seams.step_ends.subscribe(self.guarded(self._step_ends))

    def _keras_arrived(self, seams: Seams) -> None:
        if self._rank.alone:
            seed_tensorflow(self.folder.manifest["seed"])
        self._library_files.keras_arrived()
        self.calls.in_keras = InKeras(self, self._step_ends, alone=self._rank.alone and not self.plan.settling)
        self.calls.in_keras.follow(seams)

    def guarded(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """`act`, whose failure ends what it is part of: who is left out by the hub must not have begun to answer.

        An error of the call that it acts around is the program's own, which may go on from it. Made again, the call
        would not fail: nothing more is taken, and what there is stands.
        """

        @functools.wraps(act)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return act(*args, **kwargs)
            except Exception as error:
                if not self.elsewhere():
                    reason = f"at step {self.steps}, {reason_of(error)}"
                    sound = len(args) > 1 and came_from(args[1], error)
                    self._fails(error, reason) if self.replaying else self.cannot_skip(reason, sound)
                raise

        return guarded

    def begin_anew(self, reason: str) -> NoReturn:
        """The attempt to go on has failed. With what was put in by now the program must not go on, whatever comes."""
        note = FETCHES if (fetching := self.calls.fetching) and fetching.batches.skipped else FROM_START
        try:
            self._failures.forget()
            if not self._rank.follows:
                self.folder.note(**{note: reason})
            self.output.mute(False)
            end_children()
            self._start_again(note, reason)
        except BaseException as error:  # the disk is full, say
            told = f"overdrive: the run cannot go on: {reason}; nor begin from its start: {reason_of(error)}\n"
            os.write(2, told.encode(errors="replace"))
            os._exit(os.EX_IOERR)

    def cannot_skip(self, reason: str, sound: bool = True) -> None:
        """Found out while recording: the program cannot be made again up to a snapshot that would come now.

        Args:
            sound: whether it can be up to those that there are.
        """
        if self._rank.follows:
            return
        lost = not sound and self._recording.forget()
        if self.why_not and not lost:
            return
        self.why_not = reason
        with contextlib.suppress(OSError):  # no room there: it is for people
            self.folder.note(**{NO_MORE: reason})
        if step := self._last_snapshot():
            self.say(f"no more snapshots are taken: {reason}. Killed, it goes on after step {step:,}")
        else:
            self.say(f"this program cannot be gone on with in its middle: {reason}. Killed, it begins from its start")

    def _last_snapshot(self) -> int:
        """Its step; 0 where a run that ends here begins from its start."""
        from overdrive.survive import snapshot

        return 0 if FROM_START in self.folder.notes else max(snapshot.steps_of(self.folder.path), default=0)

    def _lost(self, error: OSError) -> None:
        """What the run has to put back was not kept."""
        self.cannot_skip(f"{self.folder.path} takes no more ({error.strerror})", sound=False)

    def over(self, failure: BaseException | None) -> None:
        """The program has ended."""
        self.files.noting = False
        self._recording.snapshots.over()
        if isinstance(failure, KeyboardInterrupt):  # where it was just then says nothing
            self.output.leave()
        elif self.replaying:
            if failure is None or (isinstance(failure, SystemExit) and failure.code in (None, 0)):
                self.begin_anew("it ended before it came to the snapshot's step")
            self._break_off(failure)

    def _break_off(self, failure: BaseException) -> None:
        """It failed while it was made again. Whoever tries once more finds the snapshots."""
        if self._failures.comes_again(failure):
            self.begin_anew(f"it failed twice before it came to the snapshot's step ({reason_of(failure)})")
        self.output.leave()
        self.say(what_then(failure))

    def _fails(self, error: Exception, reason: str) -> NoReturn:
        """What is done here while it is made again has failed. The program must not go on with what was put in."""
        if not may_be_outage(error):
            self.begin_anew(reason)
        try:
            self._break_off(error)
            sys.excepthook(type(error), error, error.__traceback__)
            flush()
            end_children()
            self._rank.leave()
        finally:
            os._exit(1)

    def done(self) -> None:
        """It has ended well, and all is written that tells of it: it need not be made again."""
        if not self._rank.follows:
            with contextlib.suppress(OSError):
                self.folder.note(finished=True)

    def aside(self) -> bool:
        """Whether nothing is to be noted or answered: inside of a call, in a thread or a process of the program's."""
        if self.why_not or self.inside:  # some twenty times a step: each call that is saved here counts
            return True
        return get_ident() != self._thread or getpid() != self._process or (self._passive and self._replay is None)

    def beside(self) -> bool:
        return self.inside or self.elsewhere()

    def by_thread(self) -> None:
        """A model is called, a step made, a loader opened or samples fetched, where nothing is noted or answered.

        In a thread of the program's that is as far as chance will have it when the run is made again. While a call is
        made, its threads are PyTorch's: of `DataParallel`, or those that compute a part once more on the way back.
        """
        if self.why_not or self.inside or get_ident() == self._thread or getpid() != self._process:
            return
        reason = "it computes in a thread of its own, which is as far as chance will have it"
        self.begin_anew(reason) if self.replaying else self.cannot_skip(reason)

    def elsewhere(self) -> bool:
        return get_ident() != self._thread or getpid() != self._process

    def _step_ends(self, optimizer: Any) -> None:
        if self.calls.holds_step(optimizer) or self.elsewhere():
            return
        self.steps += 1
        if self.output.failure:
            self._lost(self.output.failure)
        if self.ending.asked_by and (self.why_not or self.replaying):
            self.end(self._sentence_without_snapshot())
        if self._replay is not None:
            if self._replay.passes(self.steps):
                self._go_on(self._replay)
            return
        if not self._rank.follows:
            self._recording.stepped(optimizer)
        elif self._rank.in_parts is not None:
            self._recording.follow(optimizer)
        else:
            self.agreed(False)

    @property
    def parts(self) -> Parts | None:
        return self._rank.parts

    def agreed(self, wanted: bool) -> bool:
        """Asked once a step; whether a snapshot is taken now, for which optimizers have all of their state, or each
        rank its part."""
        return self._rank.agreed(wanted, bool(self.why_not), self._make_states_whole)

    def _make_states_whole(self) -> None:
        self.inside = True
        try:
            for optimizer in self.calls.optimizers:
                _ = optimizer.state  # until its next step: who reads it finds it whole
        finally:
            self.inside = False

    def _end_without_a_step(self) -> None:
        """On a signal, where there is nothing to keep: the next step may be long in coming, or none be seen at all."""
        if self.elsewhere() or not self._rank.alone:  # a loader's worker has this handler, too
            return
        if self.why_not or self.replaying or not self.steps:
            with contextlib.suppress(RuntimeError):  # it came amid another line
                self.output.mute(False)
                self.end(self._sentence_without_snapshot())
            self.ending.end(self._came_further())

    def _sentence_without_snapshot(self) -> str:
        return "it goes on from the snapshot before" if self._last_snapshot() else "it begins from its start again"

    def _came_further(self) -> bool:
        return self._last_snapshot() > self._began_at

    def end(self, sentence: str) -> NoReturn:
        further = self._came_further()
        besides = f"; {IN_VAIN}" if self.ending.in_vain(further) else ""
        self.say(f"stopped by {signal.Signals(self.ending.asked_by).name}: {sentence}{besides}")
        self._rank.leave()
        self.ending.end(further)

    @contextlib.contextmanager
    def reading_alone(self) -> Iterator[None]:
        before, self.inside = self.inside, True
        try:
            with self._rank.reading_alone():
                yield
        finally:
            self.inside = before

    def _go_on(self, replay: Replay) -> None:
        if not self.journal.is_over:
            self.begin_anew(f"at step {self.steps}, it asked for less than the first time")
        try:
            replay.put_back(self.calls, self.output, self.plan, self.reading_alone, self.parts)
        except Exception as error:
            self._fails(error, f"what it holds at step {self.steps} is not what it held then: {error}")
        self._replay = None
        self._failures.forget()
        self._listen()
        self.output.mute(False)
        self.say(f"gone on after step {self.steps:,}")
        self._recording.goes_on(None if self._rank.follows else replay.since)
