"""Audits of kept samples, all through a run: a share of them is made again in a forked process, and compared.

A second net, under the watch that sees changes before each batch: it finds what nobody thought of watching. A fork
holds the data set as it is when a batch is served, so that what is made there is what the program would get without us.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from overdrive.core.progress import log
from overdrive.datacache.audit_budget import Budget
from overdrive.datacache.auditor import AuditResult, Remade, auditing
from overdrive.forks.copied_pages import CopiedPages
from overdrive.forks.forked import Beside, Child, forks_safely, may_fork
from overdrive.forks.layout import ForkFailed, Unfit
from overdrive.forks.unnoticed import are_going, began, over, unnoticed
from overdrive.machine.cpu import granted_cores
from overdrive.seams.hub import Seams

_LAST_WORDS = 0.25  # seconds that an audit under way gets when the program ends

_of_session: weakref.WeakKeyDictionary[Seams, Audits] = weakref.WeakKeyDictionary()


def audits_of(seams: Any) -> Audits | None:
    """Those of a session; None where nothing is audited there: in a trial, say."""
    return _of_session.get(seams)


class Audits:
    """All audits of one session, one at a time. An observer for `Session`.

    Args:
        steps: how many steps of training are over.
        fork: begins a work beside the program; `clock`: for tests.

    Attributes:
        same: samples that were made again and were the same.
        different: those that were not.
    """

    def __init__(
        self,
        steps: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        fork: Callable[[Any], Beside] = lambda work: Beside([work], only_idle=False),
    ) -> None:
        self.same = 0
        self.different = 0
        self.steps = steps
        self.budget = Budget(granted_cores(), clock)
        self._clock = clock
        self._fork = fork
        self._process = os.getpid()
        self._all: weakref.WeakSet[Audit] = weakref.WeakSet()
        self._last: Audit | None = None
        self._next_at = 0.0
        self._began = 0.0  # when it was last found that there is time for an audit
        self._running: _Running | None = None
        self._copied: CopiedPages | None = None  # what the last fork costs the program yet
        self._lock = threading.Lock()  # a program may fetch in several threads

    def __call__(self, seams: Seams) -> None:
        self._seams = weakref.ref(seams)
        _of_session[seams] = self
        seams.on_undo(self.end)

    def audit(self, techniques: Callable[[], Iterable[str]], drop: Callable[[str], None]) -> Audit:
        """One more data set.

        Args:
            techniques: that serve it.
            drop: serve no more of it, for this reason.
        """
        audit = Audit(self, techniques, drop)
        self._all.add(audit)
        return audit

    @property
    def attentive(self) -> bool:
        """Whether `look` has anything to do."""
        return self._running is not None or self._copied is not None

    def allowance(self, audit: Audit) -> float:
        """See `Budget.allowance`. Takes a quarter of a microsecond where it is too early."""
        if self._running is not None or self._clock() < self._next_at or os.getpid() != self._process:
            return 0.0
        others_wait = any(each.expects for each in self._all if each is not audit)
        soon = audit.expects and not (self._last is audit and others_wait)
        seconds = self.budget.allowance(soon, audit.expects)
        if not seconds:
            self._next_at = self.budget.next_at
        self._began = time.perf_counter()
        return seconds

    def begin(self, audit: Audit, remade: Remade, rows: list[int], seconds: float, opening: bool) -> None:
        """Fork an auditor, if that can be done unnoticed."""
        with self._lock:
            if self._running is not None or are_going():
                return
            try:
                if not (forks_safely() and may_fork() and unnoticed()):
                    raise ForkFailed("no process can be started now")
                process = self._fork(auditing(remade, rows, seconds))
            except ForkFailed as error:
                log.info("no audit: %s", error)
                return self.budget.fail(time.perf_counter() - self._began, 0.0)
            self._copied = CopiedPages(looks=int(opening))
            self._running = _Running(audit, process, remade, self.steps(), time.perf_counter() - self._began)
            self._last = audit
            audit.expects = False
            began(self)

    def look(self) -> None:
        """Take in what an audit found and cost, for each batch."""
        if os.getpid() != self._process or not self._lock.acquire(blocking=False):
            return
        try:
            self._look()
        finally:
            self._lock.release()

    def _look(self) -> None:
        if self._copied is not None and (seconds := self._copied.look()) is not None:
            self._copied = None
            self.budget.copied(seconds)
        running = self._running
        if running is None:
            return
        for child in running.process.ended():
            self._running = None
            over(self)
            self._take(running, child)

    def _take(self, running: _Running, child: Child) -> None:
        try:
            told = AuditResult(**child.result())
        except (Unfit, TypeError) as error:  # it says nothing of the samples
            log.info("an audit failed: %s", error)
            running.audit.expects = True
            return self.budget.fail(running.in_program, child.seconds)
        self.budget.pay(running.in_program, child.seconds, told.seconds)
        self.same += told.same
        if not told.difference and told.same:
            running.audit.agreed = running.step
        elif not told.difference:
            running.audit.expects = True  # nothing was there yet
        elif running.audit.differs(told, running.remade, running.step):
            self.different += 1

    def leave_out(self, techniques: Iterable[str], reason: str) -> None:
        if (seams := self._seams()) is not None:
            for name in techniques:
                seams.leave_out(name, reason)

    def give_up(self) -> None:
        """The audit under way is to say nothing any more."""
        if self._running is not None and os.getpid() == self._process:
            running, self._running = self._running, None
            running.audit.expects = True
            self.budget.spend(running.in_program, running.process.end())
            over(self)

    def end(self) -> None:
        """The session ends."""
        if os.getpid() != self._process:
            return
        limit = time.monotonic() + _LAST_WORDS
        while self._running is not None and time.monotonic() < limit:
            self.look()
            time.sleep(0.001)
        self.give_up()
        if (seams := self._seams()) is not None:
            _of_session.pop(seams, None)  # who tells our steps may hold it


@dataclass
class _Running:
    audit: Audit
    process: Beside
    remade: Remade
    step: int
    in_program: float  # seconds that it took the program to begin it


class Audit:
    """Of one data set.

    Attributes:
        expects: more than the ordinary: an epoch has begun, or something happened.
        agreed: the last step at which all that was made again was the same; or at which the data set was first served.
    """

    def __init__(self, audits: Audits, techniques: Callable[[], Iterable[str]], drop: Callable[[str], None]) -> None:
        self.expects = True
        self.agreed = audits.steps()
        self._audits = audits
        self._techniques = techniques
        self._drop = drop
        self._off = False

    def look(self) -> None:
        """Take in what an audit found, for each batch: this data set may be dropped by it."""
        if self._audits.attentive:
            self._audits.look()

    def allowance(self) -> float:
        """Seconds of processor time for the samples of an audit that may be made now; 0: there is to be none."""
        return 0.0 if self._off else self._audits.allowance(self)

    def begin(self, remade: Remade, rows: list[int], seconds: float, opening: bool = False) -> None:
        """Have these rows made again as the data set is now, and others.

        Args:
            opening: no batch is being fetched now: the loader opens.
        """
        self._audits.begin(self, remade, rows, seconds, opening)

    def differs(self, told: AuditResult, remade: Remade, step: int) -> bool:
        """A sample, made again after this step, was another one. Returns whether that counts."""
        if told.row is not None and not remade.differs_here(told.row):
            log.info("%s comes out otherwise in forked processes: its data set is not audited", remade.named(told.row))
            self._off = True
            return False
        what = told.difference if told.row is None else f"{remade.named(told.row)} {told.difference}"
        since = f"what was served since step {self.agreed:,} may have been affected"
        reason = f"made again after step {step:,}, {what}; {since}"
        self._off = True
        self._drop(reason)
        self._audits.leave_out(self._techniques(), reason)
        return True
