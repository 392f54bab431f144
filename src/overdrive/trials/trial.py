"""The parent's side of a trial: starts its processes, gives them steps to run, watches them, and ends them.

Never imports a framework. Whatever the program does, what comes back is a value or a `TrialOver`.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from overdrive.core import messages, scratch
from overdrive.core.facts import Facts
from overdrive.core.messages import Beat, Ended, Failed, Isolated, Job, Observed, Recorded
from overdrive.core.places import samples_folder
from overdrive.core.records import Block, ExitReason, Trace, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.machine.contention import LoadWatch, Reading
from overdrive.ranks.membership import IMAGINED
from overdrive.techniques.catalogue import ranks_for
from overdrive.trials.environment import environment_of
from overdrive.trials.launchers import leftovers
from overdrive.trials.launchers.launcher import Launcher
from overdrive.trials.launchers.ranks import RanksLauncher
from overdrive.trials.pool import TrialPool

MANY_FILES = 1000
_GRACE_SECONDS = 3.0  # between TERM and KILL
_END_SECONDS = 5.0  # that Python may take to end a process: 0.75 s where torchvision was imported
_LEAST_PATIENCE = 60.0  # no progress for this long is a hang, and never less
_IDLE_PATIENCE = 20.0  # ... nor where no thread of it runs either: it waits for what does not come
# TensorFlow's pipelines sleep at the end of an epoch until their own clock wakes them, 9 and 12 s in two of ten runs of
# a public program, and in one more than 20.
_KERAS_PATIENCE = 75.0
_IDLE = 0.01  # of that time, for which threads run that wait, and look now and then
_PLAIN_PATIENCE = 600.0  # ... of one in which calls of models are not looked at: it may evaluate for as long
_PATIENCE_STEPS = 10  # ... or this many times the longest wait so far

Answer = TypeVar("Answer")


class Trial:
    """One live trial. It stands still except while an answer of it is waited for, data workers and threads included."""

    def __init__(self, pool: TrialPool, spec: TrialSpec, launcher: Launcher | None = None) -> None:
        """`launcher`: another one than the pool's; where there are several ranks it starts each, or all of them."""
        self.spec = spec
        self.pool = pool
        self.step = 0
        self.call_steps = 1  # the most steps that it has made in one call so far: it stands still only between calls
        self.left_out: Mapping[str, str] = {}  # techniques and observers, by now, with the reason
        self._folder = pool.folder()
        self._log = (self._folder / "output.log").open("wb")
        self._longest_wait = 0.0
        self._silence = 0.0  # the longest between two signs of life, which a step of one batch gives none of
        self._failure: Failed | None = None
        self._started = time.monotonic()
        keep = [str(pool.compiled)]
        if pool.bytecode:
            keep.append(str(pool.bytecode))
        with contextlib.suppress(OSError):  # no home to write to: a technique that keeps samples leaves itself out
            samples_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            keep.append(str(samples_folder()))
        ranks = ranks_for(spec.techniques)
        launcher = launcher or pool.launcher
        if ranks > 1 and not isinstance(launcher, RanksLauncher):
            launcher = RanksLauncher(ranks, launcher, (0,) if spec.alone else ())
        imagined = {IMAGINED: str(self._folder)} if spec.alone else {}
        self.group = launcher.start({**environment_of(pool, spec, self._folder), **imagined}, self._log)
        self._watch = LoadWatch(self.group.pids)
        self._leaders = leftovers.known(self.group.pids)
        if not all(pool.reaper.watch(pid) for pid in self.group.pids):
            # Ctrl-C has closed the pool while another thread started this one.
            self.stop()
            raise TrialOver(ExitReason("late", "the tune is over"))
        keep += [spec.replay.folder] if spec.replay else []
        keep += [spec.folder] if spec.folder else []
        keep += [str(pool.recordings)] if spec.profiling else []
        self._send(Job(spec, pool.isolate, str(self._folder), tuple(keep), str(pool.recordings), pool.also))

    # -- commands -------------------------------------------------------------------------------

    def first_step(self, until: float = math.inf) -> Block:
        """Wait for the program's first step, but not past `until` (time.monotonic()).

        Its seconds include all set-up: start, imports, filling caches, compiling. As the worker tells it, they are
        those from the beginning of the program's code.
        """
        block = self._await(Block, self.pool.first_patience, until)
        self._arrived(block)
        self.pool.prepared_files = max(self.pool.prepared_files, self._files_written())
        seconds = time.monotonic() - self._started
        return replace(block, seconds=seconds, launch=max(0.0, seconds - block.seconds))

    def run(self, steps: int, lead: int = 0, profile: bool = False, record: str = "", until: float = math.inf) -> Block:
        """Let the program make `lead` and then `steps` steps, and measure the latter.

        `record`: what is recorded meanwhile, in a trial that is ordered for profiling; with a lead, only "times".
        `until`: time.monotonic() at which it is late.

        Raises:
            TrialOver: it ended, failed, hung or crashed before, or was late.
        """
        began = time.monotonic()
        least = _PLAIN_PATIENCE if self.spec.profiling == "plain" else _LEAST_PATIENCE
        patience = max(least, self._usual_patience())
        crowded = self.pool.crowding.look()
        before = self._watch.read()
        block = self._ask(messages.Run(steps, lead, profile, record), Block, patience, until)
        load = self._watch.since(before)
        self._longest_wait = max(self._longest_wait, time.monotonic() - began)
        self._arrived(block)
        if crowded is not None:
            crowded = max(crowded, self.pool.crowding.look() or 0.0)
        return replace(block, waited=load.waited, others=load.others, crowded=crowded)

    def facts(self, costs: bool = False) -> Facts:
        """`costs`: those of an item too, which takes seconds; the steps after it are slower than usual."""
        facts = self._ask(messages.TellFacts(costs), Facts)
        if facts.framework == "keras":
            self.pool.patience = max(self.pool.patience, _KERAS_PATIENCE)
        return facts

    def recorded(self) -> Mapping[str, Any]:
        """What was recorded so far, as plain data (see `worker.profiling.recorder`)."""
        return self._ask(messages.TellRecorded(), Recorded).data

    def observed(self) -> Mapping[str, Any]:
        """What the observers of its spec report so far, by their names; those that have nothing yet are not there."""
        return self._ask(messages.TellObserved(), Observed).reports

    def trace(self) -> Trace:
        return self._ask(messages.TellTrace(), Trace)

    def end(self) -> float | None:
        """Let Python end it, as at a program's end, and time that; None where it takes longer than any patience, or has
        ended before.

        Only `stop` can follow. It may have come to its program's end.
        """
        if self.group.exit_code() is not None:
            return None
        self.group.resume()
        began = time.monotonic()
        self._send(messages.End())
        return time.monotonic() - began if self.group.wait(_END_SECONDS) else None

    def stop(self) -> None:
        """End it and everything it started, whatever state it is in; remove its scratch folder."""
        elsewhere = leftovers.elsewhere(self._leaders)
        if self.group.exit_code() is None:
            with suppress(OSError):
                self.group.resume()
                self._send(messages.Stop())
            self.group.wait(_GRACE_SECONDS / 2)
        leftovers.end(elsewhere)
        self.group.stop(_GRACE_SECONDS)
        for pid in self.group.pids:
            self.pool.reaper.forget(pid)
        self._log.close()
        scratch.discard(self._folder)

    def output_tail(self, size: int = 2000) -> str:
        self._log.flush()
        with (self._folder / "output.log").open("rb") as log:  # which may be larger than the memory
            log.seek(max(0, log.seek(0, os.SEEK_END) - size))
            return log.read(size).decode(errors="replace")

    # -- inside ---------------------------------------------------------------------------------

    def _usual_patience(self) -> float:
        """Seconds without a sign of life that are no hang, by what it was like so far."""
        return max(self.pool.patience, 2 * self._silence, _PATIENCE_STEPS * self._longest_wait)

    def _arrived(self, block: Block) -> None:
        self.step, self.left_out, self.call_steps = block.step, block.left_out, block.call_steps

    def _send(self, message: Job | messages.Command) -> None:
        self.group.send(messages.write(message))

    def _ask(
        self,
        command: messages.Command,
        answer: type[Answer],
        patience: float = _LEAST_PATIENCE,
        until: float = math.inf,
    ) -> Answer:
        self.group.resume()
        self._send(command)
        return self._await(answer, patience, until)

    def _await(self, kind: type[Answer], patience: float, until: float) -> Answer:
        """Worker 0's report of this kind, once every worker has sent one; all stand still then. A block is of them all.

        What lives is waited for, but where the pool's time is over no longer than for what does not.
        """
        heard = began = time.monotonic()
        idle = _Idleness(self._watch, max(_IDLE_PATIENCE, self._usual_patience()))
        found: dict[int, Answer] = {}  # by rank
        while True:
            deadline = max(began + patience, min(heard + patience, self.pool.until))
            over = self.group.exit_code() is not None  # before reading: what it said last is read then
            lines = self.group.read(min(1.0, max(0.0, deadline - time.monotonic())))
            for rank, line in lines:
                report = messages.read(line)
                self._silence = max(self._silence, time.monotonic() - heard)
                if isinstance(report, kind):
                    found[rank] = report
                    continue
                heard = time.monotonic()  # it lives
                self._hear(report, rank)
            if len(found) == self.group.size:
                self.group.pause()
                return _of_all([found[rank] for rank in range(self.group.size)])
            if over and not lines:
                self.pool.last_output = self.output_tail()
                failed = self._failure or Failed(self._post_mortem())
                raise TrialOver(failed.reason, facts=failed.facts)
            now = time.monotonic()
            if now > until or heard + patience > now > deadline:
                unit = self.spec.unit
                told = f"it came no further than {unit} {self.step}" if self.step else f"its first {unit} did not come"
                raise TrialOver(ExitReason("late", f"{told} within the budget"))
            if now > deadline or (self.step and idle.since(heard)):
                raise TrialOver(ExitReason("hang", f"no step for {now - heard:.0f} s"))

    def _hear(self, report: messages.Report, rank: int) -> None:
        """A report that was not waited for."""
        match report:
            case Beat(done, total) if done:
                self.pool.on_fill(done, total)
            case Isolated(kind, detail):
                self.pool.isolation = f"{kind}: {detail}"
            case Failed(reason) if reason.kind == "unwatched":
                self.pool.last_output = self.output_tail()
                raise TrialOver(reason)  # though it goes on, where the steps are those of processes that it forked
            case Failed():
                self._failure = self._failure or report
            case Ended(trace, observed, reason) if rank == 0:
                reason = reason or ExitReason("ended", f"after {trace.steps} {self.spec.unit}s")
                self.left_out = trace.left_out or self.left_out
                told = trace.steps or trace.returned is not None
                raise TrialOver(reason, trace if told else None, observed=observed)

    def _post_mortem(self) -> ExitReason:
        code = self.group.exit_code()
        if not code:  # by os._exit, perhaps: what it came to is not known
            return ExitReason("ended", f"after {self.step} {self.spec.unit}s or more" if self.step else "")
        if code == -signal.SIGKILL:
            return ExitReason("oom", "killed by the system, most likely for want of memory")
        if code < 0:
            return ExitReason("crash", signal.Signals(-code).name)
        return ExitReason("exception", f"exit code {code}")

    def _files_written(self) -> int:
        """How many files it has written so far, which are thrown away with it; counted up to MANY_FILES."""
        count = 0
        for _, _, files in os.walk(self._folder):
            count += len(files)
            if count >= MANY_FILES:
                break
        return count


class _Idleness:
    """Tells that no thread of a trial runs, though it is not stopped."""

    def __init__(self, watch: LoadWatch, patience: float) -> None:
        """`patience`: seconds."""
        self._watch, self._half = watch, patience / 2
        self._before: Reading | None = None

    def since(self, heard: float) -> bool:
        """`heard`: the last sign of life (time.monotonic()). Threads are looked at in each half of the patience."""
        before = self._before
        if time.monotonic() < max(heard, before.moment if before else 0.0) + self._half:
            return False
        now = self._before = self._watch.read()
        if before is None or before.moment < heard or before.ran is None or now.ran is None:
            return False
        return 0.0 <= now.ran - before.ran < _IDLE * (now.moment - before.moment)  # less: a thread ended


def _of_all(reports: Sequence[Answer]) -> Answer:
    first, *others = reports
    return first.beside(others) if isinstance(first, Block) else first  # type: ignore[arg-type,return-value]
