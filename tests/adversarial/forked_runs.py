"""Runs many small programs, plainly and under plans, each in a fork of one process that has imported PyTorch.

A fork does what `overdrive run --plan` does, or `python SCRIPT`, but for the start of the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import hashlib
import importlib
import io
import json
import logging
import os
import pkgutil
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Plan = Mapping[str, Mapping[str, Any]]  # techniques, with their settings

_PATIENCE = 100.0  # seconds
_OURS = "overdrive: "
_ADDRESS = re.compile("0x[0-9a-f]+")
_OUR_FRAMES = re.compile(r"  File \"[^\n]*/forked_runs.py\", [^\n]*\n    [^\n]*\n(?: *\^+\n)?")
# Of an iterator that failed: PyTorch says so where the garbage is collected in a worker, which is a matter of chance.
_COLLECTED = re.compile(
    r"Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x>\n"
    r"Traceback [^\n]*\n(?: [^\n]*\n)+AssertionError: can only test a child process(?:\n|$)"
)


@dataclass(frozen=True)
class Job:
    """One run of a program.

    Attributes:
        files: what lies in its folder when it begins; the script is the first.
        plan: None for the program as it is.
        again: it is run twice, the second time with what the first one kept on disk.
    """

    name: str
    files: tuple[Path, ...]
    arguments: tuple[str, ...] = ()
    plan: Plan | None = None
    plan_name: str = ""  # of the run that others are compared with
    again: bool = False


@dataclass
class Outcome:
    """What a run did.

    Attributes:
        code: exit code; None where it was killed for taking too long.
        files: in its folder when it ended, with a hash of each.
        notes: "left out", and what else the run said of its techniques.
        served: batches that were handed over without a call of the data set, or from a worker that we started.
        fetched: other batches.
        last: whether the last batch was still served.
    """

    code: int | None
    out: str
    err: str
    files: dict[str, str]
    seconds: float
    notes: list[str] = field(default_factory=list)
    served: int = 0
    fetched: int = 0
    last: bool = False

    def differences(self, other: Outcome) -> list[str]:
        return [each for each in ("code", "out", "err", "files") if getattr(self, each) != getattr(other, each)]


_IMPORTED = ("changes", "cli.whole_run", "datacache", "forks", "model_state", "techniques.data", "worker")


def import_all() -> None:
    """All that the runs would import for themselves, once: it was half of what a run took."""
    import sqlite3  # noqa: F401

    import torch

    from overdrive.changes.walk.asked import handlers_of_errors
    from overdrive.seams import frameworks
    from overdrive.techniques.catalogue import catalogue

    frameworks.seams_of("torch")
    catalogue()
    for name in _IMPORTED:
        _import_all_of(f"overdrive.{name}")
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight])  # the first one imports 800 modules
    weight.sum().backward()
    optimizer.step()
    handlers_of_errors()  # what is frozen cannot be found
    gc.collect()
    gc.freeze()


def _import_all_of(name: str) -> None:
    """A module, and those that are in it, as far as their libraries are installed."""
    module = importlib.import_module(name)
    for inner in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        if not inner.name.endswith(".__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(inner.name)


def run_all(jobs: Iterable[Job], scratch: Path, at_once: int = 2) -> Iterator[tuple[Job, Outcome]]:
    """In the order in which they end."""
    import_all()
    running: dict[int, tuple[Job, Path, float]] = {}
    places = [scratch / f"place{number}" for number in range(at_once)]
    for job in jobs:
        while len(running) == at_once:
            yield from _ended(running)
        taken = {place for _, place, _ in running.values()}
        place = next(each for each in places if each not in taken)
        running[_started(job, place)] = (job, place, time.monotonic())
    while running:
        yield from _ended(running)


def _started(job: Job, place: Path) -> int:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        try:
            os.setsid()
            for number in range(1 + job.again):
                _run_in_child(job, place, number == job.again)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(99)  # it comes here only where something of ours fails
    return process


def _run_in_child(job: Job, place: Path, last: bool) -> None:
    """Run it in a process of its own, whose end is this process's end. Returns where it is not the last."""
    process = os.fork() if not last else 0
    if process:
        os.waitpid(process, 0)
        return
    folder = place / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for each in job.files:
        shutil.copy2(each, folder)
    _be_program(job, place, folder)


def _be_program(job: Job, place: Path, folder: Path) -> None:
    os.chdir(folder)
    for name, number in (("out", 1), ("err", 2)):
        file = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(open(1, "wb", closefd=False), write_through=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(open(2, "wb", closefd=False), line_buffering=True)  # noqa: SIM115
    sys.dont_write_bytecode = True
    os.environ.update(OVERDRIVE_CACHE=str(place / "cache"), XDG_STATE_HOME=str(place / "state"))
    os.environ.pop("OVERDRIVE_PREFILL", None)
    told = _Told(place / "notes.json")
    if job.plan is not None:
        told.count()
    code = _run(job)
    told.write()
    # As Python ends: threads are waited for, then what was registered.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code & 0xFF)


def _run(job: Job) -> int:
    from overdrive.cli.whole_run import run
    from overdrive.core.program import Program
    from overdrive.worker.launch import end_as_python_would, execute

    program = Program(job.files[0].name, job.arguments)
    if job.plan is not None:
        return run(program, [(name, dict(settings)) for name, settings in job.plan.items()], "plan", None)
    try:
        execute(program)
    except BaseException as error:
        return end_as_python_would(error)
    return 0


class _Told(logging.Handler):
    """Counts the batches that a run's loaders hand over, and keeps what Overdrive logs of them."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._path = path
        self._process = os.getpid()
        self._notes: list[str] = []
        self.served = self.fetched = 0
        self._real = False
        self.last = False
        from overdrive.core.progress import log

        log.addHandler(self)
        log.setLevel(logging.INFO)
        log.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.append(record.getMessage())

    def count(self) -> None:
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        from overdrive.datacache import loader
        from overdrive.seams.torch import lasting_workers
        from overdrive.techniques.data.prefix_cache import serving

        self._replace(_MapDatasetFetcher, "fetch", self._is_real)
        self._replace(loader._Fetcher, "fetch", self._batch)
        self._replace(loader._OneByOne, "fetch", self._batch)
        self._replace(serving.Served, "fetch", self._sample)
        self._replace(serving.Served, "_first_time", self._is_real)
        made = lasting_workers._while_valid.__wrapped__

        def while_valid(kind: Any) -> Any:
            found = made(kind)
            self._replace(found, "_next_data", self._from_worker)
            return found

        from functools import cache

        lasting_workers._while_valid = cache(while_valid)

    def _replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        real = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: by(real, *args, **kwargs))

    def _is_real(self, real: Any, *args: Any) -> Any:
        self._real = True
        return real(*args)

    def _batch(self, real: Any, *args: Any) -> Any:
        self._real = False
        batch = real(*args)
        self._note(not self._real)
        return batch

    def _sample(self, real: Any, *args: Any) -> Any:
        from overdrive.techniques.data.prefix_cache.serving import NOT_HERE

        self._real = False
        sample = real(*args)
        self._note(not self._real and sample is not NOT_HERE)
        return sample

    def _from_worker(self, real: Any, iterator: Any) -> Any:
        batch = real(iterator)
        self._note(iterator.overdrive_own is None)
        return batch

    def _note(self, served: bool) -> None:
        self.last = served
        if served:
            self.served += 1
        else:
            self.fetched += 1

    def write(self) -> None:
        if os.getpid() == self._process:
            counts = {"served": self.served, "fetched": self.fetched, "last": self.last}
            self._path.write_text(json.dumps({"notes": list(dict.fromkeys(self._notes)), **counts}))


def _ended(running: dict[int, tuple[Job, Path, float]]) -> Iterator[tuple[Job, Outcome]]:
    """Wait until one has ended, or took too long."""
    while True:
        for process, (job, place, began) in list(running.items()):
            done, status = os.waitpid(process, os.WNOHANG)
            late = time.monotonic() - began > _PATIENCE
            if not done and not late:
                continue
            _end_group(process)
            if not done:
                os.waitpid(process, 0)
            del running[process]
            code = os.waitstatus_to_exitcode(status) if done else None
            yield job, _outcome(place, code, time.monotonic() - began)
            return
        time.sleep(0.005)


def _end_group(process: int) -> None:
    """What it has left running, too."""
    try:
        os.killpg(process, signal.SIGKILL)
    except OSError:
        return


def _outcome(place: Path, code: int | None, seconds: float) -> Outcome:
    out, err = ((place / name).read_text(errors="replace") for name in ("out", "err"))
    lines = err.splitlines()
    notes = [line.removeprefix(_OURS) for line in lines if line.startswith(_OURS + "left out")]
    told: dict[str, Any] = {}
    if (place / "notes.json").exists():
        told = json.loads((place / "notes.json").read_text())
    notes += told.pop("notes", [])
    programs_own = "\n".join(line for line in lines if not line.startswith(_OURS))
    out, programs_own = (text.replace(str(place), "PLACE") for text in (out, programs_own))
    programs_own = _COLLECTED.sub("", _ADDRESS.sub("0x", _OUR_FRAMES.sub("", programs_own)))
    return Outcome(code, out, programs_own, _tree(place / "run"), seconds, notes, **told)


def _tree(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "other"
        for path in files
    }
