"""The child's side of a trial: runs the program under a plan and stops at step boundaries as told.

Started by a launcher of trials as `python -m overdrive.worker.main COMMANDS REPORTS`, two file descriptors
that carry the messages of `core.messages`. The worker runs the program until it has made as many steps
as ordered, reports, and waits where its clock lets it stand still for the next command.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from overdrive.core import messages, progress
from overdrive.core.facts import Facts
from overdrive.core.messages import Beat, Ended, Failed, Isolated, Job, Observed, Recorded
from overdrive.core.program import ProgramError
from overdrive.core.records import Block, ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.machine.memory import peak_resident
from overdrive.ranks.horovod.imports import HorovodImports
from overdrive.ranks.rank import Rank
from overdrive.sandbox.isolation import isolate, redirect_torch
from overdrive.seams import frameworks
from overdrive.seams.hub import OBSERVER, Seams, reason_of
from overdrive.techniques.catalogue import also_in, catalogue
from overdrive.worker import hyperparameter_watch
from overdrive.worker.answering import Answering
from overdrive.worker.as_rank import membership_of_trial, scratch_of
from overdrive.worker.clock import CLOCKS
from overdrive.worker.failures import kind_of
from overdrive.worker.launch import execute, hide_own_frames
from overdrive.worker.observers import (
    Observer,
    Probe,
    load_observer,
    make_digests,
    make_probe,
    make_products,
    make_replay,
)
from overdrive.worker.own_facts import OwnFacts
from overdrive.worker.recording import Recorder
from overdrive.worker.returned import Returned
from overdrive.worker.seeds import seeds
from overdrive.worker.session import Session
from overdrive.worker.switching import switch, switched_on

_BEAT_SECONDS = 0.5
# Batches are hashed for the first steps, before anything is timed.
_HASHED_STEPS = 8


class Worker:
    """Runs one program to where it is told, and reports."""

    def __init__(self, commands: BinaryIO, reports: BinaryIO, job: Job) -> None:
        self._commands = commands
        self._reports = reports
        self._job = job
        self.spec: TrialSpec = job.spec
        self._due = 1  # the step of the next report; the first step is reported alone, with its set-up cost
        self._lead = 0  # the step at which the time is taken, where some come before that are not timed
        self._block_began = time.perf_counter()
        self._block_steps = 0
        self._block_samples = 0
        self._steps_seen = 0
        self._call_steps = 1  # the most that were made in one call, between which it cannot stand still
        self._last_beat = 0.0
        self.clock = CLOCKS[self.spec.clock]()
        # Keeping losses costs some 20 us each, which a step of 3 ms would show when its parts are timed.
        losses = self.spec.losses and self.spec.profiling not in ("plain", "times")
        self.recorder = Recorder(losses=losses, clock=self.clock)
        self._probes: dict[str | None, Probe] = {}  # by framework, from its arrival: PyTorch's imports PyTorch
        self._observers: dict[str, Observer] = {}
        self.hyperparameters: hyperparameter_watch.HyperparameterWatch | None = None
        self._own_facts = OwnFacts()
        self.session: Session | None = None
        self._digests: dict[str, Any] = {}
        self._replays: dict[str, Any] = {}
        self._products: dict[str, Any] = {}
        self._profilers: dict[str, Any] = {}
        self._answering = None if self.clock.inference else Answering(self._answers)
        self.rank: Rank | None = None  # where the trial is a group of ranks
        self._environment = dict(os.environ)
        self._sets_environment = False  # before it imports a framework, which may read it
        self._rests: list[int] = []  # steps after which it could stand still, where not after each
        self.returned: Returned | None = Returned(self.spec.returned) if self.spec.returned else None

    @property
    def probe(self) -> Probe:
        """Of the framework that makes the steps; where none does, of Keras, which imports nothing."""
        name = self.recorder.framework or next(iter(self._probes), None)
        if name not in self._probes:
            self._probes[name] = make_probe("keras", _HASHED_STEPS)
        return self._probes[name]

    def facts(self, costs: bool = False) -> Facts:
        found: Facts = self.probe.facts(self.recorder, costs)
        return replace(found, own=self._own_facts.gathered(found.framework), sets_environment=self._sets_environment)

    @property
    def _profiler(self) -> Any:
        return self._profilers.get(self.recorder.framework)

    def report(self, report: messages.Report) -> None:
        self._last_beat = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # the tuner is gone; its reaper ends us
            self._reports.write(messages.write(report))
            self._reports.flush()

    def observe(self, seams: Seams) -> None:
        """The worker's own observer of the program."""
        spec = self.spec
        self.recorder(seams)
        if self._answering and not spec.profiling:  # it has every call of a module looked at
            self._answering(seams)
        if self._gathers_facts:
            self._own_facts(seams)
        seams.batch_fetched.subscribe(self.beat)  # an evaluation makes no step, and lives
        seams.at_work.subscribe(self.beat)
        if spec.hyperparameters:
            with seams.owned_by(hyperparameter_watch.NAME):
                self.hyperparameters = hyperparameter_watch.HyperparameterWatch(spec.hyperparameters, self._over)
                self._observers[hyperparameter_watch.NAME] = self.hyperparameters
                self.hyperparameters(seams)
        for name in spec.observers:
            with seams.owned_by(name):
                self._observers[name] = load_observer(name)
                self._observers[name](seams)
        seams.framework_arrived.subscribe(lambda: self._take_part(seams))
        seams.port_chosen.subscribe(lambda port: 0)  # any: the other trial of a duel asks for the same
        self.clock.at_rest(seams, self._stand_still)

    @property
    def _gathers_facts(self) -> bool:
        return not self.spec.digests and not self.spec.replay and self.spec.profiling in ("", "details")

    def _take_part(self, seams: Seams) -> None:
        """Subscribe what needs the framework, which is here now."""
        name, spec = seams.frameworks[-1], self.spec
        self._sets_environment = self._sets_environment or self._environment != dict(os.environ)
        self._probes[name] = make_probe(name, _HASHED_STEPS)
        if self._gathers_facts:
            self._probes[name](seams)
        if spec.deterministic:
            frameworks.seams_of(name).refuse_chance()
        if spec.digests:
            self._digests[name] = make_digests(name, spec.digests, self.clock.inference)
            self._digests[name](seams)
        if spec.replay:
            role, steps, folder = spec.replay.role, spec.replay.steps, Path(spec.replay.folder)
            self._replays[name] = make_replay(name, role, steps, folder, self.clock.inference)
            self._replays[name](seams)
        if spec.products and (products := make_products(name)):
            self._products[name] = products
            products(seams)
        if spec.profiling in ("times", "details"):
            from overdrive.worker.profiling.recorder import Profiler

            self._profilers[name] = Profiler(name, spec.profiling, self._job.recordings, seams)
        self.clock.at_rest(seams, self._stand_still)  # again: after all that was subscribed here

    def _over(self) -> None:
        """The program has shown what was to be seen, though it makes no step: it ends here."""
        self.report(self.ended())
        os._exit(0)

    def left_out(self, name: str, reason: str) -> None:
        """A technique that is left out is in the trace; without its own observer a trial cannot go on."""
        if name == OBSERVER:
            self.report(Failed(ExitReason("unwatched", f"Overdrive could not watch this program: {reason}")))
            os._exit(1)

    def _answers(self) -> None:
        """There is no training step to be waited for: its model's calls are what it does."""
        self.report(self._no_training())
        os._exit(1)

    def _no_training(self) -> Failed:
        assert self._answering is not None
        return Failed(ExitReason("answers", f"{self._answering.calls} calls of a model, and no training step"))

    def _training_after_all(self) -> Failed:
        return Failed(ExitReason("trains", f"an optimizer stepped after {self.clock.steps} calls of the model"))

    def beat(self, *_: object) -> None:
        """Tell the watchdog that there is progress, at most twice a second."""
        self.filling(0, 0)

    def filling(self, done: int, total: int) -> None:
        if time.monotonic() - self._last_beat > _BEAT_SECONDS:
            self.report(Beat(done, total))

    def _stand_still(self) -> None:
        with self.rank.lockstep.aside() if self.rank else contextlib.nullcontext():
            self._between_steps()

    def _between_steps(self) -> None:
        steps = self.clock.steps
        if self.clock.trains:
            self.report(self._training_after_all())
            os._exit(1)
        self._call_steps = max(self._call_steps, steps - self._steps_seen)
        self._rests.append(steps)
        self._steps_seen = steps
        self.probe.stepped(steps)
        if steps == _HASHED_STEPS:
            self._own_facts.watch(False)
        digests = self._digests.get(self.recorder.framework)
        if digests:
            digests.stepped()
        if products := self._products.get(self.recorder.framework):
            products.stepped()
        if self._lead and steps >= self._lead:
            self._of_framework().synchronize()
            self._due, self._lead = self._due + steps - self._lead, 0
            if self._profiler:
                self._profiler.lead_over()
            self._begin_block(steps)
            return
        if steps < self._due:
            self.beat()
            return
        self._of_framework().synchronize()
        now = time.perf_counter()
        self._own_facts.watch(steps < _HASHED_STEPS)
        self.probe.end_profile()  # here: until the next command this process stands still
        if self._profiler:
            self._profiler.end(steps - self._block_steps)
        self.report(
            Block(
                steps,
                steps - self._block_steps,
                now - self._block_began,
                self.recorder.samples - self._block_samples,
                self._of_framework().peak_memory() or peak_resident(),
                self._call_steps,
                dict(self.session.seams.left_out) if self.session else {},
            )
        )
        self._begin_block(steps)
        while self._obey():
            pass

    def _begin_block(self, steps: int) -> None:
        self._block_steps, self._block_samples = steps, self.recorder.samples
        self._block_began = time.perf_counter()

    def _obey(self) -> bool:
        """Carry out one command; False where the program is to go on."""
        line = self._commands.readline()
        command = messages.read(line) if line else messages.Stop()
        match command:
            case messages.Run(steps, lead, profile, record):
                if profile:
                    self._own_facts.watch(True)
                    self.probe.start_profile()
                self._lead = self._block_steps + lead if lead else 0
                self._due = self._block_steps + lead + steps
                if record and self._profiler:
                    self._profiler.begin(record, self.recorder)
                self._block_began = time.perf_counter()
                return False
            case messages.Switch(on):
                assert self.session is not None
                switch(self.session, on)
                self.report(messages.Switched(switched_on(self.session)))
            case messages.TellFacts(costs):
                self.report(self.facts(costs))
            case messages.TellRecorded():
                self.report(Recorded(self._profiler.report()))
            case messages.TellObserved():
                self.report(Observed(self._observed()))
            case messages.TellTrace():
                self.report(self._trace())
            case messages.Stop():
                # At once, without the program's own cleaning up: it must not save, evaluate or print now.
                os._exit(0)
        return True

    def _observed(self) -> dict[str, Any]:
        """What those observers report that have something to report."""
        reports = {}
        for name, observer in self._observers.items():
            try:
                report = observer.report()
            except Exception as error:
                assert self.session is not None
                self.session.seams.leave_out(name, reason_of(error))
                continue
            if report is not None:
                reports[name] = report
        return reports

    def _of_framework(self) -> frameworks.FrameworkSeams:
        return frameworks.seams_of(self.recorder.framework)

    def _trace(self) -> Trace:
        assert self.session is not None
        digests, replay = (kept.get(self.recorder.framework) for kept in (self._digests, self._replays))
        trace = Trace(
            steps=self.clock.steps,
            losses=tuple(map(tuple, self.recorder.losses())),
            rates=tuple(self.recorder.rates),
            samples=self.recorder.samples,
            batches=tuple(self.probe.batch_hashes),
            state=self.recorder.state_hash(),
            digests=tuple(digests.entries) if digests else (),
            replay=replay.report() if replay else {},
            rests=tuple(self._rests) if self._call_steps > 1 else (),
            trained=self.recorder.trained(),
            returned=self.returned.value if self.returned else None,
            active=tuple(self.session.active),
            left_out=dict(self.session.seams.left_out),
            inference=self.clock.inference,
        )
        # Last: it calls the model once more, which is no part of the run.
        products = self._products.get(self.recorder.framework)
        return replace(trace, products=products.report(self.recorder.optimizers)) if products else trace

    def ended(self) -> Ended | Failed:
        """Of a program that ended by itself."""
        if self._answering and self._answering.answers and not self.clock.steps:
            return self._no_training()
        if self.clock.trains:
            return self._training_after_all()
        return Ended(self._trace() if self.clock.steps else Trace(), self._observed())

    def failed(self, error: BaseException) -> Failed:
        first = str(error).strip().split("\n", 1)[0][:300]
        reason = ExitReason(kind_of(error), f"{type(error).__name__}: {first}")
        if reason.kind == "oom":  # which techniques may help is for the tuner to judge
            with contextlib.suppress(Exception):
                return Failed(reason, self.facts())
        return Failed(reason)


def _redirected(seams: Seams) -> None:
    """An observer: what PyTorch writes goes where all else does."""
    seams.framework_arrived.subscribe(redirect_torch)


def _standard_input(path: str) -> None:
    """Have the program read this file; it is empty where there is none."""
    if path:
        with open(path, "rb") as file:
            os.dup2(file.fileno(), 0)


def work(commands: BinaryIO, reports: BinaryIO) -> NoReturn:
    """The whole life of a trial's process, to its end."""
    job: Job = messages.read(commands.readline())
    membership = membership_of_trial()
    isolation = isolate(scratch_of(job, membership), [Path(each) for each in job.keep]) if job.isolate else None
    also_in(job.also)
    catalogue()  # here: what comes from outside may bring a clock
    worker = Worker(commands, reports, job)
    worker.rank = Rank(membership, [], hide_own_frames, trial=True) if membership else None
    if isolation:
        worker.report(Isolated(isolation.kind, isolation.detail))
    progress.on_progress = worker.filling
    own = [*([_redirected] if job.isolate else []), seeds(job.spec.seed), worker.observe]
    own[:0] = [worker.rank.observe] if worker.rank else []
    worker.session = Session(job.spec.techniques, own, worker.left_out, worker.clock.inference)
    code = 0
    try:
        with worker.session, worker.returned or contextlib.nullcontext():
            _standard_input(job.spec.program.stdin)
            HorovodImports().provide()
            execute(job.spec.program, worker.hyperparameters.compile if worker.hyperparameters else None)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except ProgramError as error:
        worker.report(Failed(ExitReason("exception", str(error))))
        code = 1
    except BaseException as error:
        hide_own_frames(error)
        worker.report(worker.failed(error))
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if worker.rank:
        worker.rank.over_in_trial(failed=bool(code))
    if code == 0:
        worker.report(worker.ended())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    work(os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb"))
