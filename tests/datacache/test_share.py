"""Which samples a sampler always asks for is found by drawing, and leaves it as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from overdrive.datacache.share import SampleShare, Shares  # noqa: E402

COUNT = 53
DATA = TensorDataset(torch.arange(COUNT))


class Own(Sampler):
    def __iter__(self) -> Any:
        return iter(range(7))

    def __len__(self) -> int:
        return 7


def own_batches() -> Any:
    return [[1, 2], [3]]


def distributed(shuffle: bool, replicas: int = 4) -> Any:
    return DistributedSampler(DATA, replicas, 1, shuffle=shuffle)


SHARES: dict[str, Any] = {
    "a rank's": lambda: DataLoader(DATA, 4, sampler=distributed(False)),
    "a part": lambda: DataLoader(DATA, 4, sampler=SubsetRandomSampler([40, 3, 7])),
    "a part, from an array": lambda: DataLoader(DATA, 4, sampler=SubsetRandomSampler(np.array([40, 3, 7]))),
    "a part, with a generator": lambda: DataLoader(
        DATA, 4, sampler=SubsetRandomSampler([9, 1], torch.Generator().manual_seed(1))
    ),
    "the first ones": lambda: DataLoader(DATA, 4, sampler=SequentialSampler(range(20))),
}
WHOLE: dict[str, Any] = {
    "in order": lambda: DataLoader(DATA, 4),
    "shuffled": lambda: DataLoader(DATA, 4, shuffle=True),
    "ranks that shuffle": lambda: DataLoader(DATA, 4, sampler=distributed(True)),
    "the larger of two parts": lambda: DataLoader(DATA, 4, sampler=SubsetRandomSampler(range(45))),
    "drawn with weights": lambda: DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * COUNT, 9)),
    "a few of all": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=9)),
    "a sampler of its own": lambda: DataLoader(DATA, 4, sampler=Own()),
    "a list": lambda: DataLoader(DATA, 4, sampler=[4, 5, 6]),
    "batches of its own": lambda: DataLoader(DATA, batch_sampler=own_batches()),
    "beyond the data set": lambda: DataLoader(DATA, 4, sampler=SubsetRandomSampler([1, COUNT])),
}


@pytest.mark.parametrize("name", SHARES)
def test_a_fixed_share_is_found_and_the_sampler_left_as_it_was(name: str) -> None:
    torch.manual_seed(1)
    asked = [indices for _ in range(2) for indices in SHARES[name]().batch_sampler]
    torch.manual_seed(1)
    loader = SHARES[name]()
    state = torch.get_rng_state()
    found = Shares().of(loader)
    assert found is not None and found.numbers.tolist() == sorted({index for batch in asked for index in batch})
    assert torch.equal(state, torch.get_rng_state()) and getattr(loader.sampler, "epoch", 0) == 0
    assert list(loader.batch_sampler) == asked[: len(asked) // 2]


@pytest.mark.parametrize("name", WHOLE)
def test_whatever_else_is_asked_for_means_all(name: str) -> None:
    assert Shares().of(WHOLE[name]()) is None


def test_a_sampler_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.datacache import share

    asked: list[Any] = []
    real = share._share_of
    monkeypatch.setattr(share, "_share_of", lambda sampler, count: asked.append(sampler) or real(sampler, count))
    sampler, shares = distributed(False), Shares()
    first = [shares.of(DataLoader(DATA, 4, sampler=sampler)) for _ in range(3)]
    assert len(asked) == 1 and first[0] is first[1] is first[2] is not None
    assert shares.of(DataLoader(DATA, batch_sampler=BatchSampler(sampler, 3, False))) is first[0]


def test_rows_of_a_share() -> None:
    share = SampleShare(np.array([2, 5, 11]))
    rows = share.rows([11, 2, 11])
    assert rows is not None and rows.tolist() == [2, 0, 2]
    for indices in ([3], [2, 12], [True], [-1], [], (2,), [2.0], None):
        assert share.rows(indices) is None
    assert share.same(SampleShare(np.array([2, 5, 11])))
    assert not share.same(SampleShare(np.array([2, 5]))) and not share.same(None)


def test_the_ranks_that_shuffle_are_named(caplog: pytest.LogCaptureFixture) -> None:
    from overdrive.core.progress import log

    log.addHandler(caplog.handler)
    try:
        with caplog.at_level("INFO", "overdrive"):
            assert Shares().of(DataLoader(DATA, 4, sampler=distributed(True))) is None
    finally:
        log.removeHandler(caplog.handler)
    assert "DistributedSampler shuffles the whole data set anew in each epoch" in caplog.text
    assert "shuffle=False" in caplog.text
