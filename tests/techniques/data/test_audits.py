"""Audits of what the data techniques serve: a second net, here with the first one, the watch, taken away."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from overdrive.datacache import audit as audit_module  # noqa: E402
from overdrive.datacache import auditor, manager  # noqa: E402
from overdrive.datacache.audit import Audits  # noqa: E402
from overdrive.datacache.remade import RemadeSamples  # noqa: E402
from overdrive.datacache.unchanged import Unchanged  # noqa: E402
from overdrive.forks.forked import Beside  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402
from tests.techniques.data.harness import leaves, seed, states  # noqa: E402

COUNT, BATCH = 48, 8
BATCHES = COUNT // BATCH
Make = Callable[[], Any]


class Data(Dataset):
    """Reads a level from a dict; what samples hold of it tells when it was read."""

    def __init__(self) -> None:
        self.state = {"level": 0}

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 4), float(index)) + self.state["level"], index


class Augmented(Data):
    """The same, with something random done to it."""

    def __getitem__(self, index: int) -> Any:
        x = torch.full((3, 4), float(index)) + self.state["level"]
        for _ in range(20):
            x = x.sin() + index
        if random.random() < 0.5:
            x = x + torch.rand(1)
        return x, index


class Scaled:
    def __call__(self, x: Any) -> Any:
        for _ in range(20):
            x = x.cos() * 3
        return x


class Noise:
    def __call__(self, x: Any) -> Any:
        return x + torch.rand(1)


class Transformed(Data):
    """By a list, of which the first one is done beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self.transforms = [Scaled(), Noise()]

    def __getitem__(self, index: int) -> Any:
        x = torch.full((3, 4), float(index)) + self.state["level"]
        for each in self.transforms:
            x = each(x)
        return x, index


class Padded(Data):
    """Samples of different sizes, for a collate function of the program's own."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 + index % 3,), float(index)) + self.state["level"], index


def pad(samples: list[Any]) -> Any:
    rows = [torch.cat([x, torch.zeros(3 - len(x))]) for x, _ in samples]
    return torch.stack(rows), torch.tensor([index for _, index in samples])


def children() -> set[int]:
    return {each.pid for each in psutil.Process().children()}


class Program:
    """Epochs under some techniques, with an audit at each batch, that ends before the next one if it is `patient`."""

    def __init__(self, *techniques: str, patient: bool = True) -> None:
        self.steps = 0
        self.left_out: dict[str, str] = {}
        often: Iterator[float] = itertools.count(0.0, 1000.0)
        self.audits = Audits(lambda: self.steps, clock=lambda: next(often), fork=self.fork)
        self.begun: list[Any] = []
        self.patient = patient
        chosen: list[Any] = [(name, {}) for name in techniques]
        self.session = Session(chosen, [self.audits], self.left_out.setdefault)

    def __enter__(self) -> Program:
        gc.collect()
        self.others = children()  # of tests before, in the same process: those that compile for PyTorch, say
        self.session.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.session.__exit__(None, None, None)
        assert not self.children()

    def children(self) -> set[int]:
        return children() - self.others

    def fork(self, work: Any) -> Beside:
        self.begun.append(work)
        return Beside([work], only_idle=False)

    def settle(self) -> None:
        limit = time.monotonic() + 30
        while self.audits._running is not None and time.monotonic() < limit:
            self.audits.look()
            time.sleep(0.001)
        assert self.audits._running is None

    def epochs(self, loader: Any, count: int = 2, before: Callable[[int], object] = lambda step: None) -> list[Any]:
        """All that can be seen of some epochs; `before` each batch, by number, something happens."""
        seen: list[Any] = []
        for _ in range(count):
            iterator = iter(loader)
            while True:
                before(self.steps)
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                self.steps += 1
                seen.append(list(leaves(batch)))
                if self.patient:
                    self.settle()
            seen.append(states(loader))
        return seen


def plain(make: Make, count: int = 2, before: Callable[[int], object] = lambda step: None) -> list[Any]:
    seed()
    return Program().epochs(make(), count, before)


@pytest.fixture(autouse=True)
def of_our_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is at work, auditors would keep the tests waiting."""
    monkeypatch.setattr(os, "nice", lambda by: 0)


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch says nothing."""
    monkeypatch.setattr(Unchanged, "changed", lambda self: None)
    monkeypatch.setattr(Unchanged, "touched", lambda self: False)


MAKES: dict[str, tuple[str, Make]] = {
    "stacked": ("sample_cache", lambda: DataLoader(Data(), BATCH, shuffle=True)),
    "one by one": ("sample_cache", lambda: DataLoader(Padded(), BATCH, shuffle=True, collate_fn=pad)),
    "a list of transforms": ("prefix_cache", lambda: DataLoader(Transformed(), BATCH, shuffle=True)),
    "first halves": ("prefix_cache", lambda: DataLoader(Augmented(), BATCH, shuffle=True)),
}


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("change_at", [BATCHES + 2, 2 * BATCHES])
def test_a_late_change_that_nobody_watches_is_found(kind: str, change_at: int, blind: None) -> None:
    technique, make = MAKES[kind]
    seed()
    loader = make()

    def change(step: int) -> None:
        if step == change_at:
            loader.dataset.state["level"] = 5

    with Program(technique) as program:
        ours = program.epochs(loader, 3, change)
    loader.dataset.state["level"] = 0
    seed()
    expected = Program().epochs(loader, 3, change)
    # The batch at which it was found was served already, with the states of generators as they would have been.
    wrong = [number for number, (one, other) in enumerate(zip(expected, ours, strict=True)) if one != other]
    assert len(wrong) <= 1 and program.audits.different == 1
    reason = program.left_out[technique]
    assert f"made again after step {change_at}, sample " in reason and "is not what was kept" in reason
    assert f"served since step {change_at - 1} may have been affected" in reason
    assert type(loader.dataset).__name__ in reason


@pytest.mark.parametrize("kind", MAKES)
def test_samples_that_are_the_same_are_counted_and_nothing_else_changes(kind: str) -> None:
    technique, make = MAKES[kind]
    expected = plain(make, 3)
    seed()
    with Program(technique) as program:
        assert program.epochs(make(), 3) == expected
    assert program.audits.same > 2 * BATCHES and not program.audits.different and not program.left_out


def test_batches_that_were_gathered_early_are_compared_as_they_were_served(blind: None) -> None:
    seed()
    loader = DataLoader(Data(), BATCH, shuffle=True)
    with Program("sample_cache", "prefetch") as program:
        program.epochs(loader, 1)
        (kept,) = manager._managers[program.session.seams].kept
        gather = kept.table.gather

        def spoilt(*args: Any, **kwargs: Any) -> Any:
            batch = gather(*args, **kwargs)
            batch[0][:] += 1
            return batch

        kept.table.gather = spoilt
        audited = kept.have_audited

        def with_the_real_table(*args: Any) -> None:
            del kept.table.gather
            audited(*args)
            kept.have_audited = audited

        kept.have_audited = with_the_real_table
        program.epochs(loader, 1)
    assert program.audits.different == 1 and "sample_cache" in program.left_out


def test_what_workers_would_fetch_is_made_as_the_data_set_is_when_they_begin(blind: None) -> None:
    loader = DataLoader(Data(), BATCH, num_workers=1)
    with Program("sample_cache") as program:
        program.epochs(loader, 2)

        def change_within_the_epoch(step: int) -> None:
            if step == 2 * BATCHES + 2:  # which its workers would not see
                loader.dataset.state["level"] = 5

        program.epochs(loader, 1, change_within_the_epoch)
        assert not program.left_out and program.audits.same
        iter(loader)
        program.settle()
    assert program.audits.different == 1 and "sample_cache" in program.left_out


def test_workers_that_live_on_have_the_data_set_as_it_was(blind: None) -> None:
    loader = DataLoader(Data(), BATCH, num_workers=1, persistent_workers=True)
    with Program("sample_cache") as program:
        program.epochs(loader, 1)
        loader.dataset.state["level"] = 5  # which its workers do not see
        iter(loader)
        program.settle()
        del loader
        gc.collect()  # its workers end
    assert not program.audits.different and not program.left_out


def test_first_halves_for_workers_are_made_again_when_they_begin(blind: None) -> None:
    loader = DataLoader(Augmented(), BATCH, num_workers=1)
    with Program("prefix_cache") as program:
        program.epochs(loader, 2)
        assert not program.left_out and program.audits.same
        loader.dataset.state["level"] = 5
        iter(loader)
        program.settle()
    assert program.audits.different == 1 and "prefix_cache" in program.left_out


def test_a_sample_that_cannot_be_made_any_more_is_another_one(tmp_path: Path, blind: None) -> None:
    path = tmp_path / "data"
    path.write_text("1")

    class Reads(Data):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor([float(path.read_text()), float(index)])

    loader = DataLoader(Reads(), BATCH)
    with Program("sample_cache") as program:
        program.epochs(loader, 1)
        path.unlink()
        with pytest.raises(FileNotFoundError):  # as without us, one batch later
            program.epochs(loader, 1)
    assert "cannot be made (FileNotFoundError: " in program.left_out["sample_cache"]


def test_a_fetch_that_begins_to_print_is_found_and_prints_from_then_on(
    blind: None, capfd: pytest.CaptureFixture[str]
) -> None:
    class Prints(Data):
        def __getitem__(self, index: int) -> Any:
            if self.state["level"]:
                print("fetched", index)
            return torch.tensor([index])

    loader = DataLoader(Prints(), BATCH)
    with Program("sample_cache") as program:
        program.epochs(loader, 1)
        loader.dataset.state["level"] = 1
        program.epochs(loader, 1)
    assert "does more than read: it prints" in program.left_out["sample_cache"]
    assert capfd.readouterr().out == "".join(f"fetched {index}\n" for index in range(BATCH, COUNT))


@pytest.mark.parametrize("own", [False, True])
def test_a_fetch_that_begins_to_draw_is_found(own: bool, blind: None) -> None:
    class Draws(Data):
        def __init__(self) -> None:
            super().__init__()
            self.chance = random.Random(0) if own else random

        def __getitem__(self, index: int) -> Any:
            if self.state["level"]:
                self.chance.random()
            return torch.tensor([index])

    loader = DataLoader(Draws(), BATCH)
    with Program("sample_cache") as program:
        program.epochs(loader, 1)
        loader.dataset.state["level"] = 1
        program.epochs(loader, 1)
    assert "draws random numbers" in program.left_out["sample_cache"]


def test_data_sets_that_print_or_write_are_not_kept_and_not_audited(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"

    class Writes(Data):
        def __getitem__(self, index: int) -> Any:
            with log.open("a") as file:
                file.write(f"{index}\n")
            print(index)
            return torch.tensor([index])

    with Program("sample_cache") as program:
        program.epochs(DataLoader(Writes(), BATCH), 2)
    lines = [str(index) for index in range(COUNT)] * 2
    assert log.read_text().split() == lines and capfd.readouterr().out.split() == lines
    assert not program.audits.same and "sample_cache" in program.left_out


def test_an_audit_that_found_no_sample_there_agreed_to_nothing(blind: None) -> None:
    with Program("sample_cache") as program:
        program.epochs(DataLoader(Data(), BATCH), 1)
        (kept,) = manager._managers[program.session.seams].kept
        agreed, present = kept.audit.agreed, kept.table.present.copy()
        kept.table.present[:] = False
        program.steps += 5
        kept.have_audited()
        program.settle()
        assert kept.audit.agreed == agreed and kept.audit.expects
        kept.table.present[:] = present
        kept.have_audited()
        program.settle()
        assert kept.audit.agreed == program.steps


def test_an_auditor_that_has_to_wait_tells_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "_AT_MOST", 0.0)
    with Program("sample_cache") as program:
        program.epochs(DataLoader(Data(), BATCH), 3)
    assert program.audits.same == len(program.begun) > BATCHES


def test_one_sample_is_enough(blind: None) -> None:
    class One(Data):
        def __len__(self) -> int:
            return 1

    loader = DataLoader(One(), BATCH)
    with Program("sample_cache") as program:
        program.epochs(loader, 3)
        assert program.audits.same and not program.left_out
        loader.dataset.state["level"] = 1
        program.epochs(loader, 1)
    assert program.audits.different == 1


here = os.getpid  # by another name: a data set that asks in which process it is is not compared with forks


class Hangs(Data):
    """In forked processes only, once it is told to."""

    def __init__(self, how: Callable[[], object]) -> None:
        super().__init__()
        self.home = here()
        self.how = how
        self.state["bad"] = 0

    def __getitem__(self, index: int) -> Any:
        if self.state["bad"] and here() != self.home:
            self.how()
        return torch.tensor([index])


def hang() -> None:
    time.sleep(1000)


def turn() -> None:
    while True:
        pass


def die() -> None:
    os.kill(here(), signal.SIGKILL)


def crash() -> None:
    os.kill(here(), signal.SIGSEGV)


@pytest.mark.parametrize("how", [hang, turn, die, crash])
def test_an_auditor_that_hangs_or_dies_says_nothing_and_does_not_stay(
    how: Callable[[], object], blind: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loader = DataLoader(Hangs(how), BATCH, shuffle=True)
    seed()
    with Program("sample_cache", patient=False) as program:
        program.epochs(loader, 1)
        program.settle()
        loader.dataset.state["bad"] = 1
        same = program.audits.same
        ours = program.epochs(loader, 2)
        assert program.audits.same == same and not program.left_out
    assert len(ours) == 2 * (BATCHES + 1) and not list(tmp_path.glob("core*"))


def test_one_that_goes_on_for_ever_is_ended_by_the_kernel(monkeypatch: pytest.MonkeyPatch, blind: None) -> None:
    monkeypatch.setattr(auditor, "PATIENCE", 1)
    loader = DataLoader(Hangs(hang), BATCH)
    with Program("sample_cache") as program:
        program.epochs(loader, 1)
        loader.dataset.state["bad"] = 1
        next(iter(loader))
        assert program.audits._running is not None
        program.settle()
        assert not program.children() and not program.left_out


def test_a_program_that_forks_or_waits_meets_no_process_of_ours(blind: None) -> None:
    loader = DataLoader(Hangs(hang), BATCH)
    with Program("sample_cache", patient=False) as program:
        program.epochs(loader, 1)
        program.settle()
        loader.dataset.state["bad"] = 1
        next(iter(loader))
        assert program.children()
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        assert os.wait()[0] == pid
        assert not program.children()


def test_a_program_that_listens_for_the_end_of_its_processes_hears_of_none_of_ours(blind: None) -> None:
    heard: list[int] = []
    loader = DataLoader(Data(), BATCH)
    with Program("sample_cache") as program:
        program.epochs(loader, 1)
        program.settle()
        before = signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))
        same = program.audits.same
        try:
            program.epochs(loader, 1)
        finally:
            signal.signal(signal.SIGCHLD, before)
    assert not heard and program.audits.same == same


def test_nothing_is_audited_without_memory_for_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "may_fork", lambda: False)
    with Program("sample_cache") as program:
        program.epochs(DataLoader(Data(), BATCH), 2)
    assert not program.audits.same and not program.left_out


def test_nothing_is_audited_where_nobody_asks_for_it() -> None:
    """In a trial, say."""
    with Session([("sample_cache", {})]) as session:
        assert audit_module.audits_of(session.seams) is None
        loader = DataLoader(Data(), BATCH)
        for _ in range(2):
            list(loader)
        (kept,) = manager._managers[session.seams].kept
        assert kept.audit is None


def test_a_stored_table_is_audited_too(blind: None) -> None:
    for expected in (0, 1):  # the second run finds what the first one has written
        loader = DataLoader(Data(), BATCH)
        with Program("sample_cache") as program:
            program.epochs(loader, 2)
            assert program.audits.same and not program.left_out
            if expected:
                loader.dataset.state["level"] = 5
                program.epochs(loader, 1)
        assert program.audits.different == expected


@pytest.mark.parametrize("stored", [False, True])
def test_what_only_forked_processes_make_in_another_way_is_no_change(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other threads, say. It is known not to be so where the data set was tried in this run."""
    if stored:
        with Program("sample_cache") as program:
            program.epochs(DataLoader(Data(), BATCH), 2)
    monkeypatch.setattr(RemadeSamples, "difference", lambda self, row: "is not what was kept")
    with Program("sample_cache") as program:
        program.epochs(DataLoader(Data(), BATCH), 2)
    assert bool(program.left_out) is bool(program.audits.different) is not stored


def test_a_table_that_is_found_wrong_is_not_left_for_the_next_run(blind: None, folder: Path) -> None:
    loader = DataLoader(Data(), BATCH)
    with Program("sample_cache") as program:
        program.epochs(loader, 2)
        assert list(folder.rglob("manifest.json"))
        loader.dataset.state["level"] = 5
        program.epochs(loader, 1)
    assert not list(folder.rglob("manifest.json"))


def test_a_difference_that_comes_with_the_end_of_the_program_is_told(blind: None) -> None:
    loader = DataLoader(Data(), BATCH)
    with Program("sample_cache", patient=False) as program:
        program.epochs(loader, 1)
        program.settle()
        loader.dataset.state["level"] = 5
        next(iter(loader))
    assert "sample_cache" in program.left_out and program.audits.different == 1


def test_a_difference_has_every_user_of_the_samples_left_out(blind: None) -> None:
    loader = DataLoader(Data(), BATCH)
    with Program("sample_cache") as program:
        program.epochs(loader, 1)
        manager.shared(program.session.seams, 0.5, user="device_resident")
        loader.dataset.state["level"] = 5
        program.epochs(loader, 1)
    assert {"sample_cache", "device_resident"} <= program.left_out.keys()


def test_an_epoch_and_a_false_alarm_are_followed_by_an_audit_soon() -> None:
    loader = DataLoader(Data(), BATCH)
    with Program("sample_cache") as program:
        program.epochs(loader, 2)
        (kept,) = manager._managers[program.session.seams].kept
        assert not kept.audit.expects
        loader.dataset.state = dict(loader.dataset.state)  # another dict, and the same data set
        assert not kept.changed() and kept.audit.expects
        kept.audit.expects = False
        iter(loader)
        assert kept.audit.expects


def test_the_programs_forked_copies_have_no_audits_of_their_own() -> None:
    loader = DataLoader(Data(), BATCH)
    with Program("sample_cache") as program:
        program.epochs(loader, 1)
        pid = os.fork()
        if pid == 0:
            same = program.audits.same
            program.epochs(loader, 1)
            os._exit(int(program.audits.same != same or program.audits._running is not None))
        assert os.waitpid(pid, 0)[1] == 0


def test_it_lives_no_longer_than_its_session() -> None:
    with Program("sample_cache") as program:
        program.epochs(DataLoader(Data(), BATCH), 1)
        seams = weakref.ref(program.session.seams)
        assert audit_module.audits_of(seams()) is program.audits
    assert audit_module.audits_of(seams()) is None
    del program
    gc.collect()
    assert seams() is None


def test_what_the_program_has_printed_and_not_yet_shown_is_no_print_of_the_fetch(tmp_path: Path) -> None:
    """Its two streams go to the same file: nothing comes earlier than without us."""
    script = tmp_path / "train.py"
    script.write_text(PRINTS)
    outputs, buffered = [], {**os.environ, "PYTHONUNBUFFERED": ""}
    for how in ("plain", "audited"):
        with (tmp_path / how).open("w") as file:
            command = [sys.executable, str(script), how]
            subprocess.run(command, stdout=file, stderr=file, check=True, timeout=100, env=buffered)
        outputs.append((tmp_path / how).read_text())
    plain, audited = outputs
    assert plain.startswith("error") and "printed" in plain
    assert audited == plain


PRINTS = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset
from overdrive.datacache import manager
from overdrive.datacache.audit import Audits
from overdrive.worker.session import Session

here = os.getpid

class Flushes(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        if here() != HOME:
            sys.__stdout__.flush()
        return torch.tensor([index])

HOME = here()
os.nice = lambda by: 0
loader = DataLoader(Flushes(), 8)
clock = iter(range(0, 10**9, 1000)).__next__
audits = Audits(lambda: 0, clock=clock)
techniques = [("sample_cache", {})] if sys.argv[1] == "audited" else []
with Session(techniques, [audits], lambda *why: print(why, file=sys.stderr)) as session:
    for epoch in range(2):
        for batch in loader:
            if epoch == 0:
                continue
            if techniques:
                while audits._running:
                    audits.look()
        if epoch == 0:
            print("printed")  # stays in the buffer
    print("error", file=sys.stderr)
assert bool(audits.same) is bool(techniques)
"""
