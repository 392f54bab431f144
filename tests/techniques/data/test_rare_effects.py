"""Fetches that rarely do more than to read, and programs that look closely: under each technique all is as without."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler  # noqa: E402

from overdrive.worker.session import Session  # noqa: E402
from tests.conftest import long_but  # noqa: E402

COUNT = 64
RARE = 41
SEEN = [0]
PLANS: dict[str, dict[str, dict[str, Any]]] = {
    "sample_cache": {"sample_cache": {}},
    "prefix_cache": {"prefix_cache": {}},
    "loader_workers": {"loader_workers": {"workers": 2}},
    "all": {"sample_cache": {}, "prefix_cache": {}, "loader_workers": {"workers": 2}, "prefetch": {}},
}


class Data(Dataset[Any]):
    SHIFT = 0

    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)
        self.level = 0.0
        self.last = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return decoded(index), self.effect(index)

    def effect(self, index: int) -> int:
        return 0


def decoded(index: int) -> Any:
    return torch.from_numpy(np.sqrt(np.arange(4000.0) + index).reshape(4, -1).sum(1))


class Counting(Data):
    def effect(self, index: int) -> int:
        SEEN[0] += index == RARE
        return SEEN[0]


class SlowlyCounting(Counting):
    def effect(self, index: int) -> int:
        time.sleep(0.01)  # so that idle cores fetch as well
        return super().effect(index)


class Remembering(Data):
    def effect(self, index: int) -> int:
        if index == RARE:
            self.last = index
        return self.last


class Drawing(Data):
    def effect(self, index: int) -> int:
        return random.randrange(100) if index == RARE else 0


class DrawingOfItsOwn(Data):
    def effect(self, index: int) -> int:
        return int(self.generator.integers(100)) if index == RARE else 0


class DrawingAfresh(Data):
    """From a generator that seeds itself, and that nothing holds."""

    def effect(self, index: int) -> int:
        return int(np.random.default_rng().integers(1 << 30)) if index == RARE else 0


class Printing(Data):
    def effect(self, index: int) -> int:
        if index == RARE:
            print("rare")
        return 0


class Noting(Data):
    def effect(self, index: int) -> int:
        if index == RARE:
            with open("noted", "a") as file:
                file.write("x")
        return 0


class Failing(Data):
    def effect(self, index: int) -> int:
        if index == RARE:
            raise ValueError("a bad sample")
        return 0


class Augmented(Data):
    """Draws always, after the level was read."""

    def __getitem__(self, index: int) -> Any:
        picture = decoded(index)
        level = int(np.signbit(self.level)) + 2 * self.SHIFT
        return picture + torch.rand(1), level


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    Data.SHIFT = 0


def run(program: Callable[[], Iterator[Any]], plan: str | None, capsys: Any) -> tuple[list[Any], str, list[str]]:
    SEEN[0], Data.SHIFT = 0, 0
    Path("noted").unlink(missing_ok=True)
    torch.manual_seed(0)
    random.seed(0)
    with Session(list(PLANS[plan].items()) if plan else []):
        told = list(program())
    files = [Path(each).read_text() for each in sorted(os.listdir()) if os.path.isfile(each)]
    return [*told, torch.rand(1).item(), random.random()], capsys.readouterr().out, files


def epochs(data: Any, **options: Any) -> Iterator[Any]:
    loader = DataLoader(data, **{"batch_size": 8, "shuffle": True, **options})
    for _ in range(3):
        try:
            for pictures, labels in loader:
                yield pictures.sum().item(), labels.tolist()
        except ValueError as error:
            yield str(error).splitlines()[0]


# Of kinds of effects, of programs and of plans each one, and not each with each: that is for a release.
KINDS = (Counting, SlowlyCounting, Remembering, Drawing, DrawingOfItsOwn, Printing, Noting, Failing)


@pytest.mark.parametrize(
    ("kind", "plan"),
    long_but(
        [*((kind, "all") for kind in KINDS), *((kind, plan) for kind in (Counting, Drawing) for plan in PLANS)],
        [(kind, plan) for kind in KINDS for plan in PLANS],
    ),
)
def test_what_a_fetch_rarely_does_is_done_as_without(kind: type[Data], plan: str, capsys: Any) -> None:
    def program() -> Iterator[Any]:
        yield from epochs(kind())

    expected = run(program, None, capsys)
    assert run(program, plan, capsys) == expected


@pytest.mark.parametrize("plan", PLANS)
def test_what_a_fetch_rarely_draws_from_a_generator_that_seeds_itself_is_drawn_each_time(plan: str) -> None:
    with Session(list(PLANS[plan].items())):
        drawn = [max(max(labels) for _, labels in epoch) for epoch in epochs_of(DrawingAfresh())]
    assert len(set(drawn)) == 3


def epochs_of(data: Any) -> Iterator[Any]:
    for _ in range(3):
        yield [(pictures.sum().item(), labels.tolist()) for pictures, labels in DataLoader(data, 8, shuffle=True)]


def changed_in_loop(change: Callable[[Data], object]) -> Callable[[], Iterator[Any]]:
    def program() -> Iterator[Any]:
        data = Augmented()
        for epoch in range(3):
            for number, (pictures, labels) in enumerate(DataLoader(data, 8, shuffle=True)):
                yield pictures.sum().item(), labels.tolist()
                if (epoch, number) == (1, 3):
                    change(data)

    return program


def changes_itself(data: Any) -> None:
    data.level = -0.0


def changes_its_class(data: Any) -> None:
    Data.SHIFT = 1


@pytest.mark.parametrize(
    ("change", "plan"),
    long_but(
        [(changes_itself, "prefix_cache"), (changes_itself, "all"), (changes_its_class, "all")],
        [(change, plan) for change in (changes_itself, changes_its_class) for plan in ("prefix_cache", "all")],
    ),
)
def test_what_comes_before_a_draw_is_kept_until_it_changes(change: Any, plan: str, capsys: Any) -> None:
    program = changed_in_loop(change)
    assert run(program, plan, capsys) == run(program, None, capsys)


def together() -> Iterator[Any]:
    """Two loaders at once: which of them draws its seed first shows."""
    for _ in range(2):
        for one, other in zip(DataLoader(Data(), 4, shuffle=True), DataLoader(Data(), 4, shuffle=True), strict=True):
            yield one[0].sum().item(), other[0].sum().item()


def one_within_another() -> Iterator[Any]:
    data = Counting()
    loader = DataLoader(data, 8, sampler=RandomSampler(data, replacement=True, num_samples=80))
    for _ in range(3):
        for _, labels in loader:
            yield labels.tolist(), next(iter(loader))[1].tolist()


class Hard(Sampler[int]):
    def __init__(self) -> None:
        self.order = list(range(COUNT))

    def __iter__(self) -> Iterator[int]:
        for place in range(COUNT):
            yield self.order[place]

    def __len__(self) -> int:
        return COUNT


def mined() -> Iterator[Any]:
    """What is drawn next depends on what the loop has done."""
    sampler = Hard()
    for _ in range(3):
        for pictures, _ in DataLoader(Data(), 4, sampler=sampler):
            yield pictures.sum().item()
            sampler.order.insert(0, sampler.order.pop(20))


AT_ONCE = (together, one_within_another, mined)


@pytest.mark.parametrize(
    ("program", "plan"),
    long_but(
        [*((program, "all") for program in AT_ONCE), *((together, plan) for plan in PLANS)],
        [(program, plan) for program in AT_ONCE for plan in PLANS],
    ),
)
def test_loaders_draw_and_fetch_at_the_moments_of_the_program(program: Any, plan: str, capsys: Any) -> None:
    expected = run(program, None, capsys)
    assert run(program, plan, capsys) == expected


def of_a_library() -> Iterator[Any]:
    class Data(Dataset[Any]):
        half = Fraction(1, 3)

        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            return decoded(index), self.half.limit_denominator(2).numerator

    real = Fraction.limit_denominator
    try:
        loader = DataLoader(Data(), 8)
        for _ in range(3):
            for number, (_, labels) in enumerate(loader):
                yield labels.tolist()
                if number == 5:
                    Fraction.limit_denominator = lambda self, most=0: Fraction(7)  # type: ignore[method-assign]
    finally:
        Fraction.limit_denominator = real  # type: ignore[method-assign]


class Named(Dataset[Any]):
    """Reads from files of which it knows a part of the name."""

    def __init__(self, name: str) -> None:
        self.start = name[:-1]
        self.end = name[-1]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return decoded(index), int(np.load(self.start + self.end)[index])


def rewriting(write: Callable[[Path], object]) -> Callable[[], Iterator[Any]]:
    def program() -> Iterator[Any]:
        folder = Path("data")
        folder.mkdir(exist_ok=True)
        for name in ("one", "other"):
            np.save(folder / f"{name}.npy", np.zeros(COUNT, np.int64))
        (folder / "link").unlink(missing_ok=True)
        (folder / "link").symlink_to("one.npy")
        data = Named(str(folder / "link"))
        for epoch in range(3):
            for number, (_, labels) in enumerate(DataLoader(data, 8)):
                yield labels.tolist()
                if (epoch, number) == (1, 3):
                    write(folder)
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()

    return program


def mapped(folder: Path) -> None:
    np.load(folder / "one.npy", mmap_mode="r+")[:] = 4


def relinked(folder: Path) -> None:
    np.save(folder / "other.npy", np.ones(COUNT, np.int64))
    (folder / "new").symlink_to("other.npy")
    os.replace(folder / "new", folder / "link")


OUTSIDE = (of_a_library, rewriting(mapped), rewriting(relinked))


@pytest.mark.parametrize(
    ("program", "plan"),
    long_but(
        [*((program, "all") for program in OUTSIDE), (of_a_library, "sample_cache")],
        [(program, plan) for program in OUTSIDE for plan in ("sample_cache", "all")],
    ),
)
def test_what_lies_outside_of_the_data_set_is_looked_at(program: Any, plan: str, capsys: Any) -> None:
    expected = run(program, None, capsys)
    assert run(program, plan, capsys) == expected
