"""Iterators that tell of their batches, alone and beneath another class of ours."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from overdrive.seams.torch.heard_iterators import hear_no_more, is_heard, open_heard  # noqa: E402


@pytest.mark.parametrize("beneath", [False, True])
def test_who_is_told_no_more_leaves_what_another_technique_made_of_the_iterator(beneath: bool) -> None:
    """A class of ours above it was taken off in its place: the next batch was an AttributeError."""
    loader = DataLoader(TensorDataset(torch.arange(40)), 4, num_workers=1)
    plain, heard = type(iter(loader)), []
    iterator = open_heard(loader, loader._get_iterator, lambda indices, batch: heard.append(indices))
    above: Any = type("Above", (type(iterator),), {}) if beneath else plain
    if beneath:
        iterator.__class__ = above
    batches = [next(iterator)[0].tolist() for _ in range(3)]
    hear_no_more(iterator)
    assert type(iterator) is above and not is_heard(iterator)
    batches += [batch.tolist() for (batch,) in iterator]
    assert heard == batches[:3] and [each for batch in batches for each in batch] == list(range(40))


class Failing(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise ValueError("a file server was away for a moment")
        return index


@pytest.mark.parametrize("persistent", [False, True])
def test_after_an_error_that_the_program_passes_over_no_batch_is_told_of_with_others_indices(persistent: bool) -> None:
    """Samples would be kept in the place of others."""
    loader = DataLoader(Failing(), 4, num_workers=2, persistent_workers=persistent)
    heard: list[Any] = []
    for _ in range(2):
        iterator = open_heard(
            loader, lambda: iter(loader), lambda indices, batch: heard.append((indices, batch.tolist()))
        )
        came = 0
        while True:
            try:
                next(iterator)
                came += 1
            except ValueError:
                continue
            except StopIteration:
                break
        assert came == 9
    assert all(indices == batch for indices, batch in heard)
    assert [indices[0] for indices, _ in heard] == [0, 4] * 2  # before the error, in each epoch
