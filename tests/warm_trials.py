"""Trials and scripts of tests that are about what follows their start: forked from one process that has PyTorch, of
which each worker of pytest has one. A start takes 0.1 s so, and 3 s afresh. `trials/test_warm.py` shows that both are
the same; tests of starts, environments and launchers start theirs afresh.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import runpy
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO, NoReturn

import psutil

from overdrive.core.facts import Facts
from overdrive.trials import pool
from overdrive.trials.launchers import launcher
from overdrive.trials.launchers.local import LocalGroup, LocalLauncher
from overdrive.trials.launchers.warm import _Nursery
from overdrive.worker import nursery

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
        """A script with its arguments, as `python` runs it."""
        output = self._nursery.told.with_name(f"output {next(self._scripts)}")
        with self._lock, output.open("wb") as file:
            self._nursery.told.write_text(json.dumps([dict(os.environ), str(cwd or Path.cwd()), *words]))
            group = self._nursery.fork(file)
        assert group is not None, "the process that programs are forked from is gone"
        return Started(group, output)

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

    def __init__(self, group: LocalGroup, output: Path) -> None:
        self.returncode: int | None = None
        self._group = group
        self._output = output

    def communicate(self, timeout: float) -> tuple[str, None]:
        """What it printed; what it says of errors stands with that of the others, in the file `errors` beside."""
        assert self._group.wait(timeout), "it does not come to an end"
        self.returncode = self._group.exit_code()
        self._group.stop(0.0)
        return self._output.read_text(), None


class _OfTests(_Nursery):
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.told = Path(self._folder.name) / "told"  # what the next one is to have: variables, working directory
        super().__init__({**os.environ, "PYTHONPATH": PATHS})
        atexit.register(self.close)

    def command(self, requests: int) -> list[str]:
        return [sys.executable, "-m", "tests.warm_trials", "nursery", str(requests), str(self.told)]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def descriptor(self) -> int:
        return self._ours.fileno()


class _Elsewhere(_OfTests):
    """Another process's."""

    def __init__(self, descriptor: str, told: str) -> None:
        self.told = Path(told)
        self._ours = socket.socket(fileno=int(descriptor))
        self._lock = threading.Lock()


@cache
def warm_trials() -> Launcher:
    return Launcher(_OfTests())


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
                _run(script)
        return born


def _run(words: list[str]) -> NoReturn:
    errors = os.open(Path(sys.argv[2]).with_name("errors"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, 2)
    os.close(errors)
    nursery.Hidden()
    sys.argv[:] = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    code = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# As `-m overdrive`; the arguments of `in_command` come before those of the command.
OVERDRIVE = ("-m", "tests.warm_trials", "overdrive")


def in_command(descriptor: str, told: str) -> None:
    """Trials of this process are forked by the nursery of the test that started it."""
    trials = Launcher(_Elsewhere(descriptor, told))
    pool.LocalLauncher = lambda: trials  # type: ignore[assignment, misc]
    pool.WarmLauncher = lambda cold: cold  # type: ignore[assignment, misc]


if __name__ == "__main__":
    if sys.argv[1] == "nursery":
        del sys.argv[1]
        nursery.main(_Server)
    else:
        in_command(*sys.argv[2:4])
        sys.argv[1:] = sys.argv[4:]
        runpy.run_module("overdrive", run_name="__main__", alter_sys=True)
