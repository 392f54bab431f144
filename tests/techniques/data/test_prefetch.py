"""`prefetch` beside `sample_cache`: a thread gathers the next batches, and nobody can tell."""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from overdrive.core.facts import Facts, LoaderFacts  # noqa: E402
from overdrive.core.progress import log  # noqa: E402
from overdrive.seams.torch.drawn_indices import Ahead, Peeking  # noqa: E402
from overdrive.techniques.data.prefetch import gathering, prefetcher  # noqa: E402
from overdrive.techniques.data.prefetch.technique import Prefetch  # noqa: E402
from tests.techniques.data.harness import Run, both, epochs, leaves, own_draws, seed, states  # noqa: E402

COUNT = 60


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level("INFO", "overdrive")  # a test that fails shows why
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    monkeypatch.setattr(gathering, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(gathering, "_PATIENCE", 60.0)  # tests share two cores of a machine that may stand still


class Images(Dataset):
    def __init__(self) -> None:
        self.images = torch.randn(COUNT, 3, 5, 4, generator=torch.Generator().manual_seed(1))
        self.offset = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.images[index].sin() + self.offset, index


class Backwards(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT - 1, -1, -1))

    def __len__(self) -> int:
        return COUNT


def own_generator(**how: Any) -> Callable[[], Any]:
    def make() -> Any:
        generator = torch.Generator().manual_seed(3)
        if how:
            return DataLoader(Images(), 8, sampler=RandomSampler(Images(), generator=generator, **how))
        return DataLoader(Images(), 8, shuffle=True, generator=generator)

    return make


MAKERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: DataLoader(Images(), 8),
    "shuffled": lambda: DataLoader(Images(), 8, shuffle=True),
    "whole batches only": lambda: DataLoader(Images(), 8, shuffle=True, drop_last=True),
    "a generator of its own": own_generator(),
    "with replacement": lambda: DataLoader(Images(), 8, sampler=RandomSampler(Images(), replacement=True)),
    "a part": own_generator(num_samples=30),
    "a rank": lambda: DataLoader(Images(), 4, sampler=DistributedSampler(Images(), num_replicas=2, rank=1)),
    "workers": lambda: DataLoader(Images(), 8, shuffle=True, num_workers=2),
    "workers that live on": lambda: DataLoader(Images(), 8, shuffle=True, num_workers=2, persistent_workers=True),
    "workers and a sampler of its own": lambda: DataLoader(Images(), 8, sampler=Backwards(), num_workers=2),
}

REFUSED: dict[str, Callable[[], Any]] = {
    "a sampler of its own": lambda: DataLoader(Images(), 8, sampler=Backwards()),
    "a subset, whose list may change": lambda: DataLoader(Images(), 8, sampler=SubsetRandomSampler(range(40))),
    "weights": lambda: DataLoader(Images(), 8, sampler=WeightedRandomSampler([1.0] * COUNT, COUNT)),
    "drawn bit by bit from a generator of its own": own_generator(replacement=True),
    "drawn again and again from a generator of its own": own_generator(num_samples=150),
}


def run() -> Run:
    return Run("prefetch", "sample_cache")


def ahead(session: Run) -> Any:
    return session.handle.prefetcher


class Counted(Run):
    taken = 0

    def ends(self) -> None:
        self.taken = ahead(self).taken


@pytest.mark.parametrize("name", MAKERS)
def test_batches_and_random_states_are_the_same_in_every_bit(name: str) -> None:
    plain, ours, session = both(MAKERS[name], epochs, Counted("prefetch", "sample_cache"))
    assert ours == plain
    assert not session.left_out
    assert session.taken > 5


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_seen_is_left_alone(name: str) -> None:
    plain, ours, session = both(REFUSED[name], epochs, Counted("prefetch", "sample_cache"))
    assert ours == plain
    assert session.taken == 0
    assert "its sampler is not one of torch's" in session.reason


def test_a_checkpoint_of_the_generator_is_as_without_us() -> None:
    """Its state between any two batches, also before the last one and after it."""

    def watched(loader: Any) -> list[Any]:
        return [(list(leaves(batch)), states(loader)) for _ in range(3) for batch in loader]

    for name in ("a generator of its own", "a part"):
        plain, ours, session = both(MAKERS[name], watched, Counted("prefetch", "sample_cache"))
        assert ours == plain
        assert session.taken > 4


def test_a_data_set_that_is_changed_in_the_midst_of_an_epoch() -> None:
    def changing(loader: Any) -> list[Any]:
        seen = []
        for _ in range(2):
            for number, batch in enumerate(loader):
                seen.append(list(leaves(batch)))
                if number == 3:
                    loader.dataset.offset += 1
        return seen

    plain, ours, _ = both(MAKERS["shuffled"], changing, run())
    assert ours == plain


def test_batches_that_the_program_keeps_or_writes_to_stay_its_own() -> None:
    def keeping(loader: Any) -> list[Any]:
        kept = [batch for _ in range(3) for batch in loader]
        for images, _ in kept[::2]:
            images.mul_(2)
        return [list(leaves(batch)) for batch in kept]

    plain, ours, session = both(MAKERS["shuffled"], keeping, Counted("prefetch", "sample_cache"))
    assert ours == plain
    assert session.taken > 8


def test_other_modes_are_those_of_the_program() -> None:
    def switching(loader: Any) -> list[Any]:
        seen: list[Any] = []
        for number in range(3):
            with torch.inference_mode(number == 1):
                seen += [list(leaves(batch)) for batch in loader]
        return seen

    plain, ours, session = both(MAKERS["shuffled"], switching, Counted("prefetch", "sample_cache"))
    assert ours == plain
    assert session.taken > 4


def test_a_process_that_the_program_forks_goes_on_by_itself() -> None:
    seed()
    with run() as session:
        list(DataLoader(loader := Images(), 8, shuffle=True))
        data = DataLoader(loader, 8)
        batches = iter(data)
        first = [next(batches) for _ in range(3)]
        assert ahead(session).taken > 0
        child = os.fork()
        if child == 0:
            status = 1
            try:
                faulthandler.dump_traceback_later(100, exit=True)
                torch.set_num_threads(1)  # sines of 480 numbers are OpenMP's already, whose threads are not in a child
                rest = list(batches)
                right = all(torch.equal(images, Images().images[labels].sin()) for images, labels in rest)
                status = 0 if right and len(rest) == 5 else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert len([*first, *batches]) == 8


def test_nothing_is_being_gathered_while_a_process_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child of a program that forks must not find a lock that our thread held."""
    begun, go_on = threading.Event(), threading.Event()
    at_work = [False]

    class Slow(Beside):
        def start(self, tensor: Any) -> Callable[[], Any]:
            at_work[0] = True
            begun.set()
            assert go_on.wait(100)
            at_work[0] = False
            return super().start(tensor)

    slow = Slow()
    monkeypatch.setattr(prefetcher.Prefetcher, "copier", lambda _: slow)
    seed()
    with run():
        batches = iter(MAKERS["in order"]())
        next(batches)
        assert begun.wait(100)
        threading.Timer(0.3, go_on.set).start()
        child = os.fork()
        if child == 0:
            os._exit(at_work[0])
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(batches)) == 7


def test_it_is_undone_in_the_middle_of_an_epoch() -> None:
    seed()
    plain = epochs(MAKERS["shuffled"](), 1)
    seed()
    before = threading.active_count()
    with run():
        loader = MAKERS["shuffled"]()
        batches = iter(loader)
        seen = [states(loader)]
        for _ in range(5):
            seen += [list(leaves(next(batches))), own_draws()]
    assert threading.active_count() == before
    for batch in batches:
        seen += [list(leaves(batch)), own_draws()]
    assert [*seen, states(loader)] == plain


class Beside:
    """Stands for a GPU: gives copies that can be told from plain ones."""

    needs_pinned = False
    device = torch.device("meta")

    def start(self, tensor: Any) -> Callable[[], Any]:
        assert threading.current_thread() is not threading.main_thread()
        return lambda: tensor.detach().clone()  # on the CPU: a plain copy would be on "meta"


def test_the_programs_own_move_finds_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside()
    monkeypatch.setattr(prefetcher.Prefetcher, "copier", lambda _: beside)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gathering, "LEAST_SECONDS", 9.0)  # however quick it is: the copy is what takes time
    moved: list[Any] = []

    def move(loader: Any) -> list[Any]:
        seen: list[Any] = []
        for _ in range(2):
            for images, labels in loader:
                seen += [list(leaves([images, labels])), own_draws()]
                moved.append((images, images.to("meta"), labels.to("meta", non_blocking=True)))
        return seen

    plain, ours, session = both(MAKERS["shuffled"], move, Counted("prefetch", "sample_cache"))
    assert ours == plain
    assert session.taken >= 12
    found = [(images, copy) for images, copy, labels in moved if labels.device.type == "cpu"]
    assert len(found) == session.taken
    assert all(torch.equal(copy, images) for images, copy in found)


class Random(Images):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0] + torch.rand(1), index


def test_without_cached_samples_it_is_left_out_by_name() -> None:
    for session in (Counted("prefetch"), Counted("prefetch", "sample_cache")):
        plain, ours, session = both(lambda: DataLoader(Random(), 8, shuffle=True), epochs, session)
        assert ours == plain
        assert session.taken == 0
        assert dict(session.left_out)["prefetch"] == "its batches do not come from samples that sample_cache keeps"


def test_one_loader_refused_leaves_the_others() -> None:
    def make() -> Any:
        return DataLoader(Random(), 8), DataLoader(Images(), 8, shuffle=True)

    def two(loaders: Any) -> list[Any]:
        return [epochs(loader) for loader in loaders]

    plain, ours, session = both(make, two, Counted("prefetch", "sample_cache"))
    assert ours == plain
    assert not session.left_out and session.taken > 5


@pytest.mark.parametrize("depth", [1, 3, 16])
def test_any_depth_gives_the_same_batches(depth: int) -> None:
    plain, ours, session = both(MAKERS["shuffled"], epochs, Counted("prefetch", "sample_cache", depth=depth))
    assert ours == plain
    assert session.taken > 5


def test_the_card_says_when_it_cannot_help() -> None:
    loader = LoaderFacts(8, 0, True, 100, 0.01)
    assert Prefetch().applies(Facts(cores=4, shares={"data": 0.5}, loaders=(loader,))) is None
    draws = LoaderFacts(8, 0, True, 100, 0.01, draws=True)
    for facts, reason in (
        (Facts(cores=4, shares={"data": 0.5}), "no map-style DataLoader"),
        (Facts(cores=4, shares={"data": 0.5}, loaders=(draws,)), "draws random numbers"),
        (Facts(cores=4, shares={"data": 0.01}, loaders=(loader,)), "only 1% of a step"),
        (Facts(cores=1, shares={"data": 0.5}, loaders=(loader,)), "one core"),
    ):
        assert reason in (Prefetch().applies(facts) or "")


def test_a_thread_that_fails_is_nobodys_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Beside):
        def start(self, tensor: Any) -> Callable[[], Any]:
            raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(prefetcher.Prefetcher, "copier", lambda _: Full())
    plain, ours, session = both(MAKERS["shuffled"], epochs, Counted("prefetch", "sample_cache"))
    assert ours == plain
    assert session.taken == 0


def test_indices_drawn_for_workers_are_known_without_drawing() -> None:
    drawn = Ahead(iter(range(10)), 3)
    assert next(drawn) == 0 and drawn.coming(2) == [1, 2] and drawn.coming(9) == [1, 2, 3] and next(drawn) == 1


def test_neither_the_first_nor_the_last_index_is_drawn_early() -> None:
    asked: list[int] = []

    def indices() -> Iterator[int]:
        for number in range(4):
            asked.append(number)
            yield number

    peeking = Peeking(indices(), 4)
    assert not asked and next(peeking) == 0
    assert peeking.coming(5) == [1, 2] and asked == [0, 1, 2]
    assert list(peeking) == [1, 2, 3]
