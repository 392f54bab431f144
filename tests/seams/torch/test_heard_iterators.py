"""Iterators that tell of their batches, alone and beneath another class of ours."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

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
