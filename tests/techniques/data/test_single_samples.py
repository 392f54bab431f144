"""`sample_cache` where a collate function of the program's own pads, sorts, mixes or draws, or samples hold texts: they
are kept one by one."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn.utils.rnn import pad_sequence  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    DistributedSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
)

from overdrive.datacache import filler as filler_module  # noqa: E402
from overdrive.datacache.single import SingleSource  # noqa: E402
from tests.conftest import long_but  # noqa: E402
from tests.techniques.data import harness  # noqa: E402
from tests.techniques.data.harness import epochs, epochs_with_errors, leaves, seed  # noqa: E402
from tests.techniques.data.test_sample_cache import Run, tables  # noqa: E402

COUNT = 47
LOG = os.memfd_create("log")  # a list would be part of what the data set is made of


def fetched() -> int:
    """How many samples any process has fetched since the last time."""
    size = os.lseek(LOG, 0, os.SEEK_END)
    os.ftruncate(LOG, 0)
    os.lseek(LOG, 0, os.SEEK_SET)
    return size


class Sentences(Dataset):
    """Tokens of many lengths; `make` says what else a sample holds."""

    def __init__(self, make: Callable[[Any, int], Any] | None = None) -> None:
        self.numbers = np.random.default_rng(3).integers(1, 50, (COUNT, 30))
        self.lengths = np.random.default_rng(4).integers(1, 30, COUNT).tolist()
        self.make = make or (lambda data, index: (data.tokens(index), index % 3))

    def __len__(self) -> int:
        return COUNT

    def tokens(self, index: int) -> Any:
        return torch.from_numpy(self.numbers[index, : self.lengths[index]] * 2)

    def __getitem__(self, index: int) -> Any:
        os.write(LOG, b".")
        return self.make(self, index)


def padded(samples: list[Any]) -> Any:
    tokens = pad_sequence([tokens for tokens, _ in samples], batch_first=True)
    return tokens, torch.tensor([len(each) for each, _ in samples]), torch.tensor([label for _, label in samples])


def longest_first(samples: list[Any]) -> Any:
    samples.sort(key=lambda sample: -len(sample["tokens"]))
    tokens = pad_sequence([torch.tensor(sample["tokens"]) for sample in samples])
    return {"ids": [sample["id"] for sample in samples], "tokens": tokens, "names": [s["name"] for s in samples]}


def masked(samples: list[Any]) -> Any:
    """Each time in another way, from three generators."""
    tokens, lengths, labels = padded(samples)
    tokens[torch.rand(tokens.shape) < 0.2] = int(np.random.randint(60, 70))
    return tokens, lengths, labels, random.random()


def mixed(samples: list[Any]) -> Any:
    images = torch.stack([image for image, _ in samples])
    share = np.random.beta(0.3, 0.3)
    return share * images + (1 - share) * images[torch.randperm(len(images))]


def in_place(samples: list[Any]) -> Any:
    for tokens, _ in samples:
        tokens.mul_(3)
    return padded(samples)


def letters(samples: list[str]) -> Any:
    return pad_sequence([torch.tensor(list(text.encode())) for text in samples], batch_first=True)


def as_dict(data: Any, index: int) -> Any:
    return {"id": index, "tokens": data.tokens(index).tolist(), "name": f"sentence {index}"}


def image(data: Any, index: int) -> Any:
    return torch.from_numpy(data.numbers[index].reshape(5, 6)).float() / 50, index


def boxes(data: Any, index: int) -> Any:
    """As detection has them: pictures of many sizes, with none to many things in each."""
    count = index % 4
    found = {"boxes": torch.full((count, 4), index / 7), "labels": np.arange(count), "area": np.float32(index)}
    return torch.full((3, 2 + index % 5, 4), float(index)).to(torch.uint8).permute(0, 2, 1), found, None


def named(data: Any, index: int) -> Any:
    """Names beside numbers, which PyTorch's own collate function hands on as they are."""
    return {"tokens": torch.from_numpy(data.numbers[index] * 2), "file": f"{index}.txt", "label": index % 3}


def kind_of_number(data: Any, index: int) -> Any:
    return data.tokens(index), index, type(index).__name__


def text(data: Any, index: int) -> str:
    return "é" * (index * 20)


MAKERS: dict[str, Callable[[], Any]] = {
    "padded": lambda: DataLoader(Sentences(), 8, shuffle=True, collate_fn=padded),
    "padded in order": lambda: DataLoader(Sentences(), 8, collate_fn=padded),
    "sorted dicts": lambda: DataLoader(Sentences(as_dict), 8, shuffle=True, collate_fn=longest_first),
    "masked at random": lambda: DataLoader(Sentences(), 8, shuffle=True, collate_fn=masked),
    "mixed at random": lambda: DataLoader(Sentences(image), 8, shuffle=True, collate_fn=mixed),
    "written to": lambda: DataLoader(Sentences(), 8, shuffle=True, collate_fn=in_place),
    "detection": lambda: DataLoader(Sentences(boxes), 8, shuffle=True, collate_fn=lambda each: tuple(zip(*each))),  # noqa: B905
    "as they are": lambda: DataLoader(Sentences(boxes), 8, collate_fn=lambda samples: samples),
    "texts": lambda: DataLoader(Sentences(text), 8, shuffle=True, collate_fn=letters),
    "subset": lambda: DataLoader(Subset(Sentences(), range(40, 2, -1)), 8, shuffle=True, collate_fn=padded),
    "twice in a batch": lambda: DataLoader(Sentences(), batch_sampler=[[3, 5, 3], [46, 46, 1]] * 9, collate_fn=padded),
    "named": lambda: DataLoader(Sentences(named), 8, shuffle=True),
    "one of each size": lambda: DataLoader(Sentences(), 1, shuffle=True),
    "a fold": lambda: DataLoader(
        Sentences(kind_of_number), 8, sampler=SubsetRandomSampler(np.arange(5, COUNT)), collate_fn=lambda each: each
    ),
    "a rank's share": lambda: DataLoader(
        Sentences(), 8, sampler=DistributedSampler(range(COUNT), 2, 1, shuffle=False), collate_fn=padded
    ),
}


WAYS = ("by and by", "at once")  # to fill; each kind of change, of error and of odd sample is seen under one of them
# Of kinds of samples and of collate functions one each.
BOTH_WAYS = ("padded", "named", "sorted dicts", "masked at random", "detection", "twice in a batch")


def both(make: Callable[[], Any], count: int = 3) -> tuple[list[Any], list[Any], Run]:
    return harness.both(make, lambda loader: epochs(loader, count), Run())


@pytest.mark.parametrize(
    ("name", "filling"),
    long_but(
        [*((name, "at once") for name in MAKERS), *((name, "by and by") for name in BOTH_WAYS)],
        [(name, how) for name in MAKERS for how in WAYS],
    ),
    indirect=["filling"],
)
def test_batches_and_random_states_are_the_same_in_every_bit(name: str, filling: str) -> None:
    plain, ours, run = both(MAKERS[name])
    assert not run.left_out and isinstance(run.kept[0].source, SingleSource)
    assert plain == ours


def test_beside_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filler_module, "WORTH_FILLING_BESIDE", 0.0)
    plain, ours, run = both(MAKERS["padded"])
    assert not run.left_out and plain == ours


def test_samples_are_fetched_once_and_found_by_the_next_run(folder: Path, filling: str) -> None:
    with Run() as run:
        loader = MAKERS["masked at random"]()
        list(loader)
        fetched()
        list(loader)
        list(loader)
        assert fetched() == 0
    assert not run.left_out and len(tables(folder)) == 1
    plain, ours, run = both(MAKERS["masked at random"])
    assert plain == ours and run.kept[0].table.complete and not run.kept[0].table.writable


def test_another_collate_function_is_called_as_it_comes(folder: Path) -> None:
    """It is no part of what is kept."""

    def run_once() -> list[Any]:
        seed()
        data = Sentences()
        seen = []
        for collate in (padded, in_place, masked, padded):
            loader = DataLoader(data, 8, shuffle=True, collate_fn=collate)
            seen += epochs(loader, 2)
            loader.collate_fn = masked
            seen += epochs(loader, 1)
        return seen

    plain = run_once()
    with Run() as run:
        assert run_once() == plain
    assert not run.left_out and len(run.kept) == 1 and len(tables(folder)) == 1


def change_transform(data: Any) -> None:
    data.make = lambda data, index: (data.tokens(index) + 1, index)


def change_numbers(data: Any) -> None:
    data.numbers[7] += 1


def change_lengths(data: Any) -> None:
    data.lengths[4] += 1


@pytest.mark.parametrize(
    ("change", "filling"),
    long_but(
        [(change_transform, "at once"), (change_numbers, "by and by"), (change_lengths, "at once")],
        [(change, how) for change in (change_transform, change_numbers, change_lengths) for how in WAYS],
    ),
    indirect=["filling"],
)
def test_a_data_set_that_is_changed_is_fetched_anew(change: Any, filling: str) -> None:
    def run_once() -> list[Any]:
        seed()
        data = Sentences()
        loader = DataLoader(data, 8, shuffle=True, collate_fn=padded)
        seen = []
        for step in range(4):
            if step == 2:
                change(data)
            seen.append([list(leaves(batch)) for batch in loader])
        return seen

    plain = run_once()
    with Run():
        assert run_once() == plain


def failing(data: Any, index: int) -> Any:
    if index == 35:  # one that the trial does not look at
        raise OSError("the file is truncated")
    return data.tokens(index), index


def failing_together(samples: list[Any]) -> Any:
    if any(label == 2 for _, label in samples) and torch.rand(1) < 0.5:
        raise ValueError("no such batch")
    return padded(samples)


@pytest.mark.parametrize(
    ("make", "collate", "filling"),
    long_but(
        [(failing, padded, "by and by"), (None, failing_together, "at once")],
        [(*each, how) for each in ((failing, padded), (None, failing_together)) for how in WAYS],
    ),
    indirect=["filling"],
)
def test_errors_come_at_the_same_batch_as_without_us(make: Any, collate: Any, filling: str) -> None:
    def run_once() -> list[Any]:
        seed()
        return epochs_with_errors(DataLoader(Sentences(make), 4, shuffle=True, collate_fn=collate))

    plain = run_once()
    with Run() as run:
        assert run_once() == plain
    assert not run.left_out


def huge(data: Any, index: int) -> Any:
    return torch.ones(90_000 if index == 20 else index), index


def rarely_drawing(data: Any, index: int) -> Any:
    return (data.tokens(index) + int(torch.randint(5, (1,))) if index == 20 else data.tokens(index)), index


def rarely_odd(data: Any, index: int) -> Any:
    return (data.tokens(index).to_sparse().to_dense() if index != 20 else data.tokens(index).int()), index


@pytest.mark.parametrize(
    ("make", "filling"),
    long_but(
        [(huge, "by and by"), (rarely_odd, "at once")], [(make, how) for make in (huge, rarely_odd) for how in WAYS]
    ),
    indirect=["filling"],
)
def test_a_sample_unlike_the_others_is_right_all_the_same(make: Any, filling: str) -> None:
    plain, ours, run = both(lambda: DataLoader(Sentences(make), 8, shuffle=True, collate_fn=padded))
    assert plain == ours and not run.left_out


def test_rare_draws_are_found_while_the_samples_are_first_fetched(filling: str) -> None:
    plain, ours, run = both(lambda: DataLoader(Sentences(rarely_drawing), 8, shuffle=True, collate_fn=padded))
    assert plain == ours
    assert "draws random numbers" in run.reason


HELD = [torch.arange(1 + k % 9) for k in range(COUNT)]


LAST = 0


def told_beside(data: Any, index: int) -> Any:
    """What a collate function could read, and no attribute shows."""
    global LAST
    LAST = index
    return data.tokens(index), index


class Whole(Sentences):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Remembering(Sentences):
    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        return self.memory.setdefault(index, super().__getitem__(index))


class Thing:
    pass


REFUSED: dict[str, tuple[Any, str]] = {
    "held": (lambda: Sentences(lambda data, index: (HELD[index], 1)), "the data set holds"),
    "views": (lambda: Sentences(lambda d, i: (torch.from_numpy(d.numbers[i, : d.lengths[i]]), 1)), "data set holds"),
    "remembered": (lambda: Remembering(), "data set holds|changes the data set"),
    "drawn": (lambda: Sentences(lambda d, i: (d.tokens(i) + int(torch.randint(9, (1,))), 1)), "change|draws"),
    "a global that it sets": (lambda: Sentences(told_beside), "changes the data set"),
    "a draw": (lambda: Sentences(lambda d, i: (torch.rand(1), (d.tokens(i), 1))[1]), "draws"),
    "objects": (lambda: Sentences(lambda d, i: (d.tokens(i), Thing())), "holds a .*Thing"),
    "whole batches": (lambda: Whole(), "whole batches"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_and_runs_as_without_us(name: str) -> None:
    make, reason = REFUSED[name]

    def lengths(samples: list[Any]) -> Any:
        return pad_sequence([tokens for tokens, _ in samples])

    plain, ours, run = both(lambda: DataLoader(make(), 8, shuffle=True, collate_fn=lengths), 2)
    assert plain == ours
    assert re.search(reason, run.reason), run.reason


def test_what_can_be_stacked_is_stacked() -> None:
    def own(samples: list[Any]) -> Any:
        return default_collate(samples)

    plain, ours, run = both(lambda: DataLoader(Sentences(image), 8, shuffle=True, collate_fn=own))
    assert plain == ours and not run.left_out
    assert not isinstance(run.kept[0].source, SingleSource)
