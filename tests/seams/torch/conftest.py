from __future__ import annotations

from collections.abc import Iterator

import pytest

from overdrive.seams.hub import Seams


@pytest.fixture
def all_in_place() -> Iterator[Seams]:
    """All that stands in the place of PyTorch's functions."""
    pytest.importorskip("torch")
    from overdrive.seams import torch as seams_of_torch
    from overdrive.seams.torch.operators import METHODS, OPERATORS

    seams = Seams()
    for name in (*OPERATORS, *METHODS):
        seams.operator_called(name).subscribe(lambda *_: None)
    seams.random_drawn.subscribe(lambda *_: None)
    for point in (seams.value_asked, seams.shape_asked, seams.value_read):
        point.subscribe(lambda _, call: call())
    leave = seams_of_torch.enter(seams)
    yield seams
    leave()
    assert not seams.left_out
