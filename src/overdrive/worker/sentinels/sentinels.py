"""Makes a step of a run again now and then, in a forked process without the plan's techniques, and compares.

A third net, under the proof and under the audits of kept samples: it finds a technique that turns wrong late. As the
first model's call of a step begins, with its batch in hand, the process forks; the copy switches the techniques off and
goes on as the program is written, until its optimizer has stepped or it asks for the next batch. What both came to by
then is compared. Where it is not the same, the step is made once more with the techniques on: only where that is what
the program came to, is it them; else the step comes out otherwise in forked processes, and nothing can be said.

Not done where CUDA is in use (it does not live through a fork), nor for Keras.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.progress import log
from overdrive.datacache.audit_budget import Budget
from overdrive.forks.copied_pages import CopiedPages
from overdrive.forks.forked import forks_safely, may_fork
from overdrive.forks.layout import ForkFailed
from overdrive.forks.unnoticed import are_going, began, over, unnoticed
from overdrive.machine.cpu import granted_cores
from overdrive.seams.hub import Seams
from overdrive.seams.points import reason_of
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.sentinels import openmp
from overdrive.worker.sentinels.processes import Copy, ForkServer
from overdrive.worker.sentinels.replay import SentinelHistory, SentinelReplay, StepVerdict
from overdrive.worker.sentinels.segment import NEXT_BATCH, OWNER, STEPPED, Segment
from overdrive.worker.session import Session

_LAST_WORDS = 0.25  # seconds that a step under way gets when the program ends
_DATA = "data"  # a family whose techniques are done with a batch before the fork: audits are for them


class Sentinels:
    """All of one session. An observer for `Session`, after a `Recorder`; `session` is to be set before it is entered.

    Args:
        steps: how many steps of training are over.
        levels: of each technique of the plan, what it is to keep.

    Attributes:
        same: steps that were made again and were as their level says; `different`: those that were not.
        looked_at: the techniques without which they were made, with their levels.
        off: why there are to be no more; "" as long as there may be.
        in_copy: whether this is a process in which a step was to be made again.
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
        self.looked_at: dict[str, Contract] = {}
        self.off = ""
        self.in_copy = False
        self.budget = Budget(granted_cores(), clock)
        self._steps = steps
        self._levels = levels
        self._clock = clock
        self._agreed = 0  # the last step that was the same
        self._next_at = 0.0
        self._tried = False
        self._first_at, self._first_step = 0.0, 0  # when it was first asked whether one can be paid
        self._soon = True  # the next is due as soon as it can be paid: something has happened
        self._process = os.getpid()
        self._memory = SentinelHistory()
        self._replay: SentinelReplay | None = None
        self._segment: Segment | None = None
        # Batches of a step that accumulates gradients: those before the one that is looked at, each in its turn.
        self._skips = self._to_skip = 0
        self._disarm: Callable[[], None] | None = None
        self._copied: CopiedPages | None = None  # what the last fork costs the program yet

    def __call__(self, seams: Seams) -> None:
        self._seams = seams
        with seams.owned_by(OWNER):
            seams.framework_arrived.subscribe(self._arrived)
            seams.on_undo(self.end)
            if seams.frameworks:  # it is there already
                self._arrived()

    def _arrived(self) -> None:
        if self._seams.frameworks[-1] != "torch":  # TensorFlow may come beside PyTorch: TensorBoard imports it
            self._seams.keras_used.subscribe(self._keras_used)
            return
        # All that is needed later: imported in a step, it would be taken for the cost of a fork.
        from overdrive.model_state import trial_call  # noqa: F401
        from overdrive.seams.torch import next_call  # noqa: F401
        from overdrive.worker.torch.picture import Subject

        openmp.libraries()
        seams, self._subject = self._seams, Subject()
        seams.optimizer_made.subscribe(self._subject.made)
        seams.loader_opens.subscribe(self._epoch_begins)
        seams.between_steps.subscribe(self._stepped)

    def _keras_used(self) -> None:
        self.off = "it is a Keras program"

    @property
    def covered(self) -> dict[str, Contract]:
        """The techniques that are switched off in a copy, with what they are to keep."""
        known, handles = catalogue(), self.session.handles
        return {
            name: self._levels.get(name, known[name].contract)
            for name in self.session.active
            if name in handles and handles[name].active and known[name].switchable and known[name].family != _DATA
        }

    def _epoch_begins(self, loader: Any, call: Callable[[], Any]) -> Any:
        self._soon = True
        return call()

    def _stepped(self) -> None:
        if not self.in_copy and os.getpid() != self._process:
            return
        try:
            self._look_on()
        except Exception as error:  # of ours: nothing but less checking
            if self.in_copy:
                os._exit(0)
            self._stop(reason_of(error))

    def _look_on(self) -> None:
        if self._copied is not None and (seconds := self._copied.look()) is not None:
            self._copied = None
            self.budget.copied(seconds)
        if self._disarm is not None:  # a step has passed without a call that could be made again
            self._disarm()
            self._disarm = None
            if not self._skips:
                return self.budget.fail(0.0, 0.0)
            self._skips = 0
        if self._replay is not None:
            if self._segment is not None:
                self._segment.end(STEPPED)
                self._segment = None
            self._look()
        elif not self.off and self._clock() >= self._next_at and self._is_paid():
            self._to_skip = self._skips
            self._arm()

    def _arm(self) -> None:
        from overdrive.seams.torch.next_call import next_call

        with self._seams.owned_by(OWNER):
            self._disarm = next_call(self._seams, self._begins)

    def _arm_at_next_batch(self) -> None:
        point = self._seams.batch_fetched

        def fetched(*_: Any) -> None:
            point.unsubscribe(fetched)
            self._arm()

        with self._seams.owned_by(OWNER):
            point.subscribe(fetched)
        self._disarm = lambda: point.unsubscribe(fetched)

    def _is_paid(self) -> bool:
        """Whether there is to be one now. The first is taken to cost a step and a half."""
        if not self._first_at:
            self._first_at, self._first_step = self._clock(), self._steps()
            return False
        if not self._tried and (made := self._steps() - self._first_step):  # each time: the first steps are slow
            self.budget.expect(1.5 * (self._clock() - self._first_at) / made)
        if self.budget.allowance(self._soon, False):
            return True
        again_in = math.inf if self._tried else 1.0  # what the first may cost is told better by later steps
        self._next_at = min(self.budget.next_at, self._clock() + again_in)
        return False

    def _begins(self, model: Any) -> None:
        """A model's call begins: the first with this batch, as far as gradients are recorded."""
        self._disarm = None
        if os.getpid() != self._process:
            return
        if self._to_skip:
            self._to_skip -= 1
            return self._arm_at_next_batch()
        self._tried, began_at = True, time.perf_counter()
        try:
            self._fork(model, began_at)
        except Exception as error:
            if self.in_copy:
                os._exit(0)
            log.info("no step is made again: %s", reason_of(error))
            self.budget.fail(time.perf_counter() - began_at, 0.0)

    def _fork(self, model: Any, began_at: float) -> None:
        from overdrive.model_state.trial_call import may_fork_with

        levels = self.covered
        if not levels:
            return self._stop("no technique of the plan can be switched off")
        if not (forks_safely() and may_fork_with(model)):
            return self._stop("CUDA is in use, or the model is on another device")
        if are_going() or not (may_fork() and unnoticed()):
            raise ForkFailed("no process can be started now")
        self._subject.look()
        replay = SentinelReplay(levels, self._memory, self._steps())
        made = ForkServer.fork(replay.first)
        if isinstance(made, Copy):
            self.in_copy = True
        else:
            replay.fork_server = made
            began(self)
            self._copied = CopiedPages()
        self._replay = replay
        self._segment = Segment(self.session, self._subject, replay, made if isinstance(made, Copy) else None)
        replay.in_program += time.perf_counter() - began_at

    def _look(self) -> None:
        """Take in what the copies came to."""
        replay = self._replay
        if replay is not None and replay.look():
            self._conclude(replay)

    def _conclude(self, replay: SentinelReplay) -> None:
        self._replay = None
        over(self)
        assert replay.fork_server is not None
        beside = replay.fork_server.end()
        self._skips = self._skips + 1 if replay.mine and replay.mine.where == NEXT_BATCH else 0
        verdict = replay.verdict
        if verdict is None:
            log.info("a step made again said nothing: %s", replay.failed)
            return self.budget.fail(replay.in_program, beside)
        self.budget.pay(replay.in_program, beside, 0.0)
        self._soon = verdict.doubtful
        self.looked_at.update(replay.levels)
        if verdict.unlike:
            self._stop(f"its steps come out otherwise in forked processes: {verdict.unlike}")
        elif verdict.difference:
            self.different += 1
            self._tell(verdict, replay.step)
        else:
            self.same += 1
            if verdict.certain:
                self._agreed = replay.step + 1

    def _tell(self, verdict: StepVerdict, step: int) -> None:
        since = f" since step {self._agreed:,}" if self._agreed else ""
        for name in verdict.culprits:
            what = f"step {step + 1:,}, made again without it, came to another result ({verdict.difference})"
            self._seams.leave_out(name, f"{what}; what was computed{since} may have been affected")

    def _stop(self, reason: str) -> None:
        log.info("steps are made again no more: %s", reason)
        self.off = reason
        self.give_up()

    def give_up(self) -> None:
        """The step under way is to say nothing any more."""
        replay = self._replay
        if replay is None or self.in_copy or os.getpid() != self._process:
            return
        self._replay = None
        over(self)
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        if replay.fork_server is not None:
            self.budget.spend(replay.in_program, replay.fork_server.end())

    def end(self) -> None:
        """The session ends."""
        if self.in_copy or os.getpid() != self._process:
            return
        limit = time.monotonic() + _LAST_WORDS
        while self._replay is not None and self._replay.mine is not None and time.monotonic() < limit:
            self._look()
            time.sleep(0.001)
        self.give_up()
        if self._disarm is not None:
            self._disarm()
