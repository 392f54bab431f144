"""The technique `sample_cache` on real loaders: the same bits, the same draws, and refusals with reasons."""

from __future__ import annotations

import itertools
import os
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from overdrive.core.facts import Facts, LoaderFacts  # noqa: E402
from overdrive.techniques.data.sample_cache import SampleCache  # noqa: E402
from tests.conftest import long_but  # noqa: E402
from tests.techniques.data import harness  # noqa: E402
from tests.techniques.data.harness import epochs, epochs_with_errors, leaves, seed  # noqa: E402
from tests.warm_trials import Started, warm_trials  # noqa: E402

COUNT = 53


class Images(Dataset):
    """Deterministic; counts in `fetched` (shared with forks) how often a sample is really fetched."""

    def __init__(self, label: Callable[[int], Any] = int, transform: Any = None) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 255, (COUNT, 6, 5, 3), dtype=np.uint8)
        self.label = label
        self.transform = transform

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        image = torch.from_numpy(self.pixels[index]).permute(2, 0, 1).float() / 255
        if self.transform is not None:
            image = self.transform(image)
        return image, self.label(index)


class Getting(Images):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def as_dict(samples: list[Any]) -> dict[str, Any]:
    return {
        "image": torch.stack([image for image, _ in samples]),
        "more": [torch.tensor([label for _, label in samples]), (torch.ones(len(samples), 2),)],
    }


class Run(harness.Run):
    def __init__(self, **settings: float) -> None:
        super().__init__("sample_cache", **settings)
        self.kept: list[Any] = []

    def ends(self) -> None:
        self.kept = self.manager.kept if self.manager else []


def both(make: Callable[[], Any], count: int = 3) -> tuple[list[Any], list[Any], Run]:
    return harness.both(make, lambda loader: epochs(loader, count), Run())


MAKERS: dict[str, Callable[[int], Any]] = {
    "in order": lambda workers: DataLoader(Images(), 8, num_workers=workers),
    "shuffled": lambda workers: DataLoader(Images(), 8, shuffle=True, num_workers=workers),
    "drop_last": lambda workers: DataLoader(Images(), 8, shuffle=True, drop_last=True, num_workers=workers),
    "own generator": lambda workers: DataLoader(
        Images(), 8, shuffle=True, generator=torch.Generator().manual_seed(3), num_workers=workers
    ),
    "weighted": lambda workers: DataLoader(
        Images(), 8, sampler=WeightedRandomSampler(np.arange(1, COUNT + 1), COUNT), num_workers=workers
    ),
    "with replacement": lambda workers: DataLoader(
        Images(),
        8,
        sampler=RandomSampler(range(COUNT), replacement=True, num_samples=90),
        num_workers=workers,
    ),
    "distributed": lambda workers: DataLoader(
        Images(), 8, sampler=DistributedSampler(range(COUNT), 2, 1), num_workers=workers
    ),
    "dicts": lambda workers: DataLoader(Images(), 8, collate_fn=as_dict, num_workers=workers),
    "float labels": lambda workers: DataLoader(Images(float), 8, shuffle=True, num_workers=workers),
    "getitems": lambda workers: DataLoader(Getting(), 8, shuffle=True, num_workers=workers),
    "subset": lambda workers: DataLoader(Subset(Images(), range(3, 40)), 8, shuffle=True, num_workers=workers),
    "a fold's training": lambda workers: DataLoader(
        Images(), 8, sampler=SubsetRandomSampler(np.arange(9, COUNT)), num_workers=workers
    ),
    "a fold's test": lambda workers: DataLoader(
        Images(), 8, sampler=SubsetRandomSampler(np.arange(9)), num_workers=workers
    ),
}


# Each number of workers and each way to fill, and not each with each: that is for a release.
EACH_WAY = pytest.mark.parametrize(
    ("workers", "filling"),
    long_but([(0, "by and by"), (2, "at once")], [(n, how) for n in (0, 2) for how in ("by and by", "at once")]),
    indirect=["filling"],
)


@EACH_WAY
@pytest.mark.parametrize("name", MAKERS)
def test_batches_and_random_states_are_the_same_in_every_bit(name: str, workers: int, filling: str) -> None:
    plain, kept, run = both(lambda: MAKERS[name](workers))
    assert not run.left_out and run.kept
    assert plain == kept


def test_persistent_workers_draw_no_second_seed(filling: str) -> None:
    def make() -> Any:
        return DataLoader(Images(), 8, shuffle=True, num_workers=2, persistent_workers=True)

    plain, kept, run = both(make, 4)
    assert not run.left_out
    assert plain == kept


def test_two_loaders_opened_together_draw_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")

    def pairs() -> list[Any]:
        seed()
        loaders = [DataLoader(Images(), 8, shuffle=True, num_workers=workers) for workers in (2, 0, 1)]
        return [[list(leaves(each)) for each in batches] for batches in zip(*loaders, strict=True)]

    plain = pairs()
    with Run() as run:
        assert pairs() == plain
    assert not run.left_out


class MovingTarget:
    """A sampler that looks at the training, as in hard-example mining."""

    progress = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(COUNT):
            yield (self.progress * 7 + int(torch.randint(0, 5, (1,)))) % COUNT

    def __len__(self) -> int:
        return COUNT


@EACH_WAY
def test_a_sampler_that_watches_the_training_draws_at_the_same_moments(workers: int, filling: str) -> None:
    def run_once() -> list[Any]:
        seed()
        sampler = MovingTarget()
        seen = []
        loader = DataLoader(Images(), 4, sampler=sampler, num_workers=workers)
        for _ in range(3):
            for images, labels in loader:
                sampler.progress += 1
                seen.append((labels.tolist(), list(leaves(images))))
        return seen

    plain = run_once()
    with Run() as run:
        assert run_once() == plain
    assert not run.left_out


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_fetched_once(workers: int, tmp_path: Path) -> None:
    class Noted(Images):
        def __getitem__(self, index: int) -> Any:
            os.write(log_number, f"{index} ".encode())
            return super().__getitem__(index)

    log = str(tmp_path / "log")
    log_number = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    loader = DataLoader(Noted(), 8, shuffle=True, num_workers=workers)
    with Run() as run:
        list(loader)
        Path(log).write_text("")  # of the trial and the first epoch
        list(loader)
        list(loader)
        assert Path(log).read_text() == ""
    os.close(log_number)
    assert not run.left_out


def test_the_loader_is_left_as_it_was(filling: str) -> None:
    loader = DataLoader(Images(), 8, num_workers=2, timeout=50)
    before = dict(vars(loader))
    with Run():
        list(loader)
        list(loader)
    assert dict(vars(loader)) == before


# Refusals


class Augmented(Images):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return (image.flip(-1) if self.draw() < 0.5 else image), label


class ByTorch(Augmented):
    def draw(self) -> float:
        return float(torch.rand(1))


class ByPython(Augmented):
    def draw(self) -> float:
        return random.random()


class ByNumpy(Augmented):
    def draw(self) -> float:
        return float(np.random.rand())


class ByTheSystem(Augmented):
    def draw(self) -> float:
        return random.SystemRandom().random()


class ByItsOwn(Augmented):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)

    def draw(self) -> float:
        return float(self.rng.random())


class Counting(Images):
    seen = 0

    def __getitem__(self, index: int) -> Any:
        self.seen += 1
        return super().__getitem__(index)


class Remembering(Images):
    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.memory:
            self.memory[index] = super().__getitem__(index)
        return self.memory[index]


class Growing(Images):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(index + 1), 0


class Named(Images):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3), f"name {index}"


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        yield from torch.arange(20)


def padded(samples: list[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence([sample for sample, _ in samples], batch_first=True)


def mixed(samples: list[Any]) -> Any:
    images = torch.stack([image for image, _ in samples])
    return images + images.mean(0, keepdim=True) * (len(samples) > 1)


def noisy(samples: list[Any]) -> Any:
    return torch.stack([image for image, _ in samples]) + torch.rand(1)


class ByItsWorker(Images):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        noise = np.random.default_rng((info.seed if info else 0) + index)
        return super().__getitem__(index)[0] + noise.random(), index


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "torch's augmentation": (lambda: DataLoader(ByTorch(), 8), "draws random numbers"),
    "Python's augmentation": (lambda: DataLoader(ByPython(), 8), "draws random numbers"),
    "numpy's augmentation": (lambda: DataLoader(ByNumpy(), 8), "draws random numbers"),
    "the system's augmentation": (lambda: DataLoader(ByTheSystem(), 8), "seeds itself"),
    "its own augmentation": (lambda: DataLoader(ByItsOwn(), 8), "changes the data set"),
    "a counter": (lambda: DataLoader(Counting(), 8), "changes the data set"),
    "a memory of its own": (lambda: DataLoader(Remembering(), 8), "changes the data set"),
    "shapes by workers": (lambda: DataLoader(Growing(), 1, num_workers=1), "cannot be fetched together .*Error"),
    "names by workers": (lambda: DataLoader(Named(), 8, num_workers=1), "other things than tensors"),
    "padding by workers": (lambda: DataLoader(Growing(), 8, collate_fn=padded, num_workers=1), "differ in shape"),
    "mixing by workers": (lambda: DataLoader(Images(), 8, collate_fn=mixed, num_workers=1), "more than samples"),
    "noise by a worker's seed": (lambda: DataLoader(ByItsWorker(), 8, num_workers=1), "change from fetch to fetch"),
    "noise by workers": (lambda: DataLoader(Images(), 8, collate_fn=noisy, num_workers=1), "draws random numbers"),
    "a stream": (lambda: DataLoader(Stream(), 8), "stream"),
    "no batches": (lambda: DataLoader(Images(), batch_size=None), "no batches"),
    "spawned workers": (
        lambda: DataLoader(Images(), 8, num_workers=1, multiprocessing_context="spawn"),
        "not forked",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    make, reason = REFUSED[name]
    loader = make()
    seed()
    with Run() as run:
        iterator = iter(loader)
    del iterator
    assert re.search(reason, run.reason), run.reason


@pytest.mark.parametrize("kind", [ByTorch, ByItsOwn, Counting, Remembering])
def test_what_is_refused_runs_as_without_us(kind: type) -> None:
    plain, kept, run = both(lambda: DataLoader(kind(), 8, shuffle=True))
    assert run.left_out
    assert plain == kept


def small_memory(monkeypatch: pytest.MonkeyPatch, disk: int | None = None) -> None:
    from overdrive.datacache import table_places
    from overdrive.datacache.store import Store

    monkeypatch.setattr(table_places, "available_memory", lambda: 10_000)
    if disk is not None:
        monkeypatch.setattr(Store, "_allowed", lambda self: float(disk))


def test_memory_is_shared_among_the_ranks_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.datacache import table_places
    from overdrive.datacache.store import Store

    monkeypatch.setattr(Store, "_allowed", lambda self: 0.0)
    monkeypatch.setattr(table_places, "available_memory", lambda: 8 * 4 * 90 * COUNT)
    for ranks, fits in (("1", True), ("16", False)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        with Run() as run:
            list(DataLoader(Images(), 8))
        assert (not run.left_out) is fits


def test_refuses_samples_above_the_budgets_of_memory_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    small_memory(monkeypatch, disk=10_000)
    with Run() as run:
        list(DataLoader(Images(), 8))
    assert run.reason == "its samples need 0.0 GB, the budget is 0.0 GB of memory and 0.0 GB of disk"


def test_samples_above_the_budget_of_memory_lie_on_disk(
    monkeypatch: pytest.MonkeyPatch, folder: Path, filling: str
) -> None:
    small_memory(monkeypatch)
    plain, kept, run = both(lambda: DataLoader(Images(), 8, shuffle=True))
    assert plain == kept and not run.left_out
    assert run.kept[0].table.complete and len(tables(folder)) == 1


def test_a_disk_in_memory_is_no_relief_for_it(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    from overdrive.datacache import disk, store

    assert disk.lies_in_memory(Path("/dev/shm")) or not Path("/dev/shm").exists()
    small_memory(monkeypatch)
    monkeypatch.setattr(store, "lies_in_memory", lambda folder: True)
    with Run() as run:
        list(DataLoader(Images(), 8))
    assert "0.0 GB of disk" in run.reason and tables(folder) == []


def test_samples_that_cannot_be_written_down_must_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    class Locked(Images):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    small_memory(monkeypatch)
    with Run() as run:
        list(DataLoader(Locked(), 8))
    assert "0.0 GB of disk (it holds a lock" in run.reason


def test_rare_draws_are_found_while_the_samples_are_first_fetched() -> None:
    class Rare(Images):
        def __getitem__(self, index: int) -> Any:
            image, label = super().__getitem__(index)
            return (image + torch.rand(1) if index == 17 else image), label

    plain, kept, run = both(lambda: DataLoader(Rare(), 8, shuffle=True))
    assert plain == kept
    assert run.left_out and "draws random numbers" in run.reason


def test_a_sample_whose_batches_lie_in_memory_in_another_way_is_not_kept_as_the_others() -> None:
    """Kernels go another way by that, and round otherwise."""

    def turned(samples: list[Any]) -> Any:
        images, labels = torch.stack([image for image, _ in samples]), [label for _, label in samples]
        rare = torch.contiguous_format if 17 in labels else torch.channels_last
        return images.contiguous(memory_format=rare), torch.tensor(labels)

    plain, kept, run = both(lambda: DataLoader(Images(), 8, shuffle=True, collate_fn=turned))
    assert plain == kept
    assert run.left_out and "differ in shape or kind" in run.reason


def test_one_refused_loader_leaves_the_others_kept() -> None:
    train, test = DataLoader(ByTorch(), 8, shuffle=True), DataLoader(Images(), 8)
    with Run() as run:
        list(train)
        list(test)
        assert run.manager.useful
    assert not run.left_out and "draws random numbers" in run.manager.reasons[0]


# Changes


class WithEpoch(Images):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image + self.epoch, label


def change_epoch(data: Any, step: int) -> None:
    data.set_epoch(step)


def change_transform(data: Any, step: int) -> None:
    if step == 2:
        data.transform = torch.neg


def change_pixels(data: Any, step: int) -> None:
    if step == 2:
        data.pixels[5] += 1


@pytest.mark.parametrize("change", [change_epoch, change_transform, change_pixels])
@EACH_WAY
def test_a_data_set_that_is_changed_between_epochs_is_fetched_anew(change: Any, workers: int, filling: str) -> None:
    def run_once() -> list[Any]:
        seed()
        data = WithEpoch()
        loader = DataLoader(data, 8, shuffle=True, num_workers=workers)
        seen = []
        for step in range(4):
            change(data, step)
            seen.append([list(leaves(batch)) for batch in loader])
        return seen

    plain = run_once()
    with Run() as run:
        assert run_once() == plain
    assert any("changed" in reason for reason in run.manager.reasons)


@EACH_WAY
@pytest.mark.parametrize("persistent", [False, True])
def test_a_change_in_the_midst_of_an_epoch_is_seen_as_without_us(workers: int, persistent: bool, filling: str) -> None:
    if persistent and not workers:
        pytest.skip("there are no workers to persist")

    def run_once() -> list[Any]:
        seed()
        data = WithEpoch()
        loader = DataLoader(data, 2, num_workers=workers, persistent_workers=persistent, prefetch_factor=None)
        seen = []
        for step in range(3):
            for number, batch in enumerate(loader):
                if number == 20 and step == 1:
                    data.set_epoch(9)
                seen.append(list(leaves(batch)))
        return seen

    plain = run_once()
    with Run():
        assert run_once() == plain


def test_changing_a_batch_in_place_changes_no_later_one() -> None:
    def run_once() -> list[Any]:
        seed()
        loader = DataLoader(Images(), 8)
        seen = []
        for _ in range(3):
            for images, labels in loader:
                seen.append(list(leaves([images, labels])))
                images.mul_(-3)
        return seen

    plain = run_once()
    with Run() as run:
        assert run_once() == plain
    assert not run.left_out


@pytest.mark.parametrize("hold", ["all", "views", "arrays", "every other one"])
def test_batches_that_the_program_holds_stay_as_they_were(hold: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    holders: dict[str, Callable[[Any], Any]] = {
        "all": lambda batch: batch,
        "views": lambda batch: [batch[0][1:], batch[1][::2]],
        "arrays": lambda batch: [each.numpy() for each in batch],
    }

    def run_once() -> list[Any]:
        seed()
        held = []
        for _ in range(2):
            for number, batch in enumerate(DataLoader(Images(), 4, shuffle=True)):
                if hold != "every other one" or number % 2:
                    held.append(holders.get(hold, list)(batch))
        return [list(leaves(batch)) for batch in held]

    plain = run_once()
    with Run() as run:
        assert run_once() == plain
    assert not run.left_out


# Errors


class Corrupt(Images):
    def __getitem__(self, index: int) -> Any:
        if index == 30:
            raise OSError("image file is truncated")
        return super().__getitem__(index)


@EACH_WAY
def test_a_corrupt_image_raises_the_same_error_at_the_same_batch(workers: int, filling: str) -> None:
    def run_once() -> list[Any]:
        seed()
        loader = DataLoader(Corrupt(), 4, shuffle=True, num_workers=workers)
        return epochs_with_errors(loader, told=lambda error: str(error).splitlines()[-1])

    plain = run_once()
    with Run() as run:
        assert run_once() == plain
    assert not run.left_out


def test_a_data_set_that_fails_at_once_fails_as_without_us() -> None:
    class Broken(Images):
        def __getitem__(self, index: int) -> Any:
            raise KeyError(index)

    with Run() as run, pytest.raises(KeyError, match="0"):
        list(DataLoader(Broken(), 8))
    assert "KeyError" in run.reason


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch, filling: str) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    plain, kept, run = both(lambda: DataLoader(Images(), 8, shuffle=True))
    assert plain == kept and not run.left_out


# Between processes


def tables(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_what_a_run_left_unfinished_the_next_goes_on_with(folder: Path) -> None:
    """A tune's trials end after some steps: each read the first samples of a large data set again."""

    def make() -> Any:
        return DataLoader(Images(), 8)

    for batches in (2, 1, 3):
        with Run():
            list(itertools.islice(make(), batches))
    (left,) = tables(folder)
    assert left.startswith("partial") and not list((folder / left).glob("writes-*"))
    with Run() as run:
        next(iter(make()))
    assert run.kept[0].table.missing == COUNT - 24
    plain, kept, run = both(make)
    assert plain == kept and not run.left_out and tables(folder) == [left.removeprefix("partial-")]


def test_a_second_run_finds_the_samples_of_the_first(folder: Path) -> None:
    def make() -> Any:
        return DataLoader(Images(), 8, shuffle=True)

    with Run():
        list(make())
    first = tables(folder)
    assert len(first) == 1 and not first[0].startswith("partial")
    plain, kept, run = both(make)
    assert plain == kept and tables(folder) == first
    assert run.kept[0].table.complete and run.kept[0].table.leaves[0].flags.writeable is False


PROGRAM = """
    import os, sys, zlib, torch
    from torch.utils.data import DataLoader, Dataset
    from overdrive.worker.session import Session

    class Files(Dataset):
        def __init__(self, root):
            self.root, self.names = root, sorted(os.listdir(root))
        def __len__(self):
            return len(self.names)
        def __getitem__(self, index):
            with open(os.path.join(self.root, self.names[index]), "rb") as file:
                return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8) * FACTOR, index

    FACTOR = 1

    if __name__ == "__main__":
        torch.manual_seed(1)
        left_out = []
        with Session([("sample_cache", {})], on_left_out=lambda *why: left_out.append(why)):
            crc = 0
            for epoch in range(2):
                for number, (x, y) in enumerate(DataLoader(Files(sys.argv[1]), 4, shuffle=True)):
                    crc = zlib.crc32(x.numpy().tobytes(), crc)
                    if sys.argv[2:] == ["killed"] and number == 3:
                        os.kill(os.getpid(), 9)
        print(crc, left_out)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(30):
        (root / f"{number:02d}.bin").write_bytes(bytes([number] * 10))
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    old = script.stat().st_mtime - 100
    os.utime(script, (old, old))
    return script


def start(program: Path, *arguments: str) -> Started:
    return warm_trials().script(str(program), str(program.parent / "data"), *arguments)


def output(program: Path, *arguments: str) -> str:
    return start(program, *arguments).communicate(timeout=100)[0]


def test_runs_share_samples_until_a_file_or_the_source_changes(program: Path, folder: Path) -> None:
    first = output(program)
    assert first.endswith("[]\n") and len(tables(folder)) == 1
    assert output(program) == first and len(tables(folder)) == 1

    image = program.parent / "data" / "07.bin"
    image.write_bytes(bytes([200] * 10))
    second = output(program)
    assert second != first and second.endswith("[]\n") and len(tables(folder)) == 2

    program.write_text(program.read_text().replace("FACTOR = 1", "FACTOR = 2"))
    os.utime(program, (1e9, 1e9))
    third = output(program)
    assert third != second and third.endswith("[]\n") and len(tables(folder)) == 3


def test_damaged_samples_are_fetched_anew(program: Path, folder: Path) -> None:
    first = output(program)
    for damage in ("truncated", "one bit", "manifest"):
        (place,) = folder.iterdir()
        raw = place / "0.raw"
        data = bytearray(raw.read_bytes())
        if damage == "truncated":
            raw.write_bytes(data[:-1])
        elif damage == "one bit":
            data[123] ^= 4
            raw.write_bytes(data)
        else:
            (place / "manifest.json").write_text('{"format": 1, "layout": 3}')
        assert output(program) == first, damage
        (place,) = folder.iterdir()
        assert len((place / "0.raw").read_bytes()) == 300
        assert data != bytearray((place / "0.raw").read_bytes()) or damage != "one bit"


def test_two_processes_may_fill_at_once(program: Path, folder: Path) -> None:
    alone = output(program)
    for each in folder.iterdir():
        for file in each.iterdir():
            file.unlink()
        each.rmdir()
    together = [start(program) for _ in range(2)]
    assert {each.communicate(timeout=200)[0] for each in together} == {alone}
    assert len(tables(folder)) == 1 and output(program) == alone


def test_a_killed_fill_does_no_harm(program: Path, folder: Path) -> None:
    killed = start(program, "killed")
    killed.communicate(timeout=100)
    assert killed.returncode == -9 and tables(folder)[0].startswith("partial")
    assert output(program).endswith("[]\n")
    (name,) = tables(folder)
    assert not name.startswith("partial")


# Conditions


# A folder that `overdrive pack --samples decoded` wrote


@pytest.fixture
def packed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as at_once:
        at_once.setenv("OVERDRIVE_PREFILL", "1")
        with Run():
            epochs(DataLoader(Images(), 8), 1)
    return folder.rename(tmp_path / "packed")


def test_samples_come_from_a_folder_that_is_named(packed: Path, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in packed.rglob("*")}
    make = lambda: DataLoader(Images(), 8, shuffle=True)  # noqa: E731
    seed()
    plain = epochs(make())
    seed()
    with Run(folder=str(packed)) as run:
        assert epochs(make()) == plain
    assert not run.left_out and run.kept[0].table.complete and not run.kept[0].table.writable
    assert not folder.exists() and {path: path.stat().st_mtime_ns for path in packed.rglob("*")} == before


def flip_a_bit(packed: Path) -> None:
    (raw, *_) = sorted(packed.glob("*/0.raw"))
    data = bytearray(raw.read_bytes())
    data[5] ^= 1
    raw.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "make", "reason"),
    [
        (flip_a_bit, lambda: Images(), "holds no samples that are this data set's"),
        (None, lambda: Getting(), "holds no samples that are this data set's"),
        (lambda packed: packed.rename(packed.with_name("gone")), lambda: Images(), "cannot be used"),
        (lambda packed: packed.chmod(0o777), lambda: Images(), "others may write to it"),
    ],
)
def test_a_folder_without_these_samples_is_left_out_with_the_reason(
    harm: Any, make: Any, reason: str, packed: Path, folder: Path
) -> None:
    if harm is not None:
        harm(packed)
    names = sorted(packed.glob("*/*"))
    seed()
    plain = epochs(DataLoader(make(), 8))
    seed()
    with Run(folder=str(packed)) as run:
        assert epochs(DataLoader(make(), 8)) == plain
    assert reason in run.reason
    assert not folder.exists() and sorted(packed.glob("*/*")) == names, "nothing is made or removed"


def test_applies_where_a_program_waits_for_data() -> None:
    loader = LoaderFacts(batch_size=8, workers=0, map_style=True, length=50, seconds_per_batch=0.1)
    facts = Facts(loaders=(loader,), shares={"data": 0.5})
    assert SampleCache().applies(facts) is None
    assert "1%" in str(SampleCache().applies(Facts(loaders=(loader,), shares={"data": 0.01})))
    assert "map-style" in str(SampleCache().applies(Facts(shares={"data": 0.5})))


def test_whether_items_draw_decides_before_any_trial() -> None:
    def reason(*draws: bool | None) -> str | None:
        loaders = tuple(LoaderFacts(8, 0, True, 50, 0.1, draws=each) for each in draws)
        return SampleCache().applies(Facts(loaders=loaders, shares={"data": 0.5}))

    assert "draws random numbers" in str(reason(True)) and "draws random numbers" in str(reason(True, True))
    assert reason(None) is None and reason(False) is None and reason(True, False) is None and reason(True, None) is None


def test_tensors_in_memory_are_kept_as_well() -> None:
    data = torch.arange(300.0).reshape(100, 3)

    def make() -> Any:
        return DataLoader(TensorDataset(data, data.bfloat16(), data.bool()), 7, shuffle=True)

    def once() -> list[Any]:
        seed()
        return [[each.clone() for each in batch] for _ in range(2) for batch in make()]

    plain = once()
    with Run() as run:
        kept = once()
    assert not run.left_out
    pairs = [pair for each in zip(plain, kept, strict=True) for pair in zip(*each, strict=True)]
    assert all(torch.equal(a, b) for a, b in pairs)
