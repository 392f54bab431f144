"""The technique `prefetch` on real loaders: the same bits and draws, whatever the program does between batches."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import random
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from overdrive.core.facts import Facts, LoaderFacts  # noqa: E402
from overdrive.core.progress import log  # noqa: E402
from overdrive.techniques.catalogue import catalogue  # noqa: E402
from overdrive.techniques.data.prefetch import course, iterator  # noqa: E402
from overdrive.techniques.data.prefetch.technique import Prefetch  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402
from tests.conftest import Run as RunProgram  # noqa: E402
from tests.techniques.data import harness  # noqa: E402
from tests.techniques.data.harness import leaves, seed, states  # noqa: E402

COUNT = 83


class Plain(Dataset):
    """Draws nothing."""

    def __init__(self) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 255, (COUNT, 6, 5, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.pixels[index]).permute(2, 0, 1).float() / 255, index % 7


class Augmented(Plain):
    """Crops and flips with the generator that it is told."""

    def __init__(self, draws: str) -> None:
        super().__init__()
        self.draws = draws

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        if self.draws == "python":
            flip, shift = random.random() < 0.5, random.gauss(0, 1)
        elif self.draws == "numpy":
            flip, shift = np.random.rand() < 0.5, float(np.random.randn())
        else:
            flip, shift = bool(torch.rand(1) < 0.5), torch.randn(1).item()
        return (image.flip(-1) if flip else image) + shift, label


class Files(Plain):
    def __init__(self, folder: Path) -> None:
        self.paths = [folder / f"{index}.npy" for index in range(COUNT)]
        for index, path in enumerate(self.paths):
            np.save(path, np.full((3, 4), index, dtype=np.float32))

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.load(self.paths[index])), index


class Varying(Plain):
    """Samples of all lengths, padded to the longest of the batch."""

    def __getitem__(self, index: int) -> Any:
        return torch.arange(index % 11 + 1), f"sample {index}"


def padded(samples: list[Any]) -> dict[str, Any]:
    longest = max(len(tokens) for tokens, _ in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, (sample, _) in enumerate(samples):
        tokens[row, : len(sample)] = sample
    return {"tokens": tokens, "names": [name for _, name in samples], "array": tokens.numpy() + 1, "scale": 0.5}


class NumpySampler:
    """Draws anew for each batch, from numpy's global generator."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(12):
            yield np.random.randint(0, COUNT, 6).tolist()

    def __len__(self) -> int:
        return 12


class Endless(NumpySampler):
    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield torch.randint(0, COUNT, (6,)).tolist()


@pytest.fixture(autouse=True)
def any_speed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """These data sets are quick, and would be left alone for it."""
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level("INFO", "overdrive")  # a test that fails shows why a batch was thrown away
    monkeypatch.setattr(course, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(course, "LEAST_STARTS", 0.0)
    monkeypatch.setattr(course, "PATIENCE", 60.0)  # tests share two cores of a machine that may stand still


def technique() -> Prefetch:
    found = catalogue()["prefetch"]
    assert isinstance(found, Prefetch)
    return found


def epochs(loader: Any, count: int = 3) -> list[Any]:
    seen: list[Any] = []
    for _ in range(count):
        for batch in loader:
            seen += [list(leaves(batch)), states()]
        seen.append(states())
    return seen


def both(make: Callable[[], Any], go: Callable[[Any], Any] = epochs) -> tuple[Any, Any, dict[str, str]]:
    plain, ours, run = harness.both(make, go, harness.Run("prefetch"))
    return plain, ours, dict(run.left_out)


def taken() -> int:
    assert technique().manager is not None
    return technique().manager.taken


MAKERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: DataLoader(Plain(), 8),
    "shuffled": lambda: DataLoader(Plain(), 8, shuffle=True),
    "drop_last": lambda: DataLoader(Plain(), 8, shuffle=True, drop_last=True),
    "own generator": lambda: DataLoader(Plain(), 8, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "with replacement": lambda: DataLoader(Plain(), 8, sampler=RandomSampler(range(COUNT), True, 90)),
    "weighted": lambda: DataLoader(Plain(), 8, sampler=WeightedRandomSampler(np.arange(1, COUNT + 1), COUNT)),
    "a sampler that draws from numpy": lambda: DataLoader(Plain(), batch_sampler=NumpySampler()),
    "tensors": lambda: DataLoader(TensorDataset(torch.randn(COUNT, 3), torch.arange(COUNT)), 8, shuffle=True),
    "subset": lambda: DataLoader(Subset(Plain(), range(3, 60)), 8, shuffle=True),
    "no batches": lambda: DataLoader(Subset(Plain(), range(9)), batch_size=None, shuffle=True),
    "other sizes": lambda: DataLoader(Varying(), 8, shuffle=True, collate_fn=padded),
    "python draws": lambda: DataLoader(Augmented("python"), 8, shuffle=True),
    "numpy draws": lambda: DataLoader(Augmented("numpy"), 8, shuffle=True),
    "torch draws": lambda: DataLoader(Augmented("torch"), 8, shuffle=True),
    "all draw": lambda: DataLoader(Augmented("numpy"), batch_sampler=NumpySampler()),
}


@pytest.mark.parametrize("name", MAKERS)
def test_batches_and_random_states_are_the_same_in_every_bit(name: str) -> None:
    plain, ours, left_out = both(MAKERS[name])
    assert ours == plain
    assert not left_out and taken() > 3


def test_files(tmp_path: Path) -> None:
    plain, ours, left_out = both(lambda: DataLoader(Files(tmp_path), 8, shuffle=True))
    assert ours == plain
    assert not left_out
    assert taken() > 20


def test_a_new_loader_for_each_epoch_is_no_new_loader() -> None:
    def anew(data: Any) -> list[Any]:
        return [epochs(DataLoader(data, 8, shuffle=True), 1) for _ in range(4)]

    plain, ours, left_out = both(lambda: Augmented("python"), anew)
    assert ours == plain and not left_out
    assert taken() == 7 + 3 * 10  # all but the first ones, and in the first epoch those that are compared


def test_new_data_sets_again_and_again_are_left_alone() -> None:
    def anew(_: Any) -> list[Any]:
        return [epochs(DataLoader(Plain(), 8), 1) for _ in range(12)]

    plain, ours, left_out = both(lambda: None, anew)
    assert ours == plain and "again and again" in left_out["prefetch"]


def test_a_data_set_that_is_told_each_epoch_is_read_ahead_all_the_same() -> None:
    def told(loader: Any) -> list[Any]:
        seen = []
        for epoch in range(8):
            loader.dataset.level = 1000 + epoch
            seen.append([list(leaves(batch)) for batch in loader])
        return seen

    plain, ours, left_out = both(lambda: DataLoader(Curriculum(), 8), told)
    assert ours == plain
    assert not left_out
    assert taken() > 60


def draw_between(loader: Any) -> list[Any]:
    """A program that draws from torch between its batches, as dropout does."""
    seen: list[Any] = []
    for _ in range(3):
        for batch in loader:
            seen += [list(leaves(batch)), torch.rand(1).item(), states()]
    return seen


@pytest.mark.parametrize("draws", ["python", "numpy"])
def test_draws_from_another_generator_do_not_matter(draws: str) -> None:
    plain, ours, left_out = both(lambda: DataLoader(Augmented(draws), 8, shuffle=True), draw_between)
    assert ours == plain
    assert not left_out
    assert taken() > 20


def test_draws_from_the_same_generator_are_noticed() -> None:
    plain, ours, left_out = both(lambda: DataLoader(Augmented("torch"), 8, shuffle=True), draw_between)
    assert ours == plain
    assert taken() == 0
    assert "so does the program" in left_out["prefetch"]


@pytest.mark.parametrize("draws", ["python", "torch"])
def test_a_model_with_dropout_trains_the_same(draws: str) -> None:
    def train(loader: Any) -> list[Any]:
        model = nn.Sequential(nn.Flatten(), nn.Linear(90, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 7))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(2):
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return [losses, [list(leaves(each.detach())) for each in model.parameters()], states()]

    plain, ours, _ = both(lambda: DataLoader(Augmented(draws), 8, shuffle=True), train)
    assert ours == plain


def test_breaking_off_leaves_nothing_behind() -> None:
    def broken_off(loader: Any) -> list[Any]:
        seen: list[Any] = []
        for epoch in range(4):
            for number, batch in enumerate(loader):
                seen += [list(leaves(batch)), states()]
                if number == 4 + epoch:
                    break
            seen.append(states())
        return seen

    plain, ours, _ = both(lambda: DataLoader(Augmented("numpy"), 8, shuffle=True), broken_off)
    assert ours == plain
    assert taken() > 3
    assert not children()


def all_children() -> set[int]:
    gc.collect()
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


@pytest.fixture(autouse=True)
def earlier_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other tests' files in this process: a fork server stays."""
    monkeypatch.setattr(f"{__name__}._earlier", all_children())


_earlier: set[int] = set()


def children() -> list[int]:
    return sorted(all_children() - _earlier)


def test_loaders_within_loaders() -> None:
    def nested(loaders: Any) -> list[Any]:
        seen: list[Any] = []
        outer, inner = loaders
        for batch in outer:
            seen.append(list(leaves(batch)))
            for other in inner:
                seen += [list(leaves(other)), states()]
        return seen

    def make() -> Any:
        return DataLoader(Augmented("python"), 16, shuffle=True), DataLoader(Augmented("numpy"), 8, shuffle=True)

    plain, ours, _ = both(make, nested)
    assert ours == plain
    assert taken() > 5


def test_an_endless_sampler() -> None:
    def some(loader: Any) -> list[Any]:
        iterator = iter(loader)
        return [[list(leaves(next(iterator))), states()] for _ in range(20)]

    plain, ours, left_out = both(lambda: DataLoader(Augmented("numpy"), batch_sampler=Endless()), some)
    assert ours == plain
    assert not left_out
    assert taken() > 10


class Corrupt(Augmented):
    def __getitem__(self, index: int) -> Any:
        if index == 50:
            raise OSError(f"cannot identify image file {index}")
        return super().__getitem__(index)


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_error_comes_at_the_same_batch(goes_on: bool) -> None:
    def read(loader: Any) -> list[Any]:
        seen: list[Any] = []
        iterator = iter(loader)
        while True:
            try:
                seen += [list(leaves(next(iterator))), states()]
            except StopIteration:
                return seen
            except OSError as error:
                seen += [str(error), states()]
                if not goes_on:
                    return seen

    plain, ours, left_out = both(lambda: DataLoader(Corrupt("python"), 8), read)
    assert ours == plain
    assert not left_out
    assert taken() > 1


class MovingTarget:
    """A sampler that looks at the training, as in hard-example mining."""

    progress = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(COUNT):
            yield (self.progress * 7 + int(torch.randint(0, 5, (1,)))) % COUNT

    def __len__(self) -> int:
        return COUNT


def test_a_sampler_that_watches_the_training_is_found_out() -> None:
    def mine(loader: Any) -> list[Any]:
        seen = []
        for batch in loader:
            loader.sampler.progress += 1
            seen += [list(leaves(batch)), states()]
        return seen

    plain, ours, left_out = both(lambda: DataLoader(Plain(), 4, sampler=MovingTarget()), mine)
    assert ours == plain
    assert "sampler follows" in left_out["prefetch"]


class Curriculum(Plain):
    level = 0

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), float(self.level)])


def test_a_data_set_that_the_program_changes_is_found_out() -> None:
    def learn(loader: Any) -> list[Any]:
        seen = []
        for batch in loader:
            loader.dataset.level += 1
            seen.append(list(leaves(batch)))
        return seen

    plain, ours, left_out = both(lambda: DataLoader(Curriculum(), 4), learn)
    assert ours == plain and "written to" in left_out["prefetch"]


LEVEL = 0


class Global(Plain):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), float(LEVEL)])


def test_a_global_that_the_program_changes_once_costs_one_start() -> None:
    def learn(loader: Any) -> list[Any]:
        global LEVEL
        seen = []
        LEVEL = 0
        for number, batch in enumerate(loader):
            LEVEL = number // 10
            seen.append(list(leaves(batch)))
        return seen

    plain, ours, left_out = both(lambda: DataLoader(Global(), 4), learn)
    assert ours == plain
    assert not left_out
    assert taken() > 8


class Counting(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0

    def __getitem__(self, index: int) -> Any:
        self.fetched += 1
        return torch.tensor([index, self.fetched])


class Late(Plain):
    """Changes itself at one of its samples only."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __getitem__(self, index: int) -> Any:
        if index == 40:
            self.seen += 1
        return torch.tensor([index, self.seen])


class Own(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.random.random())


class Timed(Plain):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(time.perf_counter_ns())  # as float32 it would stand still on a machine that is long up


class Buffered(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.zeros(4, 3)


def into(buffered: Buffered) -> Any:
    return DataLoader(buffered, 4, collate_fn=lambda samples: buffered.buffer)


class Elsewhere(Plain):
    """Other bits in another process."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, os.getpid() - HERE])


HERE = os.getpid()


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


class Writing(Plain):
    """Keeps a digest log, and gets over it where it cannot."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = str(path)

    def __getitem__(self, index: int) -> Any:
        try:
            with open(self.path, "a") as digests:
                digests.write(f"{index} ")
        except OSError:
            pass
        return index


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "state": (lambda: DataLoader(Counting(), 4), "changes"),
    "own generator": (lambda: DataLoader(Own(), 4), "chang"),
    "time": (lambda: DataLoader(Timed(), 4), "change from fetch to fetch"),
    "shared memory": (lambda: into(Buffered()), "share memory"),
    "other process": (lambda: DataLoader(Elsewhere(), 4), "differently in a forked process"),
    "stream": (lambda: DataLoader(Stream(), 4), "stream"),
    "objects": (lambda: DataLoader(Plain(), 4, collate_fn=set), "other things"),
    "open file": (lambda: DataLoader(WithFile(), 4), "might not be seen"),
}


class WithFile(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.file = OPEN.enter_context(open(__file__))  # noqa: SIM115


OPEN = contextlib.ExitStack()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_ahead_is_refused_with_the_reason(name: str, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(OPEN.close)
    make, reason = REFUSED[name]

    def read(loader: Any) -> list[Any]:
        return [states() if name in ("time", "objects") else list(leaves(batch)) for batch in loader]

    plain, ours, left_out = both(make, read)
    assert ours == plain
    assert reason in left_out["prefetch"] and taken() == 0


@pytest.mark.parametrize("sampler", [False, True])
def test_files_are_written_once(sampler: bool, tmp_path: Path) -> None:
    path = tmp_path / "digests"
    writing = Writing(path)

    class Noting:
        def __iter__(self) -> Iterator[int]:
            return (index * writing[index] // max(1, index) for index in range(40))

        def __len__(self) -> int:
            return 40

    def read(loader: Any) -> str:
        path.write_text("")
        assert len(list(loader)) == len(loader)
        return path.read_text()

    plain, ours, left_out = both(
        lambda: DataLoader(Plain(), 4, sampler=Noting()) if sampler else DataLoader(writing, 4), read
    )
    assert ours == plain != ""
    assert "does more than read: it opens a file for writing" in left_out["prefetch"]


def test_a_rare_change_of_the_data_set_is_noticed_where_it_happens() -> None:
    plain, ours, left_out = both(lambda: DataLoader(Late(), 4))
    assert ours == plain
    assert taken() > 3
    assert not left_out  # three misses make it stop, and one epoch has one


def test_first_batches_alone_cost_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    plain, ours, left_out = both(
        lambda: DataLoader(Plain(), 8, shuffle=True),
        lambda loader: [list(leaves(next(iter(loader)))) for _ in range(5)],
    )
    assert ours == plain and not left_out


def test_evaluation_without_gradients_gets_tensors_of_its_kind() -> None:
    def evaluate(loader: Any) -> list[Any]:
        seen: list[Any] = []
        for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
            with mode():
                for batch in loader:
                    seen += [list(leaves(batch)), [each.is_inference() for each in batch]]
        return seen

    plain, ours, left_out = both(lambda: DataLoader(Plain(), 8), evaluate)
    assert ours == plain
    assert not left_out
    assert taken() > 10


def test_workers_are_left_to_fetch_ahead_by_themselves() -> None:
    plain, ours, left_out = both(lambda: DataLoader(Plain(), 8, num_workers=1), lambda loader: epochs(loader, 1))
    assert ours == plain and "workers" in left_out["prefetch"]


def test_one_loader_refused_leaves_the_others() -> None:
    def two(loaders: Any) -> list[Any]:
        return [epochs(loader) for loader in loaders]

    plain, ours, left_out = both(lambda: (DataLoader(Counting(), 8), DataLoader(Augmented("python"), 8)), two)
    assert ours == plain
    assert not left_out
    assert taken() > 20 and len(technique().reasons) == 1


def test_a_copy_that_dies_or_hangs_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(loader: Any) -> list[Any]:
        seen: list[Any] = []
        for number, batch in enumerate(loader):
            seen += [list(leaves(batch)), states()]
            if number == 5:
                for pid in children():
                    os.kill(pid, 9)
        return seen

    plain, ours, left_out = both(lambda: DataLoader(Augmented("numpy"), 8, shuffle=True), killed)
    assert ours == plain
    assert not left_out
    assert taken() > 0


def test_a_program_that_forks_goes_on_in_both_processes() -> None:
    def forks(loader: Any) -> list[Any]:
        seen: list[Any] = []
        python = random.getstate()
        iterator = iter(loader)
        seen += [[list(leaves(next(iterator))), states()] for _ in range(6)]
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                torch.set_num_threads(1)  # OpenMP's threads are not in a forked process
                random.setstate(python)  # which Python seeds anew in a forked process
                rest = [[list(leaves(batch)), states()] for batch in iterator]
                os.write(writing, hashlib.sha256(repr(rest).encode()).hexdigest().encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(pid, 0)
        rest = [[list(leaves(batch)), states()] for batch in iterator]
        seen += [hashlib.sha256(repr(rest).encode()).hexdigest(), os.read(reading, 100).decode()]
        os.close(reading)
        assert seen[-1] == seen[-2]
        return seen

    plain, ours, left_out = both(lambda: DataLoader(Augmented("numpy"), 8), forks)
    assert ours == plain
    assert not left_out
    assert taken() > 4


class Hanging(Plain):
    def __getitem__(self, index: int) -> Any:
        if os.getpid() != HERE and index > 50:
            time.sleep(100)
        return super().__getitem__(index)


def test_a_copy_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "PATIENCE", 0.3)
    plain, ours, left_out = both(lambda: DataLoader(Hanging(), 4))
    assert ours == plain
    assert taken() > 3
    assert "in time" in left_out["prefetch"] and not children()


class Growing(Plain):
    def __getitem__(self, index: int) -> Any:
        return torch.full((1 << index // 4,), index)


def test_batches_that_grow_get_more_room() -> None:
    plain, ours, left_out = both(lambda: DataLoader(Subset(Growing(), range(60)), 4, shuffle=False))
    assert ours == plain
    assert not left_out
    assert taken() > 15


def test_batches_that_take_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterator, "available_memory", lambda: 1 << 10)
    plain, ours, left_out = both(lambda: DataLoader(Plain(), 4))
    assert ours == plain and "too large" in left_out["prefetch"]


class WithModel(Plain):
    """Makes its samples with a network that is being trained."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 2)

    def __getitem__(self, index: int) -> Any:
        with torch.no_grad():
            return self.model(torch.tensor([float(index), 1.0]))


def test_samples_that_follow_the_training_are_fetched_in_time() -> None:
    def train(loader: Any) -> list[Any]:
        seen = []
        for x in loader:
            seen.append(list(leaves(x)))
            with torch.no_grad():
                loader.dataset.model.weight.add_(0.01)
        return seen

    def make() -> Any:
        torch.manual_seed(0)
        return DataLoader(WithModel(), 4)

    plain, ours, left_out = both(make, train)
    assert ours == plain and "written to" in left_out["prefetch"]


def test_the_copy_ends_with_a_program_that_is_killed(script: Callable[[str], Path], python: RunProgram) -> None:
    path = script(
        textwrap.dedent(
            """
            import os, random, time
            import torch
            from torch.utils.data import DataLoader, Dataset
            from overdrive.techniques.data.prefetch import course
            from overdrive.worker.session import Session

            class Data(Dataset):
                def __len__(self): return 64
                def __getitem__(self, index):
                    time.sleep(0.005)
                    return torch.tensor([index, random.random()])

            course.LEAST_STARTS = 0.0
            with Session([("prefetch", {})]):
                iterator = iter(DataLoader(Data(), 4))
                [next(iterator) for _ in range(6)]
                print(open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)
                time.sleep(0.3)  # the copy waits for room by now
                os.kill(os.getpid(), 9)
            """
        )
    )
    done = python(path.name, cwd=path.parent, timeout=200)
    (pid,) = map(int, done.stdout.split())
    until = time.monotonic() + 100
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < until:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break  # nobody has asked after it
        time.sleep(0.1)
    else:
        assert not Path(f"/proc/{pid}").exists()


def test_it_is_undone_in_the_middle_of_an_epoch() -> None:
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    seed()
    plain = epochs(MAKERS["numpy draws"](), 1)
    seed()
    with Session([("prefetch", {})]):
        iterator = iter(MAKERS["numpy draws"]())
        seen: list[Any] = []
        for _ in range(6):
            seen += [list(leaves(next(iterator))), states()]
        assert children()
    assert type(iterator) is _SingleProcessDataLoaderIter and not children()
    assert "overdrive_course" not in vars(iterator)
    for batch in iterator:
        seen += [list(leaves(batch)), states()]
    assert [*seen, states()] == plain


def test_a_program_ends_without_waiting_and_prints_once(
    script: Callable[[str], Path], python: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program forks workers for another loader meanwhile, and its data set prints now and then."""
    path = script(
        textwrap.dedent(
            """
            import random, sys, time
            import torch
            from torch.utils.data import DataLoader, Dataset
            from overdrive.techniques.data.prefetch import course
            from overdrive.worker.session import Session
            from overdrive.techniques.catalogue import catalogue

            class Data(Dataset):
                def __len__(self): return 64
                def __getitem__(self, index):
                    time.sleep(0.001)
                    if index in (30, 31): print("strange sample", index)
                    return torch.tensor([index, random.random()])

            def main(techniques):
                random.seed(1)
                course.LEAST_STARTS = 0.0  # however slow forks are here
                with Session(techniques) as session:
                    loader = DataLoader(Data(), 4)
                    for batch in loader:
                        print(batch.sum().item())
                        other = list(DataLoader(list(range(8)), 4, num_workers=1))
                    iterator = iter(loader)
                    [next(iterator) for _ in range(5)]
                    assert not techniques or catalogue()["prefetch"].crew.taken > 4
                    sys.exit(3)

            main([("prefetch", {})] if sys.argv[1] == "ours" else [])
            """
        )
    )
    told = [python(path.name, arm, cwd=path.parent, timeout=200) for arm in ("plain", "ours")]
    assert told[0].returncode == told[1].returncode == 3, told[1].stderr
    assert told[0].stdout == told[1].stdout and told[0].stderr == told[1].stderr


def test_the_card_says_when_it_cannot_help() -> None:
    facts = Facts(cores=4, shares={"data": 0.5}, loaders=(LoaderFacts(8, 0, True, 100, 0.01),))
    assert technique().applies(facts) is None
    with_workers = (LoaderFacts(8, 2, True, 100, 0.01),)
    assert technique().applies(Facts(device="cuda", cores=4, shares={"data": 0.5}, loaders=with_workers)) is None
    for other in (
        Facts(cores=4, shares={"data": 0.5}, loaders=(LoaderFacts(8, 2, True, 100, 0.01),)),
        Facts(cores=4, shares={"data": 0.01}, loaders=facts.loaders),
        Facts(cores=1, shares={"data": 0.5}, loaders=facts.loaders),
    ):
        assert technique().applies(other)


class Beside:
    """Stands for a GPU: gives copies that can be told from plain ones."""

    needs_pinned = False
    device = torch.device("meta")

    def __init__(self) -> None:
        self.started: list[Any] = []

    def start(self, tensor: Any) -> Callable[[], Any]:
        self.started.append(tensor)
        return lambda: tensor.detach().clone()  # on the CPU: a plain copy would be on "meta"


def test_the_programs_own_move_finds_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside()
    monkeypatch.setattr(iterator.PrefetchManager, "copier", lambda manager: beside)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    moved: list[Any] = []

    def move(loader: Any) -> list[Any]:
        seen: list[Any] = []
        for images, labels in loader:
            seen += [list(leaves([images, labels])), states()]
            if len(moved) % 3 == 2:
                images.add_(1)
            moved.append((images, images.to("meta"), labels.to("meta", non_blocking=True)))
        return seen

    plain, ours, left_out = both(lambda: DataLoader(Augmented("numpy"), 8, shuffle=True), move)
    assert ours == plain
    assert not left_out
    assert taken() > 5
    with_us = moved[len(plain) // 2 :]
    found = [(images, copy, labels) for images, copy, labels in with_us if labels.device.type == "cpu"]
    assert len(found) == taken()
    for images, copy, _ in found:
        number = next(k for k, each in enumerate(moved) if each[0] is images)
        written_to = number % 3 == 2
        assert (copy.device.type == "meta") == written_to
        assert written_to or torch.equal(copy, images)
    assert len(beside.started) >= 2 * taken()
