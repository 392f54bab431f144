"""The technique `prefix_cache` on real loaders: the same bits, the same draws, and refusals with reasons."""

from __future__ import annotations

import functools
import json
import mmap
import os
import random
import re
import textwrap
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    random_split,
)

from overdrive.core.facts import Facts, LoaderFacts  # noqa: E402
from overdrive.datacache import draws  # noqa: E402
from overdrive.datacache import filler as filler_module  # noqa: E402
from overdrive.datacache.sameness import same  # noqa: E402
from overdrive.techniques.data.prefix_cache import proving  # noqa: E402
from overdrive.techniques.data.prefix_cache.serving import Served  # noqa: E402
from overdrive.techniques.data.prefix_cache.technique import PrefixCache  # noqa: E402
from tests.conftest import long_but  # noqa: E402
from tests.techniques.data import harness  # noqa: E402
from tests.techniques.data.harness import epochs, seed, states  # noqa: E402
from tests.warm_trials import Started, warm_trials  # noqa: E402

COUNT = 41
PACKED = [
    zlib.compress(np.random.default_rng(k).integers(0, 8, (64, 64, 3), dtype=np.uint8).tobytes()) for k in range(COUNT)
]


def unpack(packed: bytes) -> Any:
    return np.frombuffer(bytearray(zlib.decompress(packed)), dtype=np.uint8).reshape(64, 64, 3)


class Packed(Dataset):
    """Decodes first, then augments with whatever `draw` draws from."""

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self.packed = PACKED
        self.draw = draw
        self.factor = 1

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> Any:
        image = unpack(self.packed[index]) * self.factor
        if self.draw() < 0.5:
            image = image[:, ::-1].copy()
        top = int(self.draw() * 32)
        return torch.from_numpy(image[top : top + 32].copy()), index


class InOneLine(Packed):
    def __getitem__(self, index: int) -> Any:
        return self.crop(unpack(self.packed[index])), self.label(index)

    def crop(self, image: Any) -> Any:
        top = int(torch.randint(0, 32, (1,)))
        return torch.from_numpy(image[top : top + 32].copy())

    def label(self, index: int) -> int:
        return index % 3


class BySuper(Packed):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image + torch.rand(1), label


class ByItsOwn(Packed):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)
        self.draw = self.rng.random


class Growing(Packed):
    """Each sample is of another size before it is cropped."""

    def __getitem__(self, index: int) -> Any:
        image = self.decoded(index)
        noise = torch.rand(1)
        return torch.from_numpy(image[:1]) + noise, index

    def decoded(self, index: int) -> Any:
        return unpack(self.packed[index])[: index + 1].copy()


class Wrapped(Dataset):
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


class Decoded(Packed):
    """Draws nothing."""

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(unpack(self.packed[index])), index


class Augmenting(Wrapped):
    """A wrapper that augments what the wrapped one decoded."""

    def __getitem__(self, index: int) -> Any:
        image, label = self.data[index]
        return image.flip(0) if torch.rand(1) < 0.5 else image, label


class InTurn:
    def __init__(self, *steps: Any) -> None:
        self.steps = steps

    def __call__(self, thing: Any) -> Any:
        for step in self.steps:
            thing = step(thing)
        return thing


class Module(nn.Module):
    def __init__(self, step: Any) -> None:
        super().__init__()
        self.step = step

    def forward(self, thing: Any) -> Any:
        return self.step(thing)


def halved(image: Any) -> Any:
    return np.ascontiguousarray(image[::2, ::2])


def as_tensor(image: Any) -> Any:
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


def flipped(image: Any) -> Any:
    return image.flip(-1) if torch.rand(1) < 0.5 else image


def noisy(image: Any) -> Any:
    return image + np.random.rand()


class Transformed(Packed):
    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        image = unpack(self.packed[index])
        if self.transform is not None:
            image = self.transform(image)
        return image, index


@pytest.fixture
def filling(any_filling: str) -> str:
    return any_filling


# Each way to fill and each number of workers, not each with each.
EACH_WAY = pytest.mark.parametrize(
    ("workers", "any_filling"),
    [(0, "at once"), pytest.param(0, "by and by", marks=pytest.mark.long), (2, "beside")],
    indirect=["any_filling"],
)


class Run(harness.Run):
    def __init__(self, *others: str) -> None:
        super().__init__("prefix_cache", *others)
        self.served: list[Served] = []
        self.reasons: list[str] = []

    def ends(self) -> None:
        halving = self.session.handles["prefix_cache"].halving  # type: ignore[attr-defined]
        self.served = list(halving._served.values()) if halving else []
        self.reasons = halving.reasons if halving else []


def both(make: Callable[[], Any], count: int = 3) -> tuple[list[Any], list[Any], Run]:
    return harness.both(make, lambda loader: epochs(loader, count), Run())


MAKERS: dict[str, Callable[[], Any]] = {
    "Python's random numbers": Packed,
    "numpy's": lambda: Packed(np.random.rand),
    "torch's": lambda: Packed(lambda: float(torch.rand(1))),
    "its own": ByItsOwn,
    "in one line": InOneLine,
    "sizes": Growing,
    "by super": BySuper,
    "subset": lambda: Subset(Packed(), range(3, 40)),
    "numpy's indices": lambda: Subset(Packed(), np.random.default_rng(0).permutation(COUNT)[:30]),
    "split": lambda: random_split(Packed(), [30, 11])[0],
    "joined": lambda: ConcatDataset([Packed(), InOneLine(), Packed()]),
    "wrapped": lambda: Wrapped(Subset(Wrapped(Packed()), range(30))),
    "augmenting wrapper": lambda: Augmenting(Decoded()),
    "list": lambda: Transformed(InTurn(halved, as_tensor, flipped, noisy)),
    "list that draws at once": lambda: Transformed(InTurn(noisy, halved)),
    "nn.Sequential": lambda: Transformed(nn.Sequential(Module(halved), Module(as_tensor), Module(flipped))),
    "list in a list": lambda: Transformed(InTurn(InTurn(halved, as_tensor), InTurn(flipped, noisy))),
}


@pytest.mark.parametrize(("workers", "at_once"), long_but([(2, "0")], [(0, "1"), (2, "0")]))
@pytest.mark.parametrize("name", long_but(("torch's", "in one line", "sizes", "joined", "list in a list"), MAKERS))
def test_batches_and_random_states_are_the_same_in_every_bit(
    name: str, workers: int, at_once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERDRIVE_PREFILL", at_once)
    plain, kept, run = both(lambda: DataLoader(MAKERS[name](), 8, shuffle=True, num_workers=workers))
    assert not run.left_out and not run.reasons
    assert run.served and all(served.kept.table.present.any() for served in run.served)
    assert same(plain, kept)


def test_without_batches_too() -> None:
    plain, kept, run = both(lambda: DataLoader(Packed(), batch_size=None, shuffle=True))
    assert not run.left_out and same(plain, kept)


def chain_of(run: Run) -> Any:
    (served,) = run.served
    return served.prefix.chain


def test_transforms_before_the_first_random_one_are_kept_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    number = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def noted(image: Any) -> Any:
        os.write(number, b"noted")
        return halved(image)

    data = Transformed(InTurn(noted, as_tensor, flipped, noisy))
    with Run() as run:
        list(DataLoader(data, 8))
        log.write_text("")
        list(DataLoader(data, 8))
    os.close(number)
    assert chain_of(run).moved == 2 and log.read_text() == ""
    assert data.transform.steps[0] is noted


class Sometimes(Transformed):
    """Where a rare label comes up, the image does not go through the list."""

    def __getitem__(self, index: int) -> Any:
        image = unpack(self.packed[index])
        if index != 17:
            image = self.transform(image)
        return torch.as_tensor(image)[:3, :3, :3] + torch.rand(1), index


def test_a_sample_that_goes_another_way_than_those_that_were_tried_is_made_by_the_real_method(filling: str) -> None:
    def make() -> Any:
        return DataLoader(Sometimes(InTurn(halved, as_tensor, flipped)), 1, shuffle=True)

    plain, kept, run = both(make)
    assert chain_of(run).moved == 2 and not run.left_out
    assert same(plain, kept)


def change_list(data: Any) -> None:
    data.transform.steps = (halved, as_tensor, lambda image: flipped(image) + 1)


def change_transform(data: Any) -> None:
    data.transform = InTurn(as_tensor, flipped)


@pytest.mark.parametrize("change", [change_list, change_transform])
@EACH_WAY
def test_another_list_is_noticed(change: Any, workers: int, filling: str) -> None:
    def run_once() -> list[Any]:
        seed()
        data = Transformed(InTurn(halved, as_tensor, flipped))
        loader = DataLoader(data, 8, num_workers=workers)
        seen = epochs(loader, 2)
        change(data)
        return seen + epochs(loader, 2)

    plain = run_once()
    with Run():
        assert same(plain, run_once())


def test_a_data_set_is_looked_through_once_where_a_loader_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[Any] = []
    real = draws.reachable

    def counted(root: Any, *more: Any) -> Any:
        walks.append(root)
        return real(root, *more)

    monkeypatch.setattr(draws, "reachable", counted)
    loader = DataLoader(Packed(), 8)
    with Run() as run:
        epochs(loader, 2)
    assert not run.left_out
    assert len(walks) == 1, "of this process; what forked ones do is not seen here"


class Counted(Packed):
    """Notes in a file, which forks share, each sample that is decoded."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.number = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def decoded(self, index: int) -> Any:
        os.write(self.number, f"{index} ".encode())
        return unpack(self.packed[index])

    def __getitem__(self, index: int) -> Any:
        image = self.decoded(index)
        return torch.from_numpy(image) + torch.rand(1), index


def wait_for_fillers(run: Run) -> None:
    halving = run.handle.halving
    limit = time.monotonic() + 60
    for served in halving._served.values() if halving else ():
        while served.kept.filler.beside:
            assert time.monotonic() < limit, "they do not come to an end"
            served.kept.filler.look()
            time.sleep(0.005)


@EACH_WAY
def test_samples_are_decoded_once(workers: int, tmp_path: Path, filling: str) -> None:
    log = tmp_path / "log"
    data = Counted(log)
    loader = DataLoader(data, 8, shuffle=True, num_workers=workers)
    with Run() as run:
        list(loader)
        wait_for_fillers(run)
        log.write_text("")  # of the trial and the first epoch
        list(loader)
        list(loader)
        assert log.read_text() == ""
    assert not run.left_out
    list(loader)
    assert len(log.read_text().split()) == COUNT  # the session has ended
    os.close(data.number)


def test_idle_cores_make_first_halves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filler_module, "WORTH_FILLING_BESIDE", 0.0)
    loader = DataLoader(Packed(), 4, shuffle=True)
    seed()
    plain = [*loader, *loader]
    with Run() as run:
        seed()
        batches = iter(loader)
        kept = [next(batches)]
        halving = run.handle.halving
        assert halving is not None
        (served,) = halving._served.values()
        assert served.kept.filler.beside
        wait_for_fillers(run)  # nothing is fetched here meanwhile
        assert served.kept.table.present.all()
        kept += [*batches, *loader]
    assert not run.left_out and same(plain, kept)


def test_idle_cores_leave_other_machines_shares_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filler_module, "WORTH_FILLING_BESIDE", 0.0)
    monkeypatch.setenv("OVERDRIVE_PREFILL", "0")

    def make() -> Any:
        data = Packed()
        sampler: Any = DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
        return DataLoader(data, 4, sampler=sampler)

    seed()
    loader = make()
    plain = [*loader, *loader]
    with Run() as run:
        seed()
        loader = make()
        kept = [*loader, *loader]
        (served,) = run.handle.halving._served.values()
        assert not served.kept.filler.beside
        there = set(np.flatnonzero(served.kept.table.present).tolist())
        assert there == set(loader.sampler)
    assert not run.left_out and same(plain, kept)


def test_no_trace_is_left(filling: str) -> None:
    before, data = dict(vars(Packed)), Packed()
    space = dict(vars(data))
    with Run():
        list(DataLoader(data, 8))
        assert vars(Packed)["__getitem__"] is not before["__getitem__"]
    assert dict(vars(Packed)) == before and vars(data) == space


# Refusals


class DrawingFirst(Packed):
    def __getitem__(self, index: int) -> Any:
        chosen = index if self.draw() < 0.5 else 0
        return torch.from_numpy(unpack(self.packed[chosen])), index


class OtherSamples(Packed):
    """Each sample is another one in turn: what is decoded depends on a counter."""

    turn = 0

    def __getitem__(self, index: int) -> Any:
        self.turn += 1
        image = unpack(self.packed[(index + self.turn) % COUNT])
        return torch.from_numpy(image) + torch.rand(1), index


class Remembering(Packed):
    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.memory:
            self.memory[index] = unpack(self.packed[index])
        return torch.from_numpy(self.memory[index]) + torch.rand(1), index


class OfTheSystem(Packed):
    def __getitem__(self, index: int) -> Any:
        image = unpack(self.packed[index]) + random.SystemRandom().randrange(100)
        return torch.from_numpy(image) + torch.rand(1), index


class Trivial(Packed):
    def __getitem__(self, index: int) -> Any:
        packed = self.packed[index]
        return torch.rand(1), len(packed)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from torch.arange(20)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "draws before it decodes": (lambda: DataLoader(DrawingFirst(), 8), "takes only|before it does anything"),
    "no draws": (lambda: DataLoader(Decoded(), 8), "sample_cache keeps its samples whole"),
    "a counter": (lambda: DataLoader(OtherSamples(), 8), "writes to the OtherSamples"),
    "a memory": (lambda: DataLoader(Remembering(), 8), "changes what|takes only|not all made in one way|reads packed"),
    "the system's numbers": (lambda: DataLoader(OfTheSystem(), 8), "not the same in every bit"),
    "nothing to decode": (lambda: DataLoader(Trivial(), 8), "takes only"),
    "a stream": (lambda: DataLoader(Stream(), 8), "stream"),
    "a small part": (lambda: DataLoader(Subset(Packed(), range(4)), 2), "small part"),
    "spawned workers": (lambda: DataLoader(Packed(), 8, num_workers=1, multiprocessing_context="spawn"), "not forked"),
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


@pytest.mark.parametrize("kind", [DrawingFirst, OtherSamples, Remembering])
def test_what_is_refused_runs_as_without_us(kind: type) -> None:
    plain, kept, run = both(lambda: DataLoader(kind(), 8, shuffle=True))
    assert run.left_out and same(plain, kept)


def test_refuses_samples_above_the_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.datacache import table_places
    from overdrive.datacache.store import Store

    monkeypatch.setattr(table_places, "available_memory", lambda: 10_000)
    monkeypatch.setattr(Store, "_allowed", lambda self: 10_000.0)
    with Run() as run:
        list(DataLoader(Packed(), 8))
    assert run.reason == "its samples need 0.0 GB, the budget is 0.0 GB of memory and 0.0 GB of disk"


class Rare(Packed):
    """One sample draws before it decodes, one returns early, one reads what the others never do."""

    special = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.secret = 2.0

    def __getitem__(self, index: int) -> Any:
        shift = random.random() if index == 16 else 0.0
        if index == 17:
            return torch.ones(64, 64, 3) * random.random(), index
        if index == 19:  # none of these three is among the dozen that are tried
            shift = self.secret
        image = unpack(self.packed[index])
        return torch.from_numpy(image) + torch.rand(1) + shift, index


def test_samples_unlike_those_that_were_tried_are_fetched_for_real(filling: str) -> None:
    plain, kept, run = both(lambda: DataLoader(Rare(), 1, shuffle=True))
    (served,) = run.served
    assert not run.left_out and np.flatnonzero(~served.kept.table.present).tolist() == [16, 17, 19]
    assert same(plain, kept)


def test_samples_much_larger_than_those_that_were_tried_are_fetched_for_real(filling: str) -> None:
    class Large(Growing):
        def decoded(self, index: int) -> Any:
            image = unpack(self.packed[index])
            return np.tile(image, (5 if index == 17 else 1 + index % 2, 1, 1))

    plain, kept, run = both(lambda: DataLoader(Large(), 8, shuffle=True))
    (served,) = run.served
    assert np.flatnonzero(~served.kept.table.present).tolist() == [17]
    assert same(plain, kept)


# Changes


def change_factor(data: Any, step: int) -> None:
    data.factor = step + 1


def change_packed(data: Any, step: int) -> None:
    data.packed = data.packed[::-1]


def change_in_place(data: Any, step: int) -> None:
    if step == 0:
        data.packed = list(data.packed)
    data.packed[3] = data.packed[step]


def change_class(data: Any, step: int) -> None:
    type(data).decode = staticmethod(lambda packed: unpack(packed) + step)


def change_class_value(data: Any, step: int) -> None:
    type(data).shift = step + 1


class Decoding(Packed):
    decode = staticmethod(unpack)
    shift = 0

    def __getitem__(self, index: int) -> Any:
        image = self.decode(self.packed[index]) * self.factor + type(self).shift
        return torch.from_numpy(image) + torch.rand(1), index


CHANGES = (change_factor, change_packed, change_in_place, change_class, change_class_value)
WAYS = ((0, "at once"), (0, "by and by"), (2, "beside"))


@pytest.mark.parametrize(
    ("change", "workers", "any_filling"),
    long_but(
        [*((change, 0, "at once") for change in CHANGES), (change_factor, 2, "beside"), (change_class, 2, "beside")],
        [(change, *way) for change in CHANGES for way in WAYS],
    ),
    indirect=["any_filling"],
)
def test_a_data_set_that_is_changed_between_epochs_is_decoded_anew(change: Any, workers: int, filling: str) -> None:
    def run_once() -> list[Any]:
        seed()
        data = Decoding()
        loader = DataLoader(data, 8, shuffle=True, num_workers=workers)
        seen = []
        for step in range(4):
            seen.append(epochs(loader, 1))
            change(data, step)
        Decoding.decode, Decoding.shift = staticmethod(unpack), 0  # type: ignore[method-assign]
        return seen

    plain = run_once()
    with Run():
        assert same(plain, run_once())


@pytest.mark.parametrize("persistent", [False, True])
@EACH_WAY
def test_a_change_in_the_midst_of_an_epoch_is_seen_as_without_us(workers: int, persistent: bool, filling: str) -> None:
    if persistent and not workers:
        pytest.skip("there are no workers to persist")

    def run_once() -> list[Any]:
        seed()
        data = Packed()
        loader = DataLoader(data, 2, num_workers=workers, persistent_workers=persistent, prefetch_factor=None)
        seen = []
        for step in range(3):
            for number, batch in enumerate(loader):
                if number == 10 and step == 1:
                    data.factor = 9
                seen.append(batch)
        return seen

    plain = run_once()
    with Run():
        assert same(plain, run_once())


def test_setting_what_only_the_second_half_reads_changes_nothing() -> None:
    def run_once() -> Any:
        seed()
        data = Packed()
        loader = DataLoader(data, 8)
        seen = epochs(loader, 1)
        data.draw = np.random.rand
        return seen + epochs(loader, 2)

    plain = run_once()
    with Run() as run:
        assert same(plain, run_once())
        assert run.handle.halving.useful
    assert not run.reasons


def test_changing_a_sample_in_place_changes_no_later_one() -> None:
    class InPlace(Packed):
        def __getitem__(self, index: int) -> Any:
            image = torch.from_numpy(unpack(self.packed[index])).float()
            image.add_(torch.rand(1))
            return image, index

    plain, kept, run = both(lambda: DataLoader(InPlace(), 8, shuffle=True))
    assert not run.left_out and same(plain, kept)


# Errors


class Corrupt(Packed):
    def __getitem__(self, index: int) -> Any:
        packed = self.packed[index] if index != 30 else b"damaged"
        image = torch.from_numpy(unpack(packed))
        if index == 31:
            raise OSError("the second half fails too")
        return image + torch.rand(1), index


@EACH_WAY
def test_a_corrupt_image_raises_the_same_error_at_the_same_batch(workers: int, filling: str) -> None:
    def run_once() -> list[Any]:
        seed()
        loader = DataLoader(Corrupt(), 4, shuffle=True, num_workers=workers)
        seen: list[Any] = []
        for _ in range(3):
            iterator = iter(loader)
            while True:
                try:
                    seen.append(next(iterator))
                except (OSError, zlib.error) as error:
                    seen.append(str(error).splitlines()[-1])
                except StopIteration:
                    break
            seen.append(states())
        return seen

    plain = run_once()
    with Run() as run:
        assert same(plain, run_once())
    assert not run.left_out
    assert any("incorrect header" in each for each in plain if isinstance(each, str))


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch, filling: str) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    plain, kept, run = both(lambda: DataLoader(Packed(), 8, shuffle=True))
    assert same(plain, kept) and not run.left_out


# With others


@EACH_WAY
def test_sample_cache_keeps_what_draws_nothing(workers: int, filling: str) -> None:
    def run_once() -> list[Any]:
        seed()
        train = DataLoader(Transformed(InTurn(halved, as_tensor, flipped)), 8, shuffle=True, num_workers=workers)
        test = DataLoader(Transformed(InTurn(halved, as_tensor)), 8, num_workers=workers)
        return [epochs(loader, 1) for _ in range(3) for loader in (train, test)]

    plain = run_once()
    with Run("sample_cache") as run:
        assert same(plain, run_once())
        kept = run.manager._kept
        assert len(kept) == 1 and kept[0].dropped is None
    assert not run.left_out and len(run.served) == 1


# Between processes

PROGRAM = """
    import os, sys, random, torch, zlib
    import numpy as np
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from overdrive.worker.session import Session

    RAGGED = int(sys.argv[3])

    class Pictures(Dataset):
        def __init__(self, root):
            self.paths = [os.path.join(root, name) for name in sorted(os.listdir(root))]
        def __len__(self):
            return len(self.paths)
        def __getitem__(self, index):
            image = Image.open(self.paths[index]).convert("RGB").resize((32 + RAGGED * (index % 5), 32))
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            return torch.from_numpy(np.array(image)), index

    if __name__ == "__main__":
        random.seed(1)
        torch.manual_seed(1)
        left_out = []
        with Session([("prefix_cache", {})], on_left_out=lambda *why: left_out.append(why)) as session:
            crc = 0
            loader = DataLoader(Pictures(sys.argv[1]), 1 if RAGGED else 4, shuffle=True, num_workers=int(sys.argv[2]))
            for epoch in range(2):
                for x, y in loader:
                    crc = zlib.crc32(x.numpy().tobytes(), crc)
                if epoch == 0:
                    halving = session.handles["prefix_cache"].halving
                    found = [not each.kept.table.writable for each in halving._served.values()]
        print(crc, left_out, found)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    root = tmp_path / "data"
    root.mkdir()
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 255, (48, 40, 3), dtype=np.uint8)
        image.fromarray(pixels).save(root / f"{number:02d}.png")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    os.utime(script, (1e9, 1e9))
    return script


def start(program: Path, workers: int, ragged: bool = False) -> Started:
    return warm_trials().script(str(program), str(program.parent / "data"), str(workers), str(int(ragged)))


def output(program: Path, workers: int, ragged: bool = False) -> str:
    return start(program, workers, ragged).communicate(timeout=200)[0]


@pytest.mark.parametrize("workers", long_but([2], [0, 2]))
def test_a_second_run_finds_the_table_of_the_first_until_a_file_changes(
    program: Path, folder: Path, workers: int
) -> None:
    first = output(program, workers)
    assert first.endswith("[] [False]\n"), first
    assert [each.name.startswith("partial") for each in folder.iterdir()] == [False]
    assert output(program, workers) == first.replace("[False]", "[True]")
    from PIL import Image

    Image.new("RGB", (48, 40), (1, 2, 3)).save(program.parent / "data" / "07.png")
    changed = output(program, workers)
    assert changed.endswith("[] [False]\n") and changed != first


class ByName(Packed):
    """Reads each sample from a file whose name nothing tells beforehand."""

    def __getitem__(self, index: int) -> Any:
        with open(os.path.join("replay", str(index)), "rb") as file:
            image = unpack(file.read())
        return torch.from_numpy(image) + torch.rand(1), index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_only_a_fetch_names_is_read_anew_once_it_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "replay").mkdir()

    def go(loader: Any) -> list[Any]:
        for index, packed in enumerate(PACKED):
            (tmp_path / "replay" / str(index)).write_bytes(packed)
        seen = epochs(loader, 2)
        for index in (5, 17, 38):  # none of those that are tried
            (tmp_path / "replay" / str(index)).write_bytes(PACKED[0])
        return seen + epochs(loader, 2)

    make = functools.partial(DataLoader, ByName(), 4, shuffle=True, num_workers=workers)
    plain, ours, _ = harness.both(make, go, Run())
    assert same(plain, ours)


@pytest.mark.parametrize("workers", long_but([0], [0, 2]))
def test_samples_of_different_sizes_are_kept_on_disk_too_and_damage_is_noticed(
    program: Path, folder: Path, workers: int
) -> None:
    first = output(program, workers, ragged=True)
    assert first.endswith("[] [False]\n"), first
    (place,) = folder.iterdir()
    assert not place.name.startswith("partial")
    assert output(program, workers, ragged=True) == first.replace("[False]", "[True]")
    rows = place / "rows.raw"
    whole = rows.read_bytes()
    rows.write_bytes(whole[:1000] + bytes([whole[1000] ^ 4]) + whole[1001:])
    assert output(program, workers, ragged=True) == first
    assert sorted((place / "rows.raw").read_bytes()) == sorted(whole)  # written anew, in another order
    os.truncate(rows, len(whole) - 1)
    assert output(program, workers, ragged=True) == first
    assert output(program, workers, ragged=True) == first.replace("[False]", "[True]")


@pytest.mark.parametrize("ragged", long_but([True], [False, True]))
def test_two_processes_may_fill_at_once(program: Path, folder: Path, ragged: bool) -> None:
    together = [start(program, 0, ragged) for _ in range(2)]
    told = [each.communicate(timeout=200)[0].split(" ") for each in together]
    assert told[0][:2] == told[1][:2] and told[0][1] == "[]", told
    after = output(program, 0, ragged).split(" ")
    assert after[:2] == told[0][:2] and after[2] == "[True]\n"
    assert [each.name.startswith("partial") for each in folder.iterdir()] == [False]


def test_samples_of_different_sizes_above_the_budget_of_memory_lie_on_disk(
    monkeypatch: pytest.MonkeyPatch, folder: Path, filling: str
) -> None:
    from overdrive.datacache import table_places

    monkeypatch.setattr(table_places, "available_memory", lambda: 10_000)
    plain, kept, run = both(lambda: DataLoader(Growing(), 8, shuffle=True))
    (served,) = run.served
    assert not run.left_out and same(plain, kept)
    assert served.kept.table.complete and [each.name.startswith("partial") for each in folder.iterdir()] == [False]


def test_a_disk_that_fills_up_under_samples_of_different_sizes_is_no_error(
    monkeypatch: pytest.MonkeyPatch, folder: Path, filling: str
) -> None:
    real = os.write

    def full(file: int, data: Any) -> int:
        if os.readlink(f"/proc/self/fd/{file}").endswith("rows.raw"):
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", full)
    plain, kept, run = both(lambda: DataLoader(Growing(), 8, shuffle=True))
    (served,) = run.served
    assert not run.left_out and same(plain, kept)
    assert not served.kept.table.present.any() and list(folder.iterdir()) == []


class Beside(Packed):
    """Reads a file that none of its attributes names."""

    def __getitem__(self, index: int) -> Any:
        with open(os.environ["BESIDE"], "rb") as file:
            image = unpack(self.packed[index]) * len(file.read())
        return (image[::-1].copy() if self.draw() < 0.5 else image), index


def damage(note: Path) -> None:
    note.write_text(note.read_text().replace("statement", "statemend"))


def rewrite(note: Path) -> None:
    Path(os.environ["BESIDE"]).write_bytes(b"12345")


def lie(note: Path) -> None:
    """Another place, with the sum that belongs to it: only the samples tell."""
    text = json.loads(json.loads(note.read_text())["text"])
    text["told"]["statement"] = 0
    written = json.dumps(text)
    note.write_text(json.dumps({"text": written, "sum": zlib.crc32(written.encode())}))


@pytest.mark.parametrize("harm", long_but([None, lie], [None, damage, rewrite, lie]))
def test_where_a_method_was_cut_is_found_out_once(
    harm: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    beside = tmp_path / "beside"
    beside.write_bytes(b"123")
    os.utime(beside, (1e9, 1e9))
    monkeypatch.setenv("BESIDE", str(beside))
    plain, kept, run = both(lambda: DataLoader(Beside(), 8))
    assert not run.left_out and same(plain, kept)
    (note,) = folder.glob("*/cut-*.json")

    whole = mmap.mmap(-1, 1)  # shared with the forked process, where it happens
    find = proving._Examination._find

    def noting(self: Any) -> Any:
        whole[0] = 1
        return find(self)

    monkeypatch.setattr(proving._Examination, "_find", noting)
    if harm is not None:
        harm(note)
    plain, kept, run = both(lambda: DataLoader(Beside(), 8))
    assert not run.left_out and same(plain, kept)
    assert whole[0] == (harm is not None)


# Real libraries, where they are installed


def run_with(make: Callable[[], Any], workers: int) -> Run:
    plain, kept, run = both(lambda: DataLoader(make(), 8, shuffle=True, num_workers=workers))
    assert not run.left_out and same(plain, kept)
    return run


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("version", ["transforms", "transforms.v2"])
def test_torchvisions_compose(version: str, workers: int) -> None:
    pytest.importorskip("torchvision", exc_type=Exception)
    from importlib import import_module

    t = import_module(f"torchvision.{version}")
    steps = [t.ToPILImage(), t.Resize((48, 40)), t.RandomCrop(32), t.RandomHorizontalFlip(), t.ToTensor()]
    run = run_with(lambda: Transformed(t.Compose(steps)), workers)
    assert chain_of(run).moved == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_albumentations_compose(workers: int) -> None:
    albumentations = pytest.importorskip("albumentations")

    class Named(Transformed):
        def __getitem__(self, index: int) -> Any:
            image = unpack(self.packed[index])
            image = self.transform(image=image)["image"]
            return torch.from_numpy(image), index

    steps = [albumentations.RandomCrop(32, 32), albumentations.HorizontalFlip(p=0.5)]
    run_with(lambda: Named(albumentations.Compose(steps, seed=3)), workers)


def test_applies_where_a_program_waits_for_data() -> None:
    loader = LoaderFacts(batch_size=8, workers=0, map_style=True, length=50, seconds_per_batch=0.1)
    assert PrefixCache().applies(Facts(loaders=(loader,), shares={"data": 0.5})) is None
    assert "1%" in str(PrefixCache().applies(Facts(loaders=(loader,), shares={"data": 0.01})))
    assert "map-style" in str(PrefixCache().applies(Facts(shares={"data": 0.5})))


def test_whether_items_draw_decides_before_any_trial() -> None:
    def reason(*draws: bool | None) -> str | None:
        loaders = tuple(LoaderFacts(8, 0, True, 50, 0.1, draws=each) for each in draws)
        return PrefixCache().applies(Facts(loaders=loaders, shares={"data": 0.5}))

    assert "draws no random numbers" in str(reason(False)) and "draws no random numbers" in str(reason(False, False))
    assert reason(None) is None and reason(True) is None and reason(True, False) is None and reason(False, None) is None
