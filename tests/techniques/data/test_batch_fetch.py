"""The technique `batch_fetch` on real loaders: rows of live arrays, and refusals with reasons."""

from __future__ import annotations

import gc
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import (  # noqa: E402
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from overdrive.core.facts import Facts, LoaderFacts  # noqa: E402
from overdrive.techniques.catalogue import catalogue  # noqa: E402
from overdrive.techniques.data.batch_fetch import BatchFetch  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402
from tests.techniques.data import harness  # noqa: E402
from tests.techniques.data.harness import epochs, leaves, seed  # noqa: E402
from tests.techniques.data.test_sample_cache import Stream  # noqa: E402

COUNT = 61


class Rows(Dataset):
    """The naive data set of many a script; `label` makes of the row's number what the script wants."""

    def __init__(self, x: Any = None, y: Any = None, make: Any = None) -> None:
        self.x = numbers() if x is None else x
        self.y = labels() if y is None else y
        self.make = make or (lambda data, index: (data.x[index], data.y[index]))
        self.fetched = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        os.write(LOG, b"%d\n" % os.getpid())
        return self.make(self, index)


LOG = os.memfd_create("log")  # a list would be part of what the data set is made of


def fetched() -> int:
    """How many samples this process has fetched one by one since the last time."""
    os.lseek(LOG, 0, os.SEEK_SET)
    count = os.read(LOG, 1 << 24).split().count(b"%d" % os.getpid())
    os.ftruncate(LOG, 0)
    os.lseek(LOG, 0, os.SEEK_SET)
    return count


def numbers(*shape: int) -> Any:
    return torch.randn(COUNT, *(shape or (3, 4)), generator=torch.Generator().manual_seed(1))


def images(*shape: int) -> Any:
    """Held with the channels last, as a program makes them for faster convolutions."""
    channels, height, width = (*shape, *(3, 6, 5)[len(shape) :])
    return numbers(channels, height, width).to(memory_format=torch.channels_last)


def volumes() -> Any:
    return numbers(2, 3, 4, 5).to(memory_format=torch.channels_last_3d)


def labels() -> Any:
    return torch.arange(COUNT) * 7 % 10


def mapped(folder: Path, mode: str = "r") -> Any:
    path = folder / "x.bin"
    if not path.exists():
        np.random.default_rng(0).random((COUNT, 5), dtype=np.float32).tofile(path)
    return np.memmap(path, dtype=np.float32, mode=mode, shape=(COUNT, 5))


def technique() -> BatchFetch:
    found = catalogue()["batch_fetch"]
    assert isinstance(found, BatchFetch)
    return found


class Run(harness.Run):
    def __init__(self) -> None:
        super().__init__("batch_fetch")

    def __enter__(self) -> Run:
        fetched()
        super().__enter__()
        return self


def both(make: Callable[[], Any], count: int = 2) -> tuple[list[Any], list[Any], Run]:
    return harness.both(make, lambda loader: epochs(loader, count), Run())


def splits() -> Any:
    data = TensorDataset(numbers(), labels())
    return random_split(data, [40, COUNT - 40], generator=torch.Generator().manual_seed(4))[0]


class Inner:
    def __init__(self) -> None:
        self.arrays = {"x": numbers().numpy(), "more": [numbers(2).double(), labels().numpy().astype("uint8")]}


class Nested(Dataset):
    def __init__(self) -> None:
        self.inner = Inner()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        arrays = self.inner.arrays
        return {"x": arrays["x"][index], "more": [arrays["more"][0][index], int(arrays["more"][1][index])]}


SERVED: dict[str, Callable[[], Any]] = {
    "tensors": lambda: TensorDataset(numbers(), labels(), numbers(1).half(), numbers(2).double(), labels() > 4),
    "images": lambda: TensorDataset(numbers(3, 8, 8), labels()),
    "subset": lambda: Subset(TensorDataset(numbers(), labels()), range(50, 3, -2)),
    "subset of a split": lambda: Subset(splits(), list(range(5, 30))),
    "array indices": lambda: Subset(TensorDataset(numbers(), labels()), np.arange(4, 50)),  # type: ignore
    "attributes": lambda: Rows(),
    "arrays": lambda: Rows(numbers().numpy(), labels().numpy()),
    "small kinds": lambda: Rows((numbers() * 9).numpy().astype("int16"), labels().numpy().astype("uint8")),
    "tensors of arrays": lambda: Rows(numbers().numpy(), make=lambda d, i: (torch.from_numpy(d.x[i]), d.y[i])),
    "a list of labels": lambda: Rows(y=labels().tolist()),
    "a list of floats": lambda: Rows(y=(labels() / 3).tolist()),
    "tensors of labels": lambda: Rows(y=labels().tolist(), make=lambda d, i: (d.x[i], torch.tensor(d.y[i]))),
    "tensors of floats": lambda: Rows(y=(labels() / 3).tolist(), make=lambda d, i: (d.x[i], torch.tensor(d.y[i]))),
    "label as a number": lambda: Rows(make=lambda d, i: (d.x[i], d.y[i].item())),
    "float as a number": lambda: Rows(y=(labels() / 3), make=lambda d, i: (d.x[i], d.y[i].item())),
    "number of bytes": lambda: Rows(y=labels().numpy().astype("uint8"), make=lambda d, i: (d.x[i], int(d.y[i]))),
    "with its index": lambda: Rows(make=lambda d, i: (i, d.x[i])),
    "alone": lambda: Rows(make=lambda d, i: d.x[i]),
    "nested": lambda: Nested(),
    "channels last": lambda: TensorDataset(images(), labels()),
    "channels last, one channel": lambda: TensorDataset(images(1), labels()),
    "channels last, as many channels as pixels a side": lambda: TensorDataset(images(5, 5, 5), labels()),
    "channels last in 3 dimensions": lambda: TensorDataset(volumes(), labels()),
    "part of a channels-last tensor": lambda: TensorDataset(images()[3:], labels()[3:]),
    "channels last as an array": lambda: Rows(images().numpy()),
    "channels last, tensors of arrays": lambda: Rows(
        images().numpy(), make=lambda d, i: (torch.from_numpy(d.x[i]), d.y[i])
    ),
    "turned": lambda: Rows(numbers(6, 5, 3), make=lambda d, i: (d.x[i].permute(2, 0, 1), d.y[i])),
    "turned arrays": lambda: Rows(
        (numbers(6, 5, 3) * 9).byte().numpy(),
        make=lambda d, i: (torch.from_numpy(d.x[i]).permute(2, 0, 1), int(d.y[i])),
    ),
    "turned by numpy": lambda: Rows(numbers(6, 5, 3).numpy(), make=lambda d, i: d.x[i].transpose(2, 0, 1)),
    "turned, as many channels as pixels a side": lambda: Rows(
        numbers(4, 4, 4), make=lambda d, i: (d.x[i].permute(2, 0, 1), d.y[i])
    ),
}


@pytest.mark.parametrize("name", SERVED)
def test_batches_and_random_states_are_the_same_in_every_bit(name: str) -> None:
    plain, ours, run = both(lambda: DataLoader(SERVED[name](), 8, shuffle=True))
    assert not run.left_out
    assert plain == ours


SAMPLERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "drop_last": {"shuffle": True, "drop_last": True},
    "weighted": {"sampler": WeightedRandomSampler(np.arange(1, COUNT + 1), 100)},
    "own generator": {"shuffle": True, "generator": torch.Generator()},
    "larger than all": {"batch_size": 500},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_any_sampler(name: str) -> None:
    def make() -> Any:
        settings = {"batch_size": 7, **SAMPLERS[name]}
        if "generator" in settings:
            settings["generator"].manual_seed(2)
        return DataLoader(SERVED["tensors"](), **settings)

    plain, ours, run = both(make)
    assert plain == ours and not run.left_out


def test_kinds_that_numpy_does_not_know() -> None:
    data = TensorDataset(numbers(2).bfloat16(), numbers(1).cfloat())
    plain = list(DataLoader(data, 8))
    with Run() as run:
        ours = list(DataLoader(data, 8))
    assert not run.left_out
    pairs = [pair for one, other in zip(plain, ours, strict=True) for pair in zip(one, other, strict=True)]
    assert pairs and all(torch.equal(a, b) for a, b in pairs)


def test_no_sample_is_fetched_by_itself_but_the_first_batch() -> None:
    loader = DataLoader(Rows(), 8, shuffle=True)
    with Run() as run:
        list(loader)
        list(loader)
    assert not run.left_out and fetched() == 8
    list(loader)
    assert fetched() == COUNT  # outside of the session nothing is left of it


@pytest.mark.filterwarnings("ignore:The given NumPy array")
def test_files_mapped_into_memory(tmp_path: Path) -> None:
    def make() -> Any:
        return DataLoader(Rows(mapped(tmp_path), labels()), 8, shuffle=True)

    plain, ours, run = both(make)
    assert not run.left_out and plain == ours


@pytest.mark.parametrize("kind", ["tensor", "array", "memmap", "list"])
def test_what_the_program_writes_is_in_the_next_batch(kind: str, tmp_path: Path) -> None:
    def run_once() -> list[Any]:
        (tmp_path / "x.bin").unlink(missing_ok=True)
        x = {"tensor": numbers, "array": lambda: numbers().numpy(), "memmap": lambda: mapped(tmp_path, "r+")}
        data = Rows(x.get(kind, numbers)(), labels().tolist() if kind == "list" else labels())
        loader, seen = DataLoader(data, 8), []
        for epoch in range(3):
            for number, batch in enumerate(loader):
                seen.append(list(leaves(batch)))
                data.x[(8 * number + 11) % COUNT] += epoch + 1
                data.y[(8 * number + 11) % COUNT] += 100
        return seen

    plain = run_once()
    with Run() as run:
        assert run_once() == plain
    # Another list is tried anew in each epoch: it might hold other things than numbers.
    assert not run.left_out and fetched() == (24 if kind == "list" else 8)


def test_the_memory_order_of_a_batch_is_that_of_torch() -> None:
    """However the data set's lies: the next convolution takes the path that it takes without us."""
    with Run() as run:
        batches = [x for _ in range(2) for x, _ in DataLoader(TensorDataset(images(), labels()), 8)]
    assert not run.left_out
    assert len({each.stride() for each in batches}) == 1
    assert batches[-1].stride() == torch.stack([images()[0], images()[1]]).stride()


def test_an_array_that_is_turned_in_place_is_read_as_it_lies_then() -> None:
    def run_once() -> list[Any]:
        data = Rows(numbers(4, 4, 4), make=lambda d, i: (d.x[i].permute(2, 0, 1), d.y[i]))
        loader, seen = DataLoader(data, 8), []
        for epoch in range(3):
            for number, batch in enumerate(loader):
                seen.append(list(leaves(batch)))
                if epoch == 1 and number == 2:
                    data.x.transpose_(1, 3)
        return seen

    plain = run_once()
    with Run():
        assert run_once() == plain


@pytest.mark.parametrize(
    "change",
    [
        lambda data: setattr(data, "x", data.x + 1),
        lambda data: setattr(data, "x", data.x.double()),
        lambda data: setattr(data, "x", numbers(2)),
        lambda data: setattr(data, "y", data.y.tolist()),
        lambda data: setattr(data, "make", lambda d, i: (d.x[i] * 2, d.y[i])),
        lambda data: setattr(data, "x", data.x.t().contiguous().t() if data.x.dim() == 2 else data.x[:, ::2]),
        lambda data: setattr(data, "x", data.x.unsqueeze(1).to(memory_format=torch.channels_last).squeeze(1)),
        lambda data: setattr(data, "other", 3),
        lambda data: setattr(type(data), "__getitem__", lambda self, i: (self.x[i] - 1, self.y[i])),
    ],
)
@pytest.mark.parametrize("between", [True, False])
def test_a_data_set_that_is_changed_is_fetched_as_it_is_then(change: Any, between: bool) -> None:
    def run_once() -> list[Any]:
        class Changing(Rows):
            def __getitem__(self, index: int) -> Any:
                return super().__getitem__(index)

        if between is False and "__getitem__" in change.__code__.co_consts:
            pytest.skip("a class that is changed in the midst of an epoch is seen by the next one")
        data = Changing()
        loader, seen = DataLoader(data, 8), []
        for epoch in range(3):
            if epoch == 1 and between:
                change(data)
            for number, batch in enumerate(loader):
                seen.append(list(leaves(batch)))
                if epoch == 1 and number == 2 and not between:
                    change(data)
        return seen

    plain = run_once()
    with Run():
        assert run_once() == plain


def test_of_two_alike_the_one_is_read_that_the_samples_come_from() -> None:
    def run_once() -> list[Any]:
        data = Rows(make=lambda d, i: (d.x[i], int(d.y[i])))
        vars(data).update({"others": labels().tolist(), "copy": numbers(), **{k: data.__dict__.pop(k) for k in "xy"}})
        loader, seen = DataLoader(data, 8), []
        for _ in range(2):
            for batch in loader:
                seen.append(list(leaves(batch)))
                data.y += 1
                data.x *= 0.5
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
            for number, batch in enumerate(DataLoader(TensorDataset(numbers(5), labels()), 4, shuffle=True)):
                if hold != "every other one" or number % 2:
                    held.append(holders.get(hold, list)(batch))
        return [list(leaves(batch)) for batch in held]

    plain = run_once()
    with Run() as run:
        assert run_once() == plain
    assert not run.left_out


def test_changing_a_batch_in_place_changes_no_array() -> None:
    data = TensorDataset(numbers(), labels())
    with Run() as run:
        for _ in range(2):
            for x, y in DataLoader(data, 8):
                x.zero_()
                y.zero_()
    assert not run.left_out
    assert torch.equal(data.tensors[0], numbers()) and torch.equal(data.tensors[1], labels())


@pytest.mark.parametrize("sampler", [[0, 5, COUNT], [0, 5, COUNT + 7], [3, -1, 2], [True, 2, 3]])
def test_odd_indices_do_what_they_do_without_us(sampler: Any) -> None:
    def run_once() -> list[Any]:
        seen = []
        for batch_sampler in ([[1, 2], [3, 4]], [sampler]):
            loader = DataLoader(data, batch_sampler=batch_sampler)
            try:
                seen += [list(leaves(batch)) for batch in loader]
            except Exception as error:
                seen.append((type(error), str(error)))
        return seen

    data = Rows()
    plain = run_once()
    with Run() as run:
        assert run_once() == plain
    assert not run.left_out


def test_the_loader_for_evaluation_is_served_where_the_other_is_refused() -> None:
    train = DataLoader(Rows(make=lambda d, i: (d.x[i] + torch.rand(1), d.y[i])), 8)
    evaluation = DataLoader(Rows(), 8)
    with Run() as run:
        list(train)
        list(evaluation)
        fetched()
        list(evaluation)
        assert fetched() == 0
    assert not run.left_out and technique().slicing is not None and len(technique().slicing.reasons) == 1


# Refusals


class Batched(Rows):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Counting(Rows):
    def __getitem__(self, index: int) -> Any:
        self.fetched += 1
        return super().__getitem__(index)


def reversed_rows(data: Any, index: int) -> Any:
    return data.x[COUNT - 1 - index], data.y[index]


def clamped(data: Any, index: int) -> Any:
    return data.x[index], min(int(data.y[index]), 100)


def rarely_copied(data: Any, index: int) -> Any:
    return (data.x[index].clone() if index == 37 else data.x[index]), data.y[index]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "copied": (lambda: DataLoader(Rows(make=lambda d, i: (d.x[i].clone(), d.y[i])), 8), "copied or computed"),
    "converted": (
        lambda: DataLoader(
            Rows(numbers().numpy(), make=lambda d, i: torch.from_numpy(d.x[i].astype(np.float32))),
            8,
        ),
        "copied or computed",
    ),
    "computed": (lambda: DataLoader(Rows(make=lambda d, i: (d.x[i] / 2, d.y[i])), 8), "copied or computed"),
    "a computed label": (lambda: DataLoader(Rows(make=lambda d, i: (d.x[i], int(d.y[i]) % 3)), 8), "computed"),
    "a label cut off above all there are": (lambda: DataLoader(Rows(make=clamped), 8), "does not follow"),
    "a rare copy": (lambda: DataLoader(Rows(make=rarely_copied), 8), "copied or computed"),
    "backwards": (lambda: DataLoader(Rows(make=reversed_rows), 8), "copied or computed"),
    "texts": (lambda: DataLoader(Rows(make=lambda d, i: (d.x[i], "a name")), 8), "copied or computed"),
    "a global array": (lambda: DataLoader(Rows(make=lambda d, i: GLOBAL[i]), 8), "copied or computed"),
    "half a row": (lambda: DataLoader(Rows(make=lambda d, i: d.x[i][:1]), 8), "copied or computed"),
    "mirrored": (lambda: DataLoader(Rows(images(), make=lambda d, i: d.x[i].flip(-1)), 8), "copied or computed"),
    "turned another way": (
        lambda: DataLoader(Rows(numbers(6, 5, 3), make=lambda d, i: d.x[i].transpose(0, 2)), 8),
        "copied or computed",
    ),
    "columns": (lambda: DataLoader(Rows(numbers(4, 4).transpose(1, 2)), 8), "copied or computed"),
    "batches": (lambda: DataLoader(Batched(), 8), "whole batches"),
    "its own collate": (lambda: DataLoader(Rows(), 8, collate_fn=lambda samples: samples), "way of its own"),
    "workers": (lambda: DataLoader(Rows(), 8, num_workers=1), "workers"),
    "a counter": (lambda: DataLoader(Counting(), 8), "changes the data set"),
    "noise": (lambda: DataLoader(Rows(make=lambda d, i: (d.x[i], torch.rand(1))), 8), "computed|draws"),
    "a draw": (lambda: DataLoader(Rows(make=lambda d, i: (random.random(), d.x[i])[1:]), 8), "draws random"),
    "a stream": (lambda: DataLoader(Stream(), 8), "stream"),
    "two data sets in one": (lambda: DataLoader(ConcatDataset([Rows(), Rows()]), 8), "copied or computed"),
}
GLOBAL = numbers()


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    make, reason = REFUSED[name]
    loader = make()
    seed()
    with Run() as run:
        iterator = iter(loader)
    del iterator
    assert re.search(reason, run.reason), run.reason


@pytest.mark.parametrize("name", ["a counter", "a rare copy", "noise", "a draw", "two data sets in one"])
def test_what_is_refused_runs_as_without_us(name: str) -> None:
    plain, ours, run = both(REFUSED[name][0])
    assert run.left_out and plain == ours


@pytest.mark.parametrize("prefill", ["", "1"])
def test_together_with_the_sample_cache(prefill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OVERDRIVE_PREFILL", prefill)
    left_out: list[tuple[str, str]] = []
    loaders = [DataLoader(Rows(), 8, shuffle=True), DataLoader(Rows(make=lambda d, i: (d.x[i] * 2, d.y[i])), 8)]
    seed()
    plain = [epochs(loader, 2) for loader in loaders]
    seed()
    gc.collect()
    techniques = [("batch_fetch", {}), ("sample_cache", {})]
    with Session(techniques, on_left_out=lambda *why: left_out.append(why)):  # type: ignore[arg-type]
        assert [epochs(loader, 2) for loader in loaders] == plain
    assert left_out == []


def test_applies_where_a_program_waits_for_data() -> None:
    def facts(share: float, workers: int = 0, read: float = 0.0) -> Facts:
        costs = {"read": read, "decode": 0.001}
        loader = LoaderFacts(8, workers, True, 50, 0.1, seconds_per_item=costs)
        return Facts(loaders=(loader,), shares={"data": share})

    assert BatchFetch().applies(facts(0.5)) is None
    assert "1%" in str(BatchFetch().applies(facts(0.01)))
    assert "workers" in str(BatchFetch().applies(facts(0.5, workers=2)))
    assert "files" in str(BatchFetch().applies(facts(0.5, read=1e-5)))
    assert "map-style" in str(BatchFetch().applies(Facts(shares={"data": 0.5})))
