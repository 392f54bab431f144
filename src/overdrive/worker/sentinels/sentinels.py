"""Makes a step of a run again now and then, in a forked process without the plan's techniques, and compares.

A third net, under the proof and under the audits of kept samples: it finds a technique that turns wrong late. As the
first model's call of a step begins, with its batch in hand, the process forks; the copy switches the techniques off and
goes on as the program is written, until its optimizer has stepped or it asks for the next batch. What both came to by
then is compared. Where it is not the same, the step is made once more with the techniques on: only where that is what
the program came to, is it them; else the step comes out otherwise in forked processes, and nothing can be said.

Not done where CUDA is in use (it does not live through a fork), nor for Keras.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.progress import log
from overdrive.core.rng import States
from overdrive.datacache.audit_budget import Budget
from overdrive.datacache.copied_pages import CopiedPages
from overdrive.datacache.forked import forks_safely, may_fork
from overdrive.datacache.layout import ForkFailed
from overdrive.datacache.unnoticed import are_going, began, over, unnoticed
from overdrive.machine.cpu import granted_cores
from overdrive.seams.hub import OBSERVER, Seams, reason_of
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.replay import DISTURBANCE
from overdrive.worker.sentinels.processes import Copy, Keeper
from overdrive.worker.sentinels.replay import Memory, Picture, Replay, Verdict
from overdrive.worker.session import Session
from overdrive.worker.switching import switch

OWNER = f"{OBSERVER} of steps"
_LAST_WORDS = 0.25  # seconds that a step under way gets when the program ends
_DATA = "data"  # a family whose techniques are done with a batch before the fork: audits are for them


class Sentinels:
    """All of one session. An observer for `Session`; `session` is to be set before it is entered.

    Args:
        steps: how many steps of training are over.
        levels: of each technique of the plan, what it is to keep.

    Attributes:
        same: steps that were made again and were the same; `different`: those that were not.
        looked_at: the techniques without which they were made.
        off: why there are to be no more; "" as long as there may be.
    """

    session: Session

    def __init__(
        self,
        steps: Callable[[], int],
        levels: Mapping[str, Contract],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.same = 0
        self.different = 0
        self.looked_at: list[str] = []
        self.off = ""
        self.steps = steps
        self.levels = levels
        self.agreed = 0  # the last step that was the same
        self.budget = Budget(granted_cores(), clock)
        self._clock = clock
        self._next_at = 0.0
        self._process = os.getpid()
        self._copy: Copy | None = None  # in a process in which a step is made again
        self._replay: Replay | None = None
        self._memory = Memory()
        self._disarm: Callable[[], None] | None = None
        self._copied: CopiedPages | None = None  # what the last fork costs the program yet
        self._soon = True

    def __call__(self, seams: Seams) -> None:
        self._seams = seams
        with seams.owned_by(OWNER):
            seams.framework_arrived.subscribe(self._arrived)
            seams.on_undo(self.end)

    def _arrived(self) -> None:
        if self._seams.frameworks[-1] != "torch":
            self.off = "it is a Keras program"
            return
        from overdrive.worker.torch.picture import Subject

        seams, self._subject = self._seams, Subject()
        seams.optimizer_made.subscribe(self._subject.made)
        seams.between_steps.subscribe(self._stepped)

    @property
    def covered(self) -> list[str]:
        """The techniques that are switched off in a copy."""
        known, handles = catalogue(), self.session.handles
        return [
            name
            for name in self.session.active
            if name in handles and known[name].switchable and known[name].family != _DATA
        ]

    @property
    def in_copy(self) -> bool:
        """Whether this is a process in which a step was to be made again, and which went astray."""
        return self._copy is not None

    # In the program's process

    def _stepped(self) -> None:
        if self._copy is not None or os.getpid() == self._process:
            try:
                self._look_on()
            except Exception as error:  # of ours: nothing but less checking
                self._fail(error)

    def _look_on(self) -> None:
        if self._copied is not None and (seconds := self._copied.look()) is not None:
            self._copied = None
            self.budget.copied(seconds)
        if self._replay is not None:
            self._ends("its optimizer has stepped")
            self._look()
        elif not self.off and self._disarm is None and self._clock() >= self._next_at and self._is_paid():
            from overdrive.seams.torch.next_call import next_call

            with self._seams.owned_by(OWNER):
                self._disarm = next_call(self._seams, self._begins)

    def _is_paid(self) -> bool:
        if self.budget.allowance(self._soon, False):
            return True
        self._next_at = self.budget.next_at
        return False

    def _begins(self, model: Any) -> None:
        """A model's call begins: the first of a step, as far as gradients are recorded."""
        self._disarm = None
        if os.getpid() != self._process or not self.covered:
            return
        began_at = time.perf_counter()
        try:
            self._fork(model, began_at)
        except Exception as error:
            log.info("no step is made again: %s", reason_of(error))
            self.budget.fail(time.perf_counter() - began_at, 0.0)

    def _fork(self, model: Any, began_at: float) -> None:
        from overdrive.model_state.trial_call import may_fork_with

        if not (forks_safely() and may_fork_with(model)):
            self.off = "CUDA is in use, or the model is on another device"
            return
        if are_going() or not (may_fork() and unnoticed()):
            raise ForkFailed("no process can be started now")
        known = catalogue()
        levels = {name: self.levels.get(name, known[name].contract) for name in self.covered}
        replay = Replay(levels, self._memory, self.steps())
        made = Keeper.fork(replay.first)
        self._replay = replay
        if isinstance(made, Copy):
            self._be(made)
        else:
            replay.keeper = made
            began(self)
            self._copied = CopiedPages()
        if replay.needs_values:
            self._subject.note()
        self._watch_segment()
        replay.in_program += time.perf_counter() - began_at

    def _watch_segment(self) -> None:
        with self._seams.owned_by(OWNER):
            self._seams.loss_backward.subscribe(self._sent)
            self._seams.batch_awaited.subscribe(self._awaited)

    def _sent(self, loss: Any) -> Any:
        if self._replay is not None and self._is_ours():
            self._replay.losses.append(float(loss.detach().double().mean()))
        return loss

    def _awaited(self, iterator: Any, call: Callable[[], Any]) -> Any:
        """The next batch is asked for: a copy must not take it from workers, nor from a file that the program reads."""
        if self._is_ours():
            try:
                self._ends("it asks for the next batch")
            except Exception as error:
                self._fail(error)
        return call()

    def _is_ours(self) -> bool:
        return self._copy is not None or os.getpid() == self._process

    def _ends(self, where: str) -> None:
        """The segment of the step that is compared ends here, in the program and in its copies alike."""
        replay = self._replay
        if replay is None or replay.mine is not None:
            return
        began_at = time.perf_counter()
        if self._copy is not None and set(self._seams.left_out) != self._left_out:
            self._copy.leave("a technique was left out in it")
        picture = Picture(
            where,
            tuple(replay.losses),
            States.now().digest(),
            self._subject.bits() if replay.needs_bits else {},
            self._subject.values() if replay.needs_values else {},
        )
        if self._copy is not None:
            self._copy.tell(picture.plain())
        replay.mine = picture
        self._seams.loss_backward.unsubscribe(self._sent)
        self._seams.batch_awaited.unsubscribe(self._awaited)
        replay.in_program += time.perf_counter() - began_at

    def _look(self) -> None:
        """Take in what the copies came to."""
        replay = self._replay
        if replay is None or not replay.look():
            return
        self._conclude(replay)

    def _conclude(self, replay: Replay) -> None:
        self._replay = None
        over(self)
        assert replay.keeper is not None
        beside = replay.keeper.end()
        verdict = replay.verdict
        if verdict is None:
            log.info("a step made again said nothing: %s", replay.failed)
            return self.budget.fail(replay.in_program, beside)
        self.budget.pay(replay.in_program, beside, 0.0)
        self._soon = False
        self.looked_at += [name for name in replay.off if name not in self.looked_at]
        if verdict.unlike:
            self.off = "its steps come out otherwise in forked processes"
            log.info("steps are made again no more: %s (%s)", self.off, verdict.unlike)
        elif verdict.difference:
            self.different += 1
            self._tell(verdict, replay.step)
        else:
            self.same += 1
            self.agreed = replay.step + 1

    def _tell(self, verdict: Verdict, step: int) -> None:
        since = f"what was computed since step {self.agreed:,} may have been affected"
        for name in verdict.culprits:
            what = f"step {step + 1:,}, made again without it, came to another result"
            self._seams.leave_out(name, f"{what} ({verdict.difference}); {since}")

    def _fail(self, error: Exception) -> None:
        log.info("steps are made again no more: %s", reason_of(error))
        if self._copy is not None:
            self._copy.leave(reason_of(error))
        self.off = reason_of(error)
        self.give_up()

    def give_up(self) -> None:
        """The step under way is to say nothing any more."""
        replay = self._replay
        if replay is None or self._copy is not None or os.getpid() != self._process:
            return
        self._replay = None
        over(self)
        if replay.keeper is not None:
            self.budget.spend(replay.in_program, replay.keeper.end())
        self._seams.loss_backward.unsubscribe(self._sent)
        self._seams.batch_awaited.unsubscribe(self._awaited)

    def end(self) -> None:
        """The session ends."""
        if self._copy is not None or os.getpid() != self._process:
            return
        limit = time.monotonic() + _LAST_WORDS
        while self._replay is not None and self._replay.mine is not None and time.monotonic() < limit:
            self._look()
            time.sleep(0.001)
        self.give_up()
        if self._disarm is not None:
            self._disarm()

    # In a copy

    def _be(self, copy: Copy) -> None:
        """This process is to make the step, in its way."""
        self._copy = copy
        try:
            self._switch_off(copy.way.off)
            if copy.way.seed:
                self._subject.disturb(DISTURBANCE, copy.way.seed)
            self._left_out = set(self._seams.left_out)
        except BaseException as error:
            copy.leave(reason_of(error))

    def _switch_off(self, names: Collection[str]) -> None:
        before = set(self._seams.left_out)
        switch(self.session, [name for name in self.session.active if name not in names])
        if set(self._seams.left_out) != before:
            assert self._copy is not None
            self._copy.leave("a technique could not be switched off")
