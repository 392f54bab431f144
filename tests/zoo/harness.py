"""Runs the zoo's programs inside this process, watched by the very worker that watches real trials.

A trial in a process of its own takes 3 seconds, most of them imports; here it takes 0.3. `InProcess` is the
prover itself with such runs in the place of trials. `test_real_trials.py` shows that both come to the same.
"""

from __future__ import annotations

import contextlib
import gc
import io
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from overdrive.core import messages
from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import Check
from overdrive.evidence.statistical import judge
from overdrive.proof.prover import Prover
from overdrive.techniques.catalogue import also_in
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.untimed import UntimedRunner
from overdrive.worker.failures import kind_of
from overdrive.worker.seeds import seeds
from overdrive.worker.session import Session
from overdrive.worker.worker import Worker
from tests.settings import settings_kept
from tests.zoo import answering, program

PROGRAMS = {each.__file__: each for each in (program, answering)}
ANSWERING = ("tests.zoo.defects.answers", "tests.zoo.harmless_answers")
DEFECTS = ("data", "late", "model", "optimizer")
MODULES = (*(f"tests.zoo.defects.{name}" for name in DEFECTS), "tests.zoo.harmless")
RUN_STEPS = 120  # of a run under a seed: the loss has fallen by then, and 26 runs take 8 seconds
_FOREVER = 1e12


class _Enough(BaseException):
    """The run has made its steps. No Exception: neither the hub nor the program may catch it."""


class _Commands:
    """What the parent would send: so many steps, then a trace, then the end."""

    def __init__(self, steps: int) -> None:
        run = [messages.Run(steps - 1)] if steps > 1 else []
        self._left: list[messages.Command] = [*run, messages.TellTrace()]

    def readline(self) -> bytes:
        if not self._left:
            raise _Enough
        return messages.write(self._left.pop(0))


class LeftOut(BaseException):
    """A technique of the zoo, or the observer, failed: the run says nothing."""


class _InProcessWorker(Worker):
    def left_out(self, name: str, reason: str) -> None:
        raise LeftOut(f"{name}: {reason}")


def run(order: TrialSpec, steps: int, output: list[str] | None = None) -> Trace | ExitReason:
    """The program's first `steps` steps, or all of it, as a trial of `order` would report them."""
    gc.collect()
    gc.freeze()  # what lives by now is none of this run's: the worker looks for models among what does not
    reports, printed = io.BytesIO(), io.StringIO()
    job = messages.Job(order)
    worker = _InProcessWorker(cast(Any, _Commands(steps)), cast(Any, reports), job)
    own = [seeds(order.seed), worker.observe]
    worker.session = Session(order.techniques, own, worker.left_out, worker.clock.inference)
    with settings_kept(), contextlib.redirect_stdout(printed):
        try:
            with worker.session, worker.returned or contextlib.nullcontext():
                PROGRAMS[order.program.target].main(*order.program.arguments)
            worker.reports.report(worker.ended())
        except _Enough:
            pass
        except Exception as error:
            return ExitReason(kind_of(error), f"{type(error).__name__}: {error}")
    if output is not None:
        output.append(printed.getvalue())
    found = [messages.read(line) for line in reports.getvalue().splitlines()]
    return next(
        each.trace if isinstance(each, messages.Ended) else each
        for each in found
        if isinstance(each, (Trace, messages.Ended))
    )


class _Inside(UntimedRunner):
    """Runs in this process, one at a time: one process has one random state."""

    def __init__(self, folder: Path) -> None:
        super().__init__(cast(Any, SimpleNamespace(scratch=folder)))
        self._turn = threading.Lock()

    def run(self, order: TrialSpec, steps: int, output: list[str] | None = None) -> Trace | ExitReason:
        with self._turn:
            return run(order, steps, output)


class InProcess(Prover):
    """Proofs about one of the zoo's programs under one seed of its own."""

    def __init__(
        self, name: str, folder: Path, seed: int = 0, run_steps: int = RUN_STEPS, inference: bool = False
    ) -> None:
        """`inference`: one of those that train nothing."""
        # Here and not at import: collecting the tests must not fill the catalogue.
        also_in(ANSWERING if inference else MODULES)
        zoo, clock = (answering, "inference") if inference else (program, "training")
        self.plain = TrialSpec(Program(zoo.__file__, (name, str(seed))), clock=clock)
        super().__init__(
            _Inside(folder), TuneCheckpoint(Ledger(), self.plain.program, "zoo"), Facts(inference=inference)
        )
        self.by_seeds._run_steps = run_steps

    def judged(self, technique: str, level: Contract) -> Check:
        """The proof of one technique, with its default settings, at one level."""
        new = replace(self.plain, techniques=((technique, {}),))
        if level is Contract.EXACT:
            return self.exact(self.plain, new)
        if level is Contract.ROUNDING:
            return self.rounding(self.plain, new)
        return self.statistical(self.plain, new, _FOREVER)

    def unchanged(self) -> Check:
        """The program against itself under other seeds: what a candidate is whose seeds agree in nothing."""
        original = self.by_seeds._original_arm(self.plain, range(1, 17), _FOREVER)
        others = self.by_seeds._arm(self.plain, range(1001, 1017), _FOREVER)
        candidate = [replace(run, seed=run.seed - 1000) for run in others]
        registration = self.by_seeds._register(self.plain, self.plain, original[:10])
        for look in registration.looks:
            outcome = judge(registration, original[:look], candidate[:look])
            if outcome.equivalent is not None:
                break
        level = Contract.STATISTICAL if outcome.equivalent else None
        return Check(level, outcome.sentence, statistical=outcome.record(registration))
