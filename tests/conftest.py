"""What the tests share: running real programs in real processes, in a folder of their own."""

from __future__ import annotations

import compileall
import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Read as PyTorch is imported, below. Threads that wait for each other spin where there is no core for them: under load
# a test with two of them took 17 s of a core, and takes one.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
from overdrive.datacache.cost.fetching import standing_files
from overdrive.forks import effects
from overdrive.techniques import catalogue as catalogue_module
from tests import left_processes

del os.environ["OMP_WAIT_POLICY"]  # of this process alone

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parent.parent

Run = Callable[..., subprocess.CompletedProcess[str]]

# `import torch` of programs that only have to make steps, for tests of the processes they run in. PyTorch's optimizers
# import its compiler when they are made, 1.5 s of a start that takes 3. Programs of all other tests do.
IMPORT_TORCH = """
import sys, types
import torch
torch._dynamo = sys.modules["torch._dynamo"] = types.ModuleType("torch._dynamo")
torch._dynamo.disable = lambda function, *_, **__: function
torch._dynamo.graph_break = lambda: None
"""


def long_but(few: Iterable[Any], names: Iterable[Any]) -> list[Any]:
    """Parameters of a test, of which only a few are for `make test`; the others are marked as long. Tuples are several
    parameters."""
    kept = list(few)
    return [name if name in kept else _long(*name) if isinstance(name, tuple) else _long(name) for name in names]


def _long(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.long)


# Files that take ten seconds or more, the longest first: each is one worker's, and none may begin when the others are
# done.
LONG = (
    *("test_tune.py", "test_programs.py", "test_zoo.py", "test_export.py", "test_late_changes_of_models.py"),
    *("test_keras_programs.py", "test_search.py", "test_ranks.py", "test_inference.py", "test_warm.py"),
    *("test_made_programs.py", "test_pytest_plugin.py", "test_run.py", "test_verify.py", "test_switching.py"),
    *("test_fast_max_pool.py", "test_oom_recovery.py", "test_sentinels.py", "test_statistical.py", "test_trial.py"),
    *("test_pack.py", "test_batch_in_parts.py", "test_exit_codes.py", "test_under_plans.py", "test_survive.py"),
    *("test_audits_told.py", "test_sentinels_told.py", "test_faults.py", "test_errors.py", "test_factorial.py"),
    *("test_fingerprint.py", "test_trials.py", "test_compile.py", "test_runs.py", "test_real_trials.py"),
    "test_isolation.py",
)
# Before all others, these too the longest first: they fork the tests' own process dozens of times, and a fork takes
# twice as long in the process that the other tests leave behind.
OF_DATA = (
    *("test_prefix_cache.py", "test_sample_cache.py", "test_single_samples.py", "test_rare_effects.py"),
    *("test_filling.py", "test_faults.py", "test_prefetch.py", "test_late_changes.py"),
)


def turn(item: pytest.Item) -> tuple[bool, int]:
    """Which of the tests comes before which."""
    of_data = item.path.parent.name == "data"
    first = OF_DATA if of_data else LONG
    return not of_data, first.index(item.path.name) if item.path.name in first else len(first)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Hundreds of processes are started here. Where the environment has them keep no bytecode, as in many containers,
    each would compile all that it imports of ours."""
    if not hasattr(session.config, "workerinput"):
        compileall.compile_dir(ROOT / "src", quiet=2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=turn)


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's caches, ledger or home settings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("OVERDRIVE_CACHE", raising=False)
    # One thread: the tests share two cores, and spinning OpenMP threads slow each other down tenfold.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # PyTorch's compiler starts processes for kernels, and imports itself in them: a test has a handful of kernels.
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True, scope="module")
def own_catalogue() -> Iterator[None]:
    """Techniques that a file of tests brings along are gone when it is done: the next may be one of any other kind."""
    yield
    if catalogue_module._also:
        catalogue_module._also.clear()
        catalogue_module.catalogue.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def no_file_left_open() -> Iterator[None]:
    """What a program has open decides what can be done with it, and the tests that follow share this process."""
    before = standing_files()
    yield
    gc.collect()
    assert set(standing_files()) <= set(before)


@pytest.fixture(autouse=True, scope="module")
def what_is_there_is_frozen() -> None:
    """Nothing that the tests' own process held before belongs to a program that a test runs in it. Data caches look
    for loaders and models among all objects, and collect garbage first: half of the time of their tests went there.
    It stays frozen: to collect among all objects took a second of each file."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def no_process_left() -> Iterator[None]:
    """Of Overdrive, when the tests of this process are over (of each worker, under xdist)."""
    mark = left_processes.begin()
    yield
    left = left_processes.left(mark)
    assert not left, "\n".join(["these processes were left by some test:", *left])


@pytest.fixture(autouse=True, scope="session")
def outputs_of_pytest() -> Iterator[None]:
    """xdist and pytest's capturing hold pipes and files for writing. Each fork of a data technique would go through all
    objects for one with something for those in its buffer, which takes 0.1 s and more in a process of this size."""
    real = effects._open_descriptors
    theirs = {number for number in real() if number > 2 and _is_written(number)}
    effects._open_descriptors = lambda: [number for number in real() if number not in theirs]
    yield
    effects._open_descriptors = real


def _is_written(number: int) -> bool:
    try:
        return effects._is_written(os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL))
    except OSError:  # what the list itself was read from
        return False


@pytest.fixture(autouse=True, scope="module")
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of PyTorch, in this process: the threads of two of these spin on two cores, and steps took three times as long.
    Tests of data techniques keep theirs: their forks have to live without the threads that the program had."""
    torch = sys.modules.get("torch")
    if torch is None or request.path.parent.name == "data":
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A copy of the naive programs, so that what they write stays out of the repository."""
    folder = tmp_path / "programs"
    shutil.copytree(PROGRAMS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def python() -> Run:
    """Runs `python ARGS`."""

    def run(*args: str, cwd: Path, timeout: float = 240, **how: Any) -> subprocess.CompletedProcess[str]:
        how = {"env": dict(os.environ), **how}
        return subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, timeout=timeout, **how)

    return run


@pytest.fixture
def overdrive(python: Run) -> Run:
    """Runs `overdrive ARGS`."""

    def run(*args: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return python("-m", "overdrive", *args, cwd=cwd, timeout=timeout)

    return run


@pytest.fixture
def warm_overdrive(python: Run) -> Run:
    """The same for tests of what comes of trials, not of how they start: see `tests/warm_trials.py`."""
    from tests.warm_trials import OVERDRIVE, PATHS, warm_trials

    def run(*args: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        trials = warm_trials()
        how = {"pass_fds": (trials.descriptor,), "env": {**os.environ, "PYTHONPATH": PATHS}}
        return python(*OVERDRIVE, *trials.for_command(), *args, cwd=cwd, timeout=timeout, **how)

    return run


@pytest.fixture
def warm_run() -> Run:
    """Runs `overdrive run ARGS`, for tests of what comes of a run, not of how it starts."""
    from tests.warm_trials import warm_trials

    def run(*args: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return warm_trials().script("-m", "overdrive", "run", *args, cwd=cwd).completed(timeout)

    return run


@pytest.fixture
def warm_python() -> Run:
    """Runs `python ARGS`, for programs that are not about their own start."""
    from tests.warm_trials import warm_programs

    def run(*args: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return warm_programs().script(*args, cwd=cwd).completed(timeout)

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a script into a folder of its own and returns its path."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / "project" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write
