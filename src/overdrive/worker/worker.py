"""Runs one program to where it is told, stops at step boundaries, and reports."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, BinaryIO

from overdrive.core import messages
from overdrive.core.exchanged import Exchanged
from overdrive.core.facts import Facts
from overdrive.core.messages import Ended, Failed, Job, Observed, Recorded
from overdrive.core.records import ExitReason, Trace
from overdrive.core.streams import flush, flush_files
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.units import several
from overdrive.machine.memory import peak_resident
from overdrive.ranks.rank import Rank
from overdrive.seams import frameworks, keras_2
from overdrive.seams.hub import Seams
from overdrive.seams.points import OBSERVER
from overdrive.worker import hyperparameter_watch
from overdrive.worker.answering import AnsweringObserver
from overdrive.worker.blocks import Blocks
from overdrive.worker.call_timer import CallTimer
from overdrive.worker.clock import CLOCKS, WHOLE_RUN
from overdrive.worker.failures import kind_of
from overdrive.worker.instruments import HASHED_STEPS, Instruments
from overdrive.worker.observers import MayGoOn, Observer, load_observer, reports_of
from overdrive.worker.own_facts import OwnFacts
from overdrive.worker.recording import Recorder
from overdrive.worker.report_pipe import ReportPipe
from overdrive.worker.returned import Returned
from overdrive.worker.session import Session
from overdrive.worker.spawned import told_of_steps
from overdrive.worker.switching import switch, switched_on

_ELSEWHERE = "The program's training steps are made in processes that it {}, which Overdrive does not follow"


class Worker:
    """Runs one program to where it is told, and reports."""

    def __init__(self, commands: BinaryIO, reports: BinaryIO, job: Job) -> None:
        self._commands = commands
        self.reports = ReportPipe(reports)
        self._job = job
        self.spec: TrialSpec = job.spec
        self.clock = CLOCKS[self.spec.clock]()
        # Keeping losses costs some 20 us each, which a step of 3 ms would show when its parts are timed.
        losses = self.spec.losses and self.spec.profiling not in ("plain", "times")
        self.recorder = Recorder(losses=losses, clock=self.clock)
        self._by_framework: dict[str, Instruments] = {}  # from its arrival: PyTorch's import PyTorch
        self._observers: dict[str, Observer] = {}
        self.hyperparameters: hyperparameter_watch.HyperparameterWatch | None = None
        self._own_facts = OwnFacts()
        self.session: Session | None = None
        self._whole_run = self.spec.clock == WHOLE_RUN
        found = self._enough if self._whole_run else self._answers
        # A search takes a program that makes no step at what it prints, at its end.
        by_steps = not self.clock.inference and not self.spec.hyperparameters
        self._answering = AnsweringObserver(found) if by_steps else None
        self._calls = CallTimer(self._wait_for_answers) if self.clock.inference else None
        self.rank: Rank | None = None  # where the trial is a group of ranks
        self.blocks = Blocks(
            self.recorder,
            self._calls,
            self.spec.timed,
            self._settling,
            self._exchanged,
            self._installing,
            self._training_calls,
        )
        self._environment = dict(os.environ)
        self._sets_environment = False  # before it imports a framework, which may read it
        self.returned: Returned | None = Returned(self.spec.returned) if self.spec.returned else None

    @property
    def instruments(self) -> Instruments:
        """Of the framework that makes the steps; where none does, of Keras, which import nothing."""
        name = self.recorder.framework or next(iter(self._by_framework), "keras")
        if name not in self._by_framework:
            self._by_framework[name] = Instruments("keras")
        return self._by_framework[name]

    def facts(self, costs: bool = False) -> Facts:
        found: Facts = self.instruments.probe.facts(self.recorder, costs)
        return replace(found, own=self._own_facts.gathered(found.framework), sets_environment=self._sets_environment)

    def observe(self, seams: Seams) -> None:
        """The worker's own observer of the program."""
        spec = self.spec
        if self._calls:
            self._calls.watch(seams)
        self.recorder(seams)
        if self._answering and not spec.profiling:  # it has every call of a module looked at
            self._answering(seams)
        if self._gathers_facts:
            self._own_facts(seams)
        seams.batch_fetched.subscribe(self.reports.beat)  # an evaluation makes no step, and lives
        seams.at_work.subscribe(self.reports.beat)
        if not (self.clock.inference or spec.profiling == "plain"):  # which is to have nothing looked at
            seams.model_begins.subscribe(self.reports.beat)  # one that makes its batches by hand lives, too
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
        seams.keras_2_applied.subscribe(self._trains_with_keras_2)
        seams.port_chosen.subscribe(lambda port: 0)  # any: the other trial of a duel asks for the same
        self.clock.at_rest(seams, self._stand_still)

    @property
    def _gathers_facts(self) -> bool:
        spec = self.spec
        looked_at = spec.digests or spec.replay or spec.observers  # what is seen must be the program's own doing
        return not (looked_at or self._whole_run) and spec.profiling in ("", "details")

    def _take_part(self, seams: Seams) -> None:
        """Subscribe what needs the framework, which is here now."""
        name = seams.frameworks[-1]
        self._sets_environment = self._sets_environment or self._environment != dict(os.environ)
        self._by_framework[name] = instruments = Instruments(name)
        instruments.subscribe(seams, self.spec, self._gathers_facts, self._job.recordings)
        self.clock.at_rest(seams, self._stand_still)  # again: after all that was subscribed here

    def _over(self) -> None:
        """The program has shown what was to be seen, though it makes no step: it ends here."""
        if not self.reports.forked:
            self.reports.report(self.ended())
            os._exit(0)

    def _enough(self) -> None:
        """It answers, and perhaps for ever: what was seen is reported as at its end, outside of all seams."""
        if self.reports.forked:
            return
        assert self.session is not None
        for each in self._observers.values():
            if isinstance(each, MayGoOn) and each.goes_on():
                return
        self.session.__exit__(None, None, None)
        self._over()

    def left_out(self, name: str, reason: str) -> None:
        """A technique that is left out is in the trace; without its own observer a trial cannot go on."""
        if name == OBSERVER and not self.reports.forked:
            self.reports.report(Failed(ExitReason("unwatched", f"Overdrive could not watch this program: {reason}")))
            os._exit(1)

    def _answers(self) -> None:
        """There is no training step to be waited for: its model's calls are what it does."""
        if not self.reports.forked:  # else an actor's, beside a learner
            self.reports.report(self._no_training())
            os._exit(1)

    def _no_training(self) -> Failed:
        assert self._answering is not None
        return Failed(
            ExitReason("answers", f"{several(self._answering.calls, 'call')} of a model, and no training step")
        )

    def _training_after_all(self) -> Failed:
        return Failed(
            ExitReason("trains", f"an optimizer stepped after {several(self.clock.steps, 'call')} of the model")
        )

    def _stand_still(self) -> None:
        if self.reports.forked:
            return self._trains_elsewhere()
        with self.rank.lockstep.aside() if self.rank else contextlib.nullcontext():
            self._between_steps()

    def _trains_with_keras_2(self) -> None:
        """No step of it will be seen: to wait for one would take all of the time that there is."""
        alone = not (self.clock.steps or self.clock.inference or self._whole_run or self.spec.hyperparameters)
        may_train = self.session is not None and "torch" in self.session.seams.frameworks  # later, with that
        if alone and not may_train and not self.reports.forked:
            said = f"The program trains with {keras_2.NOT_FOLLOWED}"
            self.reports.report(Failed(ExitReason("unwatched", said)))
            os._exit(1)

    def _trains_elsewhere(self) -> None:
        """A forked process has made a step. Where the one that forked it has made none, it only waits for such ones."""
        if not self.blocks.rests and not self.clock.inference:
            self.blocks.rests_at(self.clock.steps)
            self.reports.report_anyhow(Failed(ExitReason("unwatched", _ELSEWHERE.format("forks"))))

    def told_of_spawned(self) -> AbstractContextManager[None]:
        """Meanwhile, so are the steps of processes that it starts anew, as long as it has made none itself."""
        line = messages.write(Failed(ExitReason("unwatched", _ELSEWHERE.format("spawns"))))
        return told_of_steps(self.reports.handle(), line, lambda: not (self.blocks.rests or self.clock.inference))

    def _between_steps(self) -> None:
        steps = self.clock.steps
        if self.clock.trains:
            self.reports.report(self._training_after_all())
            os._exit(1)
        self.blocks.rests_at(steps)
        instruments = self.instruments
        instruments.stepped(steps)
        if steps == HASHED_STEPS:
            self._own_facts.watch(False)
        if self.blocks.lead_ends(steps):
            self._of_framework().synchronize()
            if instruments.profiler:
                instruments.profiler.lead_over()
            self.blocks.lead_over(steps)
            return
        if not self.blocks.ends(steps):
            self.reports.beat()
            return
        framework = self._of_framework()
        framework.synchronize()
        now = time.perf_counter()
        self._own_facts.watch(steps < HASHED_STEPS)
        instruments.probe.end_profile()  # here: until the next command this process stands still
        if instruments.profiler:
            instruments.profiler.end(self.blocks.made(steps))
        left_out = dict(self.session.seams.left_out) if self.session else {}
        self.reports.report(self.blocks.measured(steps, now, framework.peak_memory() or peak_resident(), left_out))
        self.stand_by()

    def _settling(self) -> int:
        return self.session.settling() if self.session else 0

    def _installing(self) -> float:
        return self.session.installing if self.session else 0.0

    def _training_calls(self) -> int:
        counter = self.instruments.training_calls
        return counter.made if counter else 0

    def _exchanged(self) -> Exchanged | None:
        return self.rank.exchanged() if self.rank else None

    def _obey(self) -> bool:
        """Carry out one command; False where the program is to go on."""
        line = self._commands.readline()
        command = messages.read(line) if line else messages.Stop()
        match command:
            case messages.Run(steps, lead, profile, record):
                if profile:
                    self._own_facts.watch(True)
                    self.instruments.probe.start_profile()
                self.blocks.order(steps, lead)
                if record and (profiler := self.instruments.profiler):
                    profiler.begin(record, self.recorder)
                self.blocks.starts_clock()
                return False
            case messages.Switch(on):
                assert self.session is not None
                switch(self.session, on)
                self.reports.report(messages.Switched(switched_on(self.session)))
            case messages.TellFacts(costs):
                self.reports.report(self.facts(costs))
            case messages.TellRecorded():
                profiler = self.instruments.profiler
                assert profiler is not None
                self.reports.report(Recorded(profiler.report()))
            case messages.TellObserved():
                self.reports.report(Observed(self._observed()))
            case messages.TellTrace():
                flush()  # what it printed by now belongs to these steps
                self.reports.report(self._trace())
            case messages.Stop():
                # At once, without the program's own cleaning up: it must not save, evaluate or print now.
                os._exit(0)
            case messages.End():
                flush()
                if self.spec.techniques and self.session:  # as `overdrive run` ends: some 0.1 s beside PyTorch
                    with contextlib.suppress(Exception):
                        self.session.__exit__(None, None, None)
                    flush_files()
                ctypes.pythonapi.Py_Exit(0)
        return True

    def stand_by(self) -> None:
        """Carry out commands until the program is to go on: one that is over, until the parent has done with it."""
        while not self.reports.forked and self._obey():
            pass

    def _observed(self) -> dict[str, Any]:
        assert self.session is not None
        return reports_of(self._observers, self.session.seams.leave_out)

    def _wait_for_answers(self) -> None:
        if self.spec.timed == "call":
            self._of_framework().synchronize()

    def _of_framework(self) -> frameworks.FrameworkSeams:
        return frameworks.seams_of(self.recorder.framework)

    def _trace(self) -> Trace:
        assert self.session is not None
        instruments = self.instruments
        digests, replay, products = instruments.digests, instruments.replay, instruments.products
        trace = Trace(
            steps=self.clock.steps,
            losses=tuple(map(tuple, self.recorder.losses())),
            rates=tuple(self.recorder.rates),
            samples=self.recorder.samples,
            batches=tuple(instruments.probe.batch_hashes),
            state=self.recorder.state_hash(),
            digests=tuple(digests.entries) if digests else (),
            replay=replay.report() if replay else {},
            rests=tuple(self.blocks.rests) if self.blocks.call_steps > 1 else (),
            trained=self.recorder.trained(),
            returned=self.returned.value if self.returned else None,
            active=tuple(self.session.active),
            left_out=dict(self.session.seams.left_out),
            inference=self.clock.inference,
            call_sizes=self.recorder.call_sizes(),
        )
        # Last: it calls the model once more, which is no part of the run.
        return replace(trace, products=products.report(self.recorder.optimizers)) if products else trace

    def ended(self) -> Ended | Failed:
        """Of a program that ended by itself."""
        if self._answering and self._answering.answers and not (self.clock.steps or self._whole_run):
            return self._no_training()
        if self.clock.trains:
            return self._training_after_all()
        if self.clock.steps:
            return Ended(self._trace(), self._observed())
        by_hand = self._answering and self._answering.trains
        no_optimizer = ExitReason("no optimizer", "losses were sent backward, and none stepped")
        trace = Trace(returned=self.returned.value if self.returned else None)
        return Ended(trace, self._observed(), no_optimizer if by_hand else None)

    def failed(self, error: BaseException) -> Failed:
        first = str(error).strip().split("\n", 1)[0][:300]
        reason = ExitReason(kind_of(error), f"{type(error).__name__}: {first}")
        if reason.kind == "oom":  # which techniques may help is for the tuner to judge
            with contextlib.suppress(Exception):
                return Failed(reason, self.facts())
        return Failed(reason)
