"""Epochs that come to their end early, as the loaders of a proof's trials do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from overdrive.seams.torch.short_epochs import shorten_epochs, shorten_training

DATA = TensorDataset(torch.arange(103))


@pytest.fixture(autouse=True)
def _whole_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchSampler, "__iter__", BatchSampler.__iter__)  # put back what it is now


def batches(loader: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("ragged", "last"), [(False, [100, 101, 102]), (True, [90, 91, 92, 93, 94, 95, 96, 97, 98, 99])]
)
def test_the_first_batches_are_handed_out_and_the_last_one(workers: int, ragged: bool, last: list[int]) -> None:
    shorten_epochs(40)
    loader = DataLoader(DATA, batch_size=10, drop_last=ragged, num_workers=workers)
    seen = batches(loader)
    assert len(seen) == 4 and seen[0] == list(range(10)) and seen[-1] == last
    assert len(loader) == (10 if ragged else 11)  # as the program may have read it
    assert batches(loader) == seen  # the next epoch too


def test_what_is_short_is_left_as_it_is() -> None:
    shorten_epochs(40)
    assert batches(DataLoader(TensorDataset(torch.arange(15)), batch_size=10)) == [list(range(10)), list(range(10, 15))]
    assert len(batches(DataLoader(TensorDataset(torch.arange(32)), batch_size=10))) == 4
    assert len(batches(DataLoader(DATA, batch_size=100))) == 2  # larger than the epoch: its first, and its last


def test_an_epoch_draws_as_much_chance_as_a_whole_one() -> None:
    """So that the second one has the samples that it would have."""
    orders = []
    for short in (False, True):
        if short:
            shorten_epochs(20)
        generator = torch.Generator().manual_seed(3)
        sampler = RandomSampler(DATA, replacement=True, num_samples=80, generator=generator)
        loader = DataLoader(DATA, batch_size=10, sampler=sampler, generator=torch.Generator().manual_seed(4))
        orders.append([batches(loader), batches(loader)])
    whole, short_ones = orders
    for one, other in zip(whole, short_ones, strict=True):
        assert other == [one[0], one[-1]]


def test_what_has_no_length_goes_on_as_it_does() -> None:
    class Endless(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            number = 0
            while True:
                yield number % 103
                number += 1

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(50))

    shorten_epochs(20)
    endless = iter(DataLoader(DATA, batch_size=10, sampler=Endless()))
    assert [next(endless)[0][0].item() for _ in range(12)] == [(10 * each) % 103 for each in range(12)]
    assert len(list(DataLoader(Stream(), batch_size=10))) == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_only_epochs_in_which_steps_are_made_are_short(workers: int) -> None:
    steps, began = [0], list[int]()
    shorten_training(lambda: steps[0], began.append)
    loader = DataLoader(DATA, batch_size=10, num_workers=workers, shuffle=True)
    assert len(batches(loader)) == 11 and not began
    torch.manual_seed(1)
    seen = []
    for batch in loader:
        seen.append(batch[0])
        steps[0] += 1
    assert 5 <= len(seen) < 11 and len(seen[-1]) == 3 and began == [0]
    state = torch.get_rng_state()
    assert len(batches(loader)) == 11 and began == [0]  # evaluated again
    torch.manual_seed(1)
    for _ in loader:
        steps[0] += 1
    assert began == [0, len(seen)] and torch.equal(torch.get_rng_state(), state)
