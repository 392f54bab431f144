"""The program's own workers, in whose place samples are served, or others work: what they share with the program, what
they change themselves, and what they draw, comes out as without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from tests.techniques.data.harness import Run, both, epochs  # noqa: E402

COUNT = 40
PLANS: dict[str, Callable[[], Run]] = {
    "sample_cache": partial(Run, "sample_cache"),
    "loader_workers": partial(Run, "loader_workers", workers=2, persistent=True),
    "more workers": partial(Run, "loader_workers", workers=3, persistent=False),
    "both": partial(Run, "sample_cache", "loader_workers"),
}


class Data(Dataset):
    """Reads a level from an attribute, a file and shared memory; `rare` is what a fetch of sample 21 does more."""

    def __init__(self, path: str, rare: Callable[[Any], float] = lambda data: 0.0) -> None:
        self.path = path
        self.level = 0
        self.shared = torch.zeros(COUNT).share_memory_()
        self.rare = rare
        self.seen = [0]
        Path(path).write_text("0")

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        more = self.rare(self) if index == 21 else 0.0
        with open(self.path) as file:
            level = int(file.read()) + self.level + 100 * self.seen[0]
        return torch.full((3,), float(index)) + more, level, self.shared[index]


def writes_file(data: Data, value: int) -> None:
    Path(data.path).write_text(str(value))


def writes_shared(data: Data, value: int) -> None:
    data.shared.fill_(value)


def sets(data: Data, value: int) -> None:
    data.level = 10 * value


def counts(data: Data) -> float:
    data.seen[0] += 1
    return 0.0


def draws(data: Data) -> float:
    return float(torch.rand(()))


def with_writes(writes: dict[int, list[Callable[[Data, int], None]]], loader: Any) -> list[Any]:
    """Some epochs, before each of which these are called."""
    seen: list[Any] = []
    for epoch in range(5):
        for write in writes.get(epoch, []):
            write(loader.dataset, epoch)
        seen += epochs(loader, 1)
    return seen


def loader_of(data: Callable[[], Data], lasts: bool) -> Any:
    return DataLoader(data(), 4, shuffle=True, num_workers=2, persistent_workers=lasts)


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("write", [writes_file, writes_shared])
def test_what_they_share_with_the_program_is_seen(
    write: Callable[[Data, int], None], lasts: bool, tmp_path: Path
) -> None:
    """Those that live on never see an attribute that was set later."""
    make = partial(loader_of, partial(Data, str(tmp_path / "level")), lasts)
    go = partial(with_writes, {2: [sets], 3: [write], 4: [write]})
    plain, ours, run = both(make, go, PLANS["sample_cache"]())
    assert ours == plain
    assert run.reason


PLAN_NAMES = [*list(PLANS)[:-1], pytest.param("both", marks=pytest.mark.long)]


@pytest.mark.parametrize("plan", PLAN_NAMES)
@pytest.mark.parametrize("rare", [counts, draws])
def test_what_one_rarely_does_besides_reading_comes_as_in_the_programs(
    plan: str, rare: Callable[[Data], float], tmp_path: Path
) -> None:
    make = partial(loader_of, partial(Data, str(tmp_path / "level"), rare), False)
    plain, ours, _ = both(make, partial(with_writes, {3: [sets]}), PLANS[plan]())
    assert ours == plain


def test_others_in_their_place_are_used_where_all_do_nothing_but_read(tmp_path: Path) -> None:
    make = partial(loader_of, partial(Data, str(tmp_path / "level")), False)
    seen: list[Any] = []

    def go(loader: Any) -> Any:
        found = epochs(loader, 2)
        seen.append((loader.num_workers, loader.persistent_workers))
        return found

    plain, ours, run = both(make, go, Run("loader_workers", workers=3, persistent=True))
    assert ours == plain and not run.left_out
    assert seen == [(2, False), (3, True)]
