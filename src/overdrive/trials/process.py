"""The parent's side of a trial: starts the child, gives it steps to run, watches it, and ends it.

Never imports a framework. Whatever the child does, what comes back is a value or a `TrialOver`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from overdrive.core.facts import Facts
from overdrive.core.records import Block, ExitReason, Trace, TrialOver, TrialSpec
from overdrive.datacache.store import home as samples_home
from overdrive.sandbox.isolation import discard_scratch
from overdrive.techniques.catalogue import also_in
from overdrive.trials.reaper import Reaper
from overdrive.worker.session import environment_for

MANY_FILES = 1000
_GRACE_SECONDS = 3.0  # between TERM and KILL
_LEAST_PATIENCE = 60.0  # no progress for this long is a hang, and never less
_PATIENCE_STEPS = 10  # ... or this many times the longest wait so far


class TrialPool:
    """What all trials of one tune share: the reaper, a scratch folder, caches, the watchdog's patience."""

    def __init__(self, isolate: bool = True, first_patience: float = 180.0, also: Sequence[str] = ()) -> None:
        """`also`: modules with techniques that are not in the catalogue (yet): for those who write one."""
        also_in(also)
        self.scratch = Path(tempfile.mkdtemp(prefix="overdrive-"))
        self.reaper = Reaper()
        self.isolate = isolate
        self.also = tuple(also)
        self.isolation = ""
        self.prepared_files = 0  # the most that a trial wrote before its first step
        self.last_output = ""  # the end of what the last failed trial printed
        self.on_fill: Callable[[int, int], None] = lambda done, total: None  # samples that a trial keeps, for people
        self.first_patience = first_patience  # start-up, imports, filling caches, compiling
        self._trials = itertools.count(1)  # one step in C: trials may be started from several threads

    def __enter__(self) -> TrialPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reaper.close()
        discard_scratch(self.scratch)

    @property
    def recordings(self) -> Path:
        """The folder where trials leave what they recorded for a profile; it is gone with the pool."""
        return self.scratch / "recordings"

    def folder(self) -> Path:
        folder = self.scratch / f"{next(self._trials):03d}"
        folder.mkdir()
        return folder


class Trial:
    """One live trial. It stands still except while `run` waits for it, workers and threads included."""

    def __init__(self, pool: TrialPool, spec: TrialSpec) -> None:
        self.spec = spec
        self.pool = pool
        self.step = 0
        self.call_steps = 1  # the most steps that it has made in one call so far: it stands still only between calls
        self.left_out: Mapping[str, str] = {}  # techniques, by now, with the reason
        self._folder = pool.folder()
        self._log = (self._folder / "output.log").open("wb")
        self._longest_wait = 0.0
        self._buffer = b""
        self._failure: ExitReason | None = None
        self._last_words: Mapping[str, Any] = {}  # its report of the failure
        self._started = time.monotonic()
        ours_in, their_out = os.pipe()
        their_in, ours_out = os.pipe()
        cache = samples_home()
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = {
            **os.environ,
            **environment_for(spec.techniques),
            "OVERDRIVE_PREFILL": "1",
            "OVERDRIVE_CACHE": str(cache),
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
            # Shared by this tune's trials, so that a candidate compiles once and not in every process.
            "TORCHINDUCTOR_CACHE_DIR": str(pool.scratch / "inductor"),
            "WANDB_MODE": "offline",
        }
        if spec.threads:
            environment |= {name: str(spec.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        (pool.scratch / "inductor").mkdir(exist_ok=True)
        pool.recordings.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "overdrive.worker.main", str(their_in), str(their_out)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=(their_in, their_out),
            start_new_session=True,
            env=environment,
        )
        pool.reaper.watch(self._process.pid)
        os.close(their_in)
        os.close(their_out)
        self._reports = ours_in
        self._commands = os.fdopen(ours_out, "wb", buffering=0)
        program = spec.program
        self._send(
            target=program.target,
            arguments=program.arguments,
            module=program.module,
            seed=spec.seed,
            techniques=[{"name": name, "settings": dict(settings)} for name, settings in spec.techniques],
            isolate=pool.isolate,
            scratch=str(self._folder),
            keep=[
                str(cache),
                str(pool.scratch / "inductor"),
                *([spec.part.folder] if spec.part else []),
                *([str(pool.recordings)] if spec.profiling else []),
            ],
            profiling=spec.profiling,
            recordings=str(pool.recordings),
            digests=spec.digests,
            part=asdict(spec.part) if spec.part else None,
            returned=spec.returned,
            deterministic=spec.deterministic,
            also=list(pool.also),
        )

    # -- orders ---------------------------------------------------------------------------------

    def first_step(self, until: float = math.inf) -> Block:
        """Wait for the program's first training step, but not past `until` (time.monotonic()).

        Its seconds include all set-up: start, imports, filling caches, compiling.
        """
        report = self._await("block", self.pool.first_patience, until)
        self.step, self.left_out, self.call_steps = report["step"], report["left_out"], report["call_steps"]
        self._pause()
        self.pool.prepared_files = max(self.pool.prepared_files, self._files_written())
        return Block(
            report["step"], report["steps"], time.monotonic() - self._started, report["samples"], report["peak_memory"]
        )

    def run(self, steps: int, lead: int = 0, profile: bool = False, record: str = "") -> Block:
        """Let the program make `lead` and then `steps` training steps, and measure the latter.

        `record`: what is recorded meanwhile, in a trial that is ordered for profiling; with a lead, only "times".

        Raises:
            TrialOver: it ended, failed, hung or crashed before.
        """
        self._resume()
        self._send(do="run", steps=steps, lead=lead, profile=profile, record=record)
        began = time.monotonic()
        patience = max(_LEAST_PATIENCE, _PATIENCE_STEPS * self._longest_wait)
        report = self._await("block", patience)
        self._longest_wait = max(self._longest_wait, time.monotonic() - began)
        self._pause()
        self.step, self.left_out, self.call_steps = report["step"], report["left_out"], report["call_steps"]
        return Block(report["step"], report["steps"], report["seconds"], report["samples"], report["peak_memory"])

    def facts(self, costs: bool = False) -> Facts:
        """`costs`: those of an item too, which takes seconds; the steps after it are slower than usual."""
        self._resume()
        self._send(do="facts", costs=costs)
        report = self._await("facts", _LEAST_PATIENCE)
        self._pause()
        return Facts.from_dict(report["facts"])

    def recorded(self) -> Mapping[str, Any]:
        """What was recorded so far, as plain data (see `worker.profiling.recorder`)."""
        self._resume()
        self._send(do="recorded")
        report = self._await("recorded", _LEAST_PATIENCE)
        self._pause()
        found: Mapping[str, Any] = report["recorded"]
        return found

    def trace(self) -> Trace:
        self._resume()
        self._send(do="trace")
        report = self._await("trace", _LEAST_PATIENCE)
        self._pause()
        return Trace.from_report(report)

    def stop(self) -> None:
        """End it and everything it started, whatever state it is in; remove its scratch folder."""
        group = self._process.pid
        if self._process.poll() is None:
            with suppress(OSError):
                self._resume()
                self._send(do="stop")
            if not self._gone_within(_GRACE_SECONDS / 2):
                _signal_group(group, signal.SIGTERM)
                self._gone_within(_GRACE_SECONDS)
        _signal_group(group, signal.SIGCONT)
        _signal_group(group, signal.SIGKILL)  # workers that outlived it, too
        self._process.wait()
        self.pool.reaper.forget(group)
        self._log.close()
        with suppress(OSError):
            os.close(self._reports)
        with suppress(OSError):
            self._commands.close()
        discard_scratch(self._folder)

    def _files_written(self) -> int:
        """How many files it has written so far, which are thrown away with it; counted up to MANY_FILES."""
        count = 0
        for _, _, files in os.walk(self._folder):
            count += len(files)
            if count >= MANY_FILES:
                break
        return count

    def output_tail(self, size: int = 2000) -> str:
        self._log.flush()
        text = (self._folder / "output.log").read_bytes()[-size:]
        return text.decode(errors="replace")

    # -- inside ---------------------------------------------------------------------------------

    def _send(self, **command: Any) -> None:
        with suppress(BrokenPipeError):  # it is over; the next wait says why
            self._commands.write(json.dumps(command).encode() + b"\n")

    def _pause(self) -> None:
        # The whole group: data workers that fetch ahead while the other trial is measured would both
        # disturb that one and get their own batches for nothing.
        _signal_group(self._process.pid, signal.SIGSTOP)

    def _resume(self) -> None:
        _signal_group(self._process.pid, signal.SIGCONT)

    def _await(self, event: str, patience: float, until: float = math.inf) -> Mapping[str, Any]:
        deadline = time.monotonic() + patience
        while True:
            for report in self._read(min(1.0, max(0.0, deadline - time.monotonic()))):
                kind = report["event"]
                if kind == event:
                    return report
                deadline = max(deadline, time.monotonic() + patience)  # it lives
                if kind == "beat" and report.get("done"):
                    self.pool.on_fill(report["done"], report["total"])
                elif kind == "isolated":
                    self.pool.isolation = f"{report['kind']}: {report['detail']}"
                elif kind == "failed":
                    self._failure = ExitReason(report["kind"], report["detail"])
                    self._last_words = report
                elif kind == "ended":
                    raise TrialOver(ExitReason("ended", f"after {report.get('steps', 0)} steps"), report)
            if self._process.poll() is not None and not self._read(0.0, peek=True):
                self.pool.last_output = self.output_tail()
                raise TrialOver(self._failure or self._post_mortem(), self._last_words)
            if time.monotonic() > until:
                raise TrialOver(ExitReason("late", "its first step did not come within the budget"))
            if time.monotonic() > deadline:
                raise TrialOver(ExitReason("hang", f"no training step for {patience:.0f} s"))

    def _read(self, seconds: float, peek: bool = False) -> list[Mapping[str, Any]]:
        ready, _, _ = select.select([self._reports], [], [], seconds)
        if peek:
            return [{}] if ready and self._fill() else []
        if ready:
            self._fill()
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def _fill(self) -> bool:
        chunk = os.read(self._reports, 1 << 20)
        self._buffer += chunk
        if not chunk:
            time.sleep(0.01)  # closed by the child; its exit status follows
        return bool(chunk)

    def _post_mortem(self) -> ExitReason:
        code = self._process.returncode
        if code == 0:
            return ExitReason("ended")
        if code == -signal.SIGKILL:
            return ExitReason("oom", "killed by the system, most likely for want of memory")
        if code < 0:
            return ExitReason("crash", signal.Signals(-code).name)
        return ExitReason("exception", f"exit code {code}")

    def _gone_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
