"""The child's side of a trial: runs the program under a plan and stops at step boundaries as told.

Started by `trials.process` as `python -m overdrive.worker.main ORDERS REPORTS`, two file descriptors
that carry one JSON object a line. The worker runs the program until it has made as many training steps
as ordered, reports, and waits inside the optimizer's step for the next order.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from overdrive.core.program import Program, ProgramError
from overdrive.machine.memory import peak_resident
from overdrive.sandbox.isolation import isolate, redirect_torch
from overdrive.seams import frameworks
from overdrive.seams.hub import OBSERVER, Seams
from overdrive.techniques.catalogue import also_in
from overdrive.worker.launch import execute, hide_own_frames
from overdrive.worker.observers import make_digests, make_probe, make_replay
from overdrive.worker.recording import Recorder
from overdrive.worker.returned import Returned
from overdrive.worker.session import Session

_BEAT_SECONDS = 0.5
# Batches are hashed for the first steps, before anything is timed.
_HASHED_STEPS = 8


class Worker:
    def __init__(self, commands: BinaryIO, reports: BinaryIO, job: Mapping[str, Any]) -> None:
        self._commands = commands
        self._reports = reports
        self._due = 1  # the step of the next report; the first step is reported alone, with its set-up cost
        self._lead = 0  # the step at which the clock starts, where some come before that are not timed
        self._block_began = time.perf_counter()
        self._block_steps = 0
        self._block_samples = 0
        self._steps_seen = 0
        self._call_steps = 1  # the most that were made in one call, between which it cannot stand still
        self._last_beat = 0.0
        self._sent_steps = 0
        # Keeping losses costs some 20 us each, which a step of 3 ms that is taken apart would show.
        self.recorder = Recorder(losses=job["profiling"] not in ("plain", "times"))
        self._probes = {name: make_probe(name, _HASHED_STEPS) for name in frameworks.MODULES}
        self.session: Session | None = None
        self._job = job
        self._digests: dict[str, Any] = {}
        self._replays: dict[str, Any] = {}
        self._profilers: dict[str, Any] = {}
        self._rests: list[int] = []  # steps after which it could stand still, where not after each
        self.returned: Returned | None = Returned(job["returned"]) if job["returned"] else None

    @property
    def probe(self) -> Any:
        """Of the framework that makes the steps."""
        return self._probes[self.recorder.framework or next(iter(self._probes))]

    @property
    def _profiler(self) -> Any:
        return self._profilers.get(self.recorder.framework)

    def report(self, event: str, **fields: Any) -> None:
        self._last_beat = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # the tuner is gone; its reaper ends us
            self._reports.write(json.dumps({"event": event, **fields}).encode() + b"\n")
            self._reports.flush()

    def observe(self, seams: Seams) -> None:
        self.recorder(seams)
        if not self._job["digests"] and not self._job["part"] and self._job["profiling"] in ("", "details"):
            for probe in self._probes.values():
                probe(seams)
        seams.batch_fetched.subscribe(self.beat)  # an evaluation makes no step, and lives
        seams.at_work.subscribe(self.beat)
        seams.framework_arrived.subscribe(lambda: self._take_part(seams))

    def _take_part(self, seams: Seams) -> None:
        """Subscribe what needs the framework, which is here now."""
        name, part = seams.frameworks[-1], self._job["part"]
        if self._job["deterministic"]:
            frameworks.seams_of(name).refuse_chance()
        if self._job["digests"]:
            self._digests[name] = make_digests(name, self._job["digests"])
            self._digests[name](seams)
        if part:
            self._replays[name] = make_replay(name, part["role"], part["steps"], Path(part["folder"]))
            self._replays[name](seams)
        if self._job["profiling"] in ("times", "details"):
            from overdrive.worker.profiling.recorder import Profiler

            self._profilers[name] = Profiler(name, self._job["profiling"], self._job["recordings"], seams)
        seams.between_steps.unsubscribe(self._between_steps)
        seams.between_steps.subscribe(self._between_steps)  # last: it is here that the trial stands still

    def left_out(self, name: str, reason: str) -> None:
        """A technique that is left out is in the trace; without its own observer a trial cannot go on."""
        if name == OBSERVER:
            self.report("failed", kind="unwatched", detail=f"Overdrive could not watch this program: {reason}")
            os._exit(1)

    def beat(self, *_: object, **progress: int) -> None:
        """Tell the watchdog that there is progress, at most twice a second."""
        if time.monotonic() - self._last_beat > _BEAT_SECONDS:
            self.report("beat", **progress)

    def filling(self, done: int, total: int) -> None:
        self.beat(done=done, total=total)

    def _between_steps(self) -> None:
        steps = self.recorder.clock.steps
        if steps == self._steps_seen:
            return  # another optimizer of the same training step
        self._call_steps = max(self._call_steps, steps - self._steps_seen)
        self._rests.append(steps)
        self._steps_seen = steps
        self.probe.stepped(steps)
        digests = self._digests.get(self.recorder.framework)
        if digests:
            digests.stepped()
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
        self.probe.end_profile()  # here: until the next order this process stands still
        if self._profiler:
            self._profiler.end(steps - self._block_steps)
        self.report(
            "block",
            step=steps,
            steps=steps - self._block_steps,
            seconds=now - self._block_began,
            samples=self.recorder.samples - self._block_samples,
            call_steps=self._call_steps,
            peak_memory=self._of_framework().peak_memory() or peak_resident(),
            left_out=self.session.seams.left_out if self.session else {},
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
        command = json.loads(line) if line else {"do": "stop"}
        if command["do"] == "run":
            if command.get("profile"):
                self.probe.start_profile()
            lead = int(command["lead"])
            self._lead = self._block_steps + lead if lead else 0
            self._due = self._block_steps + lead + int(command["steps"])
            if command.get("record") and self._profiler:
                self._profiler.begin(command["record"], self.recorder)
            self._block_began = time.perf_counter()
            return False
        if command["do"] == "facts":
            self.report("facts", facts=self.probe.facts(self.recorder, bool(command["costs"])).to_dict())
        elif command["do"] == "recorded":
            self.report("recorded", recorded=self._profiler.report())
        elif command["do"] == "trace":
            self.report("trace", **self._trace())
        elif command["do"] == "stop":
            # At once, without the program's own cleaning up: it must not save, evaluate or print now.
            os._exit(0)
        return True

    def _of_framework(self) -> frameworks.FrameworkSeams:
        return frameworks.seams_of(self.recorder.framework)

    def _trace(self) -> dict[str, Any]:
        assert self.session is not None
        digests, replay = (kept.get(self.recorder.framework) for kept in (self._digests, self._replays))
        return {
            "steps": self.recorder.clock.steps,
            "losses": self.recorder.losses(),
            "rates": self.recorder.rates,
            "samples": self.recorder.samples,
            "batches": self.probe.batch_hashes,
            "state": self.recorder.state_hash(),
            "digests": digests.entries if digests else [],
            "replay": replay.report() if replay else {},
            "rests": self._rests if self._call_steps > 1 else [],
            "trained": self.recorder.trained(),
            "returned": self.returned.value if self.returned else None,
            "active": self.session.active,
            "left_out": self.session.seams.left_out,
        }

    def final(self) -> dict[str, Any]:
        """The trace, for a program that ended by itself; only its zero steps where it trained nothing."""
        return self._trace() if self.recorder.clock.steps else {"steps": 0}


def seed_everything(seed: int, framework: str) -> None:
    """A program that sets no seed gets this one, so that two trials of it can be compared."""
    random.seed(seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(seed)
    frameworks.seams_of(framework).seed(seed)


def kind_of(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".lower()
    out_of_memory = isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text
    return "oom" if out_of_memory else "exception"


def main() -> None:
    commands, reports = os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb")
    job = json.loads(commands.readline())
    also_in(job["also"])
    worker = Worker(commands, reports, job)
    program = Program(job["target"], tuple(job["arguments"]), job["module"])
    seed = job["seed"]

    def seeds(seams: Seams) -> None:
        if job["isolate"]:
            seams.framework_arrived.subscribe(redirect_torch)
        seams.framework_arrived.subscribe(lambda: seed_everything(seed, seams.frameworks[-1]))
        if seed:
            seams.seed_set.subscribe(lambda value: (value + 7919 * seed) % 2**32)

    if job["isolate"]:
        isolation = isolate(Path(job["scratch"]), [Path(each) for each in job["keep"]])
        worker.report("isolated", kind=isolation.kind, detail=isolation.detail)
    from overdrive.core import progress as samples

    samples.on_progress = worker.filling
    techniques = [(each["name"], each["settings"]) for each in job["techniques"]]
    worker.session = Session(techniques, [seeds, worker.observe], worker.left_out)
    code = 0
    try:
        with worker.session, worker.returned or contextlib.nullcontext():
            execute(program)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except ProgramError as error:
        worker.report("failed", kind="exception", detail=str(error))
        code = 1
    except BaseException as error:
        hide_own_frames(error)
        first = str(error).strip().split("\n", 1)[0][:300]
        facts = {}
        if kind_of(error) == "oom":  # which techniques may help is for the tuner to judge
            with contextlib.suppress(Exception):
                facts = {"facts": worker.probe.facts(worker.recorder).to_dict()}
        worker.report("failed", kind=kind_of(error), detail=f"{type(error).__name__}: {first}", **facts)
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if code == 0:
        worker.report("ended", **worker.final())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
