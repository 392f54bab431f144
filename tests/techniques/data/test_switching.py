"""Data techniques are switched off and on between any two batches, and nobody can tell by a bit."""

from __future__ import annotations

import itertools
import os
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from overdrive.techniques.catalogue import catalogue  # noqa: E402
from overdrive.techniques.data.prefix_cache import proving  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402
from tests.techniques.data.harness import Run, leaves, own_draws, seed, states  # noqa: E402

COUNT = 60
DATA = [name for name, technique in catalogue().items() if technique.family == "data"]


@pytest.fixture(autouse=True)
def any_prefix_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast this machine decodes the small images of these tests."""
    monkeypatch.setattr(proving, "_WORTH_SECONDS", 0.0)


class Logged(Dataset):
    """Writes down which process has decoded what."""

    def __init__(self, log: Path, augments: bool) -> None:
        self.images = torch.randn(COUNT, 3, 5, 4, generator=torch.Generator().manual_seed(1))
        self.log = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.augments = augments
        weakref.finalize(self, os.close, self.log)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        os.write(self.log, b"%d %d\n" % (os.getpid(), index))
        image = self.images[index].sin().numpy()
        if self.augments:
            return torch.from_numpy(image) + torch.rand(1), index
        return torch.from_numpy(image.copy()), index


def decoded(log: Path, here: bool) -> int:
    return sum(int(line.split()[0]) == os.getpid() or not here for line in log.read_text().splitlines())


def epochs(loader: Any, log: Path, handle: Any = None, every: int = 3) -> tuple[list[Any], list[tuple[bool, int, int]]]:
    """All that is seen of four epochs; and of each batch whether it was on, its samples, and those decoded for it."""
    seen: list[Any] = []
    told = []
    number = 0
    for _ in range(4):
        iterator = iter(loader)
        while True:
            before = decoded(log, here=True)
            batch = next(iterator, None)
            if batch is None:
                break
            on = handle is None or handle.active
            told.append((on, len(batch[1]), decoded(log, here=True) - before))
            seen += [list(leaves(batch)), own_draws(), states(loader)]
            number += 1
            if handle is not None and number % every == 0:
                (handle.off if handle.active else handle.on)()
    return seen, told


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("name", ["sample_cache", "prefix_cache"])
def test_switched_ten_times_every_batch_and_random_state_is_the_programs(
    name: str, begins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within epochs and across them; while it is off, the program's own data set makes every sample."""
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    log = tmp_path / "log"

    def make() -> Any:
        return DataLoader(Logged(log, name == "prefix_cache"), 8, shuffle=True)

    seed()
    plain, _ = epochs(make(), log)
    seed()
    with Run(name) as run:
        if not begins:
            run.handle.off()
        ours, told = epochs(make(), log, run.handle)
    assert not run.left_out and ours == plain
    assert sum(one[0] != other[0] for one, other in itertools.pairwise(told)) == 10
    assert [count for on, size, count in told if not on] == [size for on, size, _ in told if not on]
    assert not any(count for on, _, count in told if on)


@pytest.mark.parametrize("name", ["sample_cache", "prefix_cache"])
def test_switched_in_the_epoch_that_collects_the_samples(name: str, tmp_path: Path) -> None:
    def make() -> Any:
        return DataLoader(Logged(tmp_path / "log", name == "prefix_cache"), 8, shuffle=True)

    seed()
    plain, _ = epochs(make(), tmp_path / "log")
    seed()
    with Run(name) as run:
        ours, told = epochs(make(), tmp_path / "log", run.handle, every=1)
    assert not run.left_out and ours == plain
    assert all(on or count == size for on, size, count in told)
    again = [(size, count) for on, size, count in told[24:] if on]  # in the last epoch
    assert sum(count for _, count in again) < sum(size for size, _ in again)


@pytest.mark.parametrize("lives_on", [False, True])
@pytest.mark.parametrize("name", ["sample_cache", "prefix_cache"])
def test_a_loader_with_workers_draws_and_gives_the_same(
    name: str, lives_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    log = tmp_path / "log"

    def make() -> Any:
        data = Logged(log, name == "prefix_cache")
        return DataLoader(data, 8, shuffle=True, num_workers=1, persistent_workers=lives_on)

    seed()
    plain, _ = epochs(make(), log)
    seed()
    with Run(name) as run:
        ours, _ = epochs(make(), log, run.handle, every=3)
        if not lives_on or name == "prefix_cache":
            run.handle.off()
            loader = make()
            before = decoded(log, here=False)
            list(loader)
            assert decoded(log, here=False) - before == COUNT
    assert not run.left_out and ours == plain


def test_prefetch_gathers_nothing_early_while_it_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.techniques.data.prefetch import gathering

    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    monkeypatch.setattr(gathering, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(gathering, "_PATIENCE", 60.0)
    log = tmp_path / "log"
    seed()
    plain, _ = epochs(DataLoader(Logged(log, False), 8, shuffle=True), log)
    seed()
    with Run("prefetch", "sample_cache") as run:
        ours, _ = epochs(loader := DataLoader(Logged(log, False), 8, shuffle=True), log, run.handle)
        run.handle.on()
        early = run.handle.prefetcher.taken
        assert early > 5
        run.handle.off()
        list(loader)
        assert run.handle.prefetcher.taken == early
        run.handle.on()
        list(loader)
        assert run.handle.prefetcher.taken > early
        run.session.handles["sample_cache"].off()
        list(loader)
        run.session.handles["sample_cache"].on()
        early = run.handle.prefetcher.taken
        list(loader)
        assert run.handle.prefetcher.taken > early
    assert not run.left_out and ours == plain


@pytest.mark.parametrize("name", DATA)
def test_nothing_of_a_session_stays_on_the_catalogue(name: str) -> None:
    loader = DataLoader(torch.arange(20.0), 4)
    with Session([(name, {})]):
        list(loader)
        assert vars(catalogue()[name]) == {}
    assert vars(catalogue()[name]) == {}
