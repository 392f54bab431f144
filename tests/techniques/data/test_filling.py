"""Samples fetched by idle cores while the program trains: the same bits, ahead of the program, and no trace."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler  # noqa: E402

from overdrive.changes.fingerprint import fingerprint  # noqa: E402
from overdrive.datacache import fill as fill_module  # noqa: E402
from overdrive.datacache import filler as filler_module  # noqa: E402
from overdrive.datacache.fill import Filling  # noqa: E402
from overdrive.datacache.source import Source, spread  # noqa: E402
from overdrive.datacache.table import Table  # noqa: E402
from overdrive.datacache.unchanged import UnchangedInFork  # noqa: E402
from overdrive.forks.forked import Beside  # noqa: E402
from overdrive.forks.forked_process import bury  # noqa: E402
from overdrive.forks.layout import Unfit, layout_of  # noqa: E402
from tests.techniques.data import harness  # noqa: E402
from tests.techniques.data.harness import leaves, seed  # noqa: E402
from tests.techniques.data.test_sample_cache import (  # noqa: E402
    COUNT,
    MAKERS,
    Images,
    Run,
    both,
    tables,
)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of samples is worth a fork here."""
    monkeypatch.setattr(filler_module, "WORTH_FILLING_BESIDE", 0.0)
    monkeypatch.setattr(fill_module, "_BLOCK", 4)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "nothing came of it"
        time.sleep(0.005)


def look_until_ended(filling: Filling) -> None:
    def ended() -> bool:
        filling.look()
        return not filling.going

    wait_until(ended)


def kept_now(run: Any) -> Any:
    return run.manager._kept[0]


@pytest.mark.parametrize("name", MAKERS)
def test_batches_and_random_states_are_the_same_in_every_bit(name: str) -> None:
    plain, kept, run = both(lambda: MAKERS[name](0))
    assert not run.left_out
    assert plain == kept
    assert run.kept[0].filler._fillings >= 1


class Noted(Images):
    """Writes down which process has fetched what."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        weakref.finalize(self, os.close, self.log)

    def __getitem__(self, index: int) -> Any:
        os.write(self.log, f"{os.getpid()} {index}\n".encode())
        return super().__getitem__(index)


def fetched_here(log: Path) -> list[int]:
    lines = [line.split() for line in log.read_text().splitlines()]
    return [int(index) for pid, index in lines if int(pid) == os.getpid()]


def test_the_program_finds_what_others_have_fetched_and_the_next_run_finds_all(tmp_path: Path, folder: Path) -> None:
    log = tmp_path / "log"
    loader = DataLoader(Noted(log), 5, shuffle=True)
    seed()
    plain = [list(leaves(batch)) for _ in range(2) for batch in loader]
    log.write_text("")
    with Run() as run:
        seed()
        batches = iter(loader)
        seen = [list(leaves(next(batches)))]
        before = len(fetched_here(log))
        wait_until(lambda: bool(kept_now(run).table.present.all()))
        seen += [list(leaves(batch)) for batch in batches]
        seen += [list(leaves(batch)) for batch in loader]
        assert len(fetched_here(log)) == before  # the first batch, and what the proof looked at
        wait_until(lambda: not _going(run))
        list(loader)
    assert not run.left_out and seen == plain
    assert [name.startswith("partial") for name in tables(folder)] == [False]


def _going(run: Run) -> bool:
    kept_now(run).filler.look()
    return bool(kept_now(run).filler.beside)


def guard_of(source: Source) -> Callable[[], UnchangedInFork]:
    watch = fingerprint(*source.roots).watch
    return lambda: UnchangedInFork(watch)


def filling_of(data: Any, coming: Any = None, most: int = 1) -> tuple[Table, Filling]:
    source = Source.of(DataLoader(data, 4))
    table = Table.in_memory(layout_of(source.fetch([0, 1])), len(data))
    return table, Filling(table, source, guard_of(source), coming, most)


class Ordered(Images):
    """Writes down in which order samples are fetched."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.place = str(place)
        self.log = os.open(place / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        weakref.finalize(self, os.close, self.log)

    def __getitem__(self, index: int) -> Any:
        os.write(self.log, f"{index}\n".encode())
        return super().__getitem__(index)

    def order(self) -> list[int]:
        return [int(each) for each in (Path(self.place) / "log").read_text().split()]


def test_samples_are_fetched_in_the_order_in_which_they_will_be_wanted(tmp_path: Path) -> None:
    data = Ordered(tmp_path)
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(3))
    wanted = list(RandomSampler(data, generator=torch.Generator().manual_seed(3)))
    indices = iter(sampler)
    table, filling = filling_of(data, lambda: indices)
    look_until_ended(filling)
    assert table.present.all() and data.order()[2:] == wanted  # two were fetched to see their layout
    assert next(indices) == wanted[0]  # the program's own sampler has not moved


def test_without_a_sampler_to_go_by_they_begin_at_the_far_end(tmp_path: Path) -> None:
    data = Ordered(tmp_path)
    _, filling = filling_of(data)
    look_until_ended(filling)
    assert data.order()[2:] == list(range(COUNT))[::-1]


def test_fillers_leave_to_the_program_what_it_will_fetch_before_them() -> None:
    class Slow(Images):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.02)
            return super().__getitem__(index)

    data = Slow()
    indices = iter(SequentialSampler(data))
    table, filling = filling_of(data, lambda: indices)
    filling.taken(10, missed=True)
    wait_until(lambda: bool(table.present[32:36].any()))
    assert not table.present[8:28].any()  # one block at most was begun before; 28 is behind two batches more
    look_until_ended(filling)
    assert table.present.all()  # what was passed over comes last


def test_a_sampler_that_cannot_be_asked_is_no_obstacle() -> None:
    def broken() -> Any:
        raise RuntimeError

    table, filling = filling_of(Images(), broken)
    look_until_ended(filling)
    assert table.present.all()


def test_a_sample_that_draws_is_found_by_who_fetches_it() -> None:
    class Rare(Images):
        def __getitem__(self, index: int) -> Any:
            image, label = super().__getitem__(index)
            return (image + torch.rand(1) if index == 17 else image), label

    table, filling = filling_of(Rare())
    with pytest.raises(Unfit, match="draws random numbers"):
        look_until_ended(filling)
    assert not table.present[17]


def test_a_filler_that_is_killed_is_no_error_and_its_work_is_done_by_the_program(folder: Path) -> None:
    class Slow(Images):
        def __getitem__(self, index: int) -> Any:
            if os.getpid() != mine:
                time.sleep(0.05)
            return super().__getitem__(index)

    mine = os.getpid()
    loader = DataLoader(Slow(), 4, shuffle=True)
    seed()
    plain = [list(leaves(batch)) for _ in range(3) for batch in loader]
    seed()
    with Run() as run:
        seen = []
        for _ in range(3):
            for batch in loader:
                seen.append(list(leaves(batch)))
                filling = kept_now(run).filler._filling
                for child in filling._processes._children if filling else ():
                    os.kill(child.pid, signal.SIGKILL)
        assert kept_now(run).table.complete
    assert not run.left_out and seen == plain
    # What the killed ones had opened is not known, but all that a sample is made of is in the data set.
    assert len(tables(folder)) == 1


def test_fillers_run_where_cores_are_idle_and_end_with_the_session() -> None:
    class Endless(Images):
        def __getitem__(self, index: int) -> Any:
            if os.getpid() != mine and index < 20:
                time.sleep(100)
            return super().__getitem__(index)

    mine = os.getpid()
    data = Images()
    data.__class__ = Endless
    source = Source.of(DataLoader(data, 4))
    table = Table.in_memory(layout_of(source.fetch([0])), COUNT)
    filling = Filling(table, source, guard_of(source), None, 1)
    (child,) = filling._processes._children
    process = psutil.Process(child.pid)
    wait_until(lambda: os.sched_getscheduler(process.pid) == os.SCHED_IDLE)
    assert process.nice() == 19 and os.getpgid(process.pid) == os.getpgrp()
    filling.end()
    assert not filling.going

    def is_gone() -> bool:
        bury()  # one that gets a core only where nobody wants it is slow even in dying
        return not process.is_running()

    wait_until(is_gone)
    filling.look()


def test_signals_that_the_program_listens_to_do_nothing_to_fillers(tmp_path: Path) -> None:
    saved = tmp_path / "saved"

    def save(*_: object) -> None:
        saved.write_text("by a filler")

    before = signal.signal(signal.SIGUSR1, save)
    try:
        beside = Beside([lambda tick: time.sleep(100)])
        (child,) = beside._children
        wait_until(lambda: os.sched_getscheduler(child.pid) == os.SCHED_IDLE)  # it is past setting itself up
        os.kill(child.pid, signal.SIGUSR1)
        time.sleep(0.1)
        assert beside.ended() == [] and not saved.exists()
        beside.end()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("only_idle", [False, True])
def test_who_goes_on_beside_the_program_stands_back(only_idle: bool) -> None:
    beside = Beside([lambda tick: time.sleep(100)], only_idle)
    (child,) = beside._children
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, child.pid) == 19)
    if only_idle:
        wait_until(lambda: os.sched_getscheduler(child.pid) == os.SCHED_IDLE)
    else:
        assert os.sched_getscheduler(child.pid) == os.SCHED_OTHER
    assert beside.end() >= 0 and not child.pid


ORPHANS = """
    import os, sys, time
    from overdrive.forks.forked import Beside

    beside = Beside([lambda tick: time.sleep(100)])
    print(beside._children[0].pid, flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), 9)
    elif sys.argv[1] == "os._exit":
        os._exit(0)
"""


@pytest.mark.parametrize("how", ["killed", "os._exit", "ended"])
def test_fillers_die_with_the_program(how: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ORPHANS), how], capture_output=True, text=True, timeout=100
    )
    pid = int(run.stdout)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


class Rare(Images):
    """A sample that the trial does not come upon is made with a random number."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.chance = random.Random(0) if own else random

    def __getitem__(self, index: int) -> Any:
        pixels, label = super().__getitem__(index)
        return (pixels + self.chance.random() if index == 41 else pixels), label


@pytest.mark.parametrize("own", [False, True])
def test_rare_draws_from_any_generator_are_the_programs_own(own: bool) -> None:
    def go(loader: Any) -> list[Any]:
        seen = []
        for _ in range(3):
            for batch in loader:
                seen.append(list(leaves(batch)))
                time.sleep(0.02)  # others fetch meanwhile
            chance = loader.dataset.chance
            seen.append(chance.getstate())
        return seen

    assert 41 not in spread(COUNT, 12)
    plain, kept, _ = harness.both(lambda: DataLoader(Rare(own), 5), go, Run())
    assert plain == kept


def test_without_memory_for_forks_the_program_fetches_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filler_module, "may_fork", lambda: False)
    plain, kept, run = both(lambda: DataLoader(Images(), 8, shuffle=True))
    assert plain == kept and not run.left_out and not run.kept[0].filler._filling


def test_a_loader_for_evaluation_is_kept_in_a_run_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    train, evaluation = DataLoader(Images(), 8, shuffle=True), DataLoader(Noted(log), 8)
    with Run() as run:
        seen = []
        for epoch in range(3):
            list(train)
            if epoch == 1:
                wait_until(lambda: all(kept.table.present.all() for kept in run.manager._kept))
                log.write_text("")
            with torch.no_grad():
                seen.append([list(leaves(batch)) for batch in evaluation])
        assert fetched_here(log) == []
    assert not run.left_out and len(run.kept) == 2
    assert seen[0] == seen[1] == seen[2] == [list(leaves(batch)) for batch in evaluation]
    assert np.prod(run.kept[1].table.leaves[0].shape) == COUNT * 3 * 6 * 5 * 4


def test_techniques_of_a_session_share_one_manager_that_is_closed_with_it() -> None:
    from overdrive.datacache.manager import shared
    from overdrive.worker.session import Session

    def opens(loader: Any, call: Any) -> Any:
        managers.append(shared(session.seams, 0.1))
        return call()

    managers: list[Any] = []
    loader = DataLoader(Images(), 8)
    observers = [lambda seams: seams.loader_opens.subscribe(opens)]
    with Session([("sample_cache", {})], observers) as session:  # type: ignore[arg-type]
        list(loader)
        assert managers == [shared(session.seams, 0.1)] and managers[0].useful
        session.seams.leave_out("sample_cache", "for a test")
        assert managers[0].useful  # another technique may need it still
    assert not managers[0].useful
    with Session([], observers) as session:
        list(loader)
    assert len(managers) == 2 and managers[1] is not managers[0]


def test_a_fork_of_the_program_that_leaves_the_session_takes_nothing_away(folder: Path) -> None:
    loader = DataLoader(Images(), 8)
    with Run() as run:
        batches = iter(loader)
        next(batches)
        pid = os.fork()
        if pid == 0:
            try:
                run.manager.close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        list(batches)
        wait_until(lambda: not _going(run))
        list(loader)
    assert [name.startswith("partial") for name in tables(folder)] == [False]
