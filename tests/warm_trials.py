"""Trials, programs and commands of tests that are about what follows their start: forked from a process that has
PyTorch, of which each worker of pytest has one for each of two kinds. A start takes 0.1 s so, and 2 to 3 s afresh.
`trials/test_warm.py` and `test_warm_trials.py` show that both are the same; tests of starts, environments and launchers
start theirs afresh.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, NoReturn

import psutil

from overdrive.core.facts import Facts
from overdrive.trials import pool
from overdrive.trials.launchers import launcher
from overdrive.trials.launchers.local import LocalGroup, LocalLauncher
from overdrive.trials.launchers.warm import _Nursery
from overdrive.worker import nursery
from overdrive.worker.launch import end_as_python_would

ROOT = Path(__file__).parent.parent
PATHS = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))


class Launcher:
    """Unlike the product's it has one nursery, whatever the environment: what is read while PyTorch is imported is the
    same for all tests. A command that a test runs may use its test's: see `in_command`."""

    def __init__(self, nursery: _OfTests) -> None:
        self._lock = threading.Lock()
        self._scripts = itertools.count()
        self._nursery = nursery

    def start(self, environment: Mapping[str, str], output: BinaryIO) -> launcher.ProcessGroup:
        with self._lock:
            self._nursery.told.write_text(json.dumps([dict(environment), os.getcwd()]))
            group = self._nursery.fork(output)
        return group or LocalLauncher().start(environment, output)  # it may be gone, as the product's may

    def script(self, *words: str, cwd: Path | None = None) -> Started:
        """What `python WORDS` is: a script with its arguments, or -m and a module with its own."""
        number = next(self._scripts)
        output, errors = (self._nursery.told.with_name(f"{each} {number}") for each in ("output", "errors"))
        with self._lock, output.open("wb") as file:
            told = [dict(os.environ), str(cwd or Path.cwd()), str(errors), *words]
            self._nursery.told.write_text(json.dumps(told))
            group = self._nursery.fork(file)
        assert group is not None, "the process that programs are forked from is gone"
        return Started(group, words, output, errors)

    def close(self) -> None:
        """It is there for others."""

    def alive(self) -> list[psutil.Process]:
        """Its trials."""
        children = psutil.Process(self._nursery.pid).children()
        return [each for each in children if each.status() != psutil.STATUS_ZOMBIE]

    def for_command(self) -> tuple[str, str]:
        """What `in_command` needs, besides the descriptor."""
        return str(self.descriptor), str(self._nursery.told)

    @property
    def descriptor(self) -> int:
        """Which that process has to inherit."""
        return self._nursery.descriptor


class Started:
    """The part of a `subprocess.Popen` that tests need."""

    def __init__(self, group: LocalGroup, words: Sequence[str], output: Path, errors: Path) -> None:
        self.returncode: int | None = None
        self._group = group
        self._words = words
        self._files = output, errors

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it printed, and said of errors."""
        assert self._group.wait(timeout), "it does not come to an end"
        self.returncode = self._group.exit_code()
        self._group.stop(0.0)
        output, errors = (each.read_text() for each in self._files)
        return output, errors

    def completed(self, timeout: float) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` tells it."""
        output, errors = self.communicate(timeout)
        assert self.returncode is not None
        return subprocess.CompletedProcess(self._words, self.returncode, output, errors)


class _OfTests(_Nursery):
    kind = "trials"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.told = Path(self._folder.name) / "told"  # what the next one is to have: variables, working directory
        super().__init__({**os.environ, "PYTHONPATH": PATHS})
        atexit.register(self.close)

    def command(self, requests: int) -> list[str]:
        return [sys.executable, "-m", "tests.warm_trials", self.kind, str(requests), str(self.told)]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def descriptor(self) -> int:
        return self._ours.fileno()


class _OfPrograms(_OfTests):
    kind = "programs"


class _Elsewhere(_OfTests):
    """Another process's."""

    def __init__(self, descriptor: str, told: str) -> None:
        self.told = Path(told)
        self._ours = socket.socket(fileno=int(descriptor))
        self._lock = threading.Lock()


@cache
def warm_trials() -> Launcher:
    return Launcher(_OfTests())


@cache
def warm_programs() -> Launcher:
    """For scripts as Python itself runs them: that process has PyTorch's compiler, too, which their first optimizers
    import. Overdrive has its own way with that (decision 036), so that its commands are forked with the trials."""
    return Launcher(_OfPrograms())


class WarmPool(pool.TrialPool):
    """In the place of `TrialPool`."""

    def __init__(self, also: Sequence[str] = ()) -> None:
        super().__init__(also=also, launcher=warm_trials())

    def untimed_launcher(self, facts: Facts) -> launcher.Launcher:
        return self.launcher


class _Server(nursery.Nursery):
    def _fork(self, descriptors: Sequence[int]) -> tuple[int, int] | None:
        environment, folder, *script = json.loads(Path(sys.argv[2]).read_text())
        born = super()._fork(descriptors)
        if born:
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            if script:
                for each in born:
                    os.close(each)
                _run(*script)
        return born


class _WithCompiler(_Server):
    def __init__(self, requests: socket.socket) -> None:
        super().__init__(requests)
        import torch

        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
        gc.collect()
        gc.freeze()


def _run(errors: str, *words: str) -> NoReturn:
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nursery.Hidden()
    code = 0
    try:
        _as_main(*words)
    except SystemExit as error:
        code = end_as_python_would(error)
    except BaseException as error:
        trace = error.__traceback__
        for _ in (_run, _as_main):
            trace = trace and trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _as_main(first: str, *more: str) -> None:
    if first == "-m":
        sys.path[0] = os.getcwd()
        sys.argv[:] = more
        runpy.run_module(more[0], run_name="__main__", alter_sys=True)
        return
    for name in [name for name in sys.modules if name.split(".")[0] == "overdrive"]:
        del sys.modules[name]  # some programs of tests look for it
    sys.path[0] = str(Path(first).resolve().parent)
    sys.argv[:] = (first, *more)
    path = os.path.join(os.getcwd(), first)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = path
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(main))


# As `-m overdrive`; the arguments of `in_command` come before those of the command.
OVERDRIVE = ("-m", "tests.warm_trials", "overdrive")


def in_command(descriptor: str, told: str) -> None:
    """Trials of this process are forked by the nursery of the test that started it."""
    trials = Launcher(_Elsewhere(descriptor, told))
    pool.LocalLauncher = lambda: trials  # type: ignore[assignment, misc]
    pool.WarmLauncher = lambda cold: cold  # type: ignore[assignment, misc]


if __name__ == "__main__":
    if sys.argv[1] in (_OfTests.kind, _OfPrograms.kind):
        nursery.main(_Server if sys.argv.pop(1) == _OfTests.kind else _WithCompiler)
    else:
        in_command(*sys.argv[2:4])
        sys.argv[1:] = sys.argv[4:]
        runpy.run_module("overdrive", run_name="__main__", alter_sys=True)
