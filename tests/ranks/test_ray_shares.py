"""How the CPUs of a Ray cluster are shared out among ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from overdrive.ranks.on_ray import share_of


@pytest.mark.parametrize(
    ("nodes", "ranks", "share"),
    [
        ([8.0], 2, 4.0),
        ([8.0], 3, 2.0),
        ([2.0, 2.0, 2.0], 2, 2.0),  # six in all, and no machine has three
        ([3.0, 1.0], 2, 1.0),
        ([0.0, 4.0], 2, 2.0),  # one that only keeps the cluster
        ([1.0], 4, 0.25),
        ([1.0, 1.0], 3, 0.5),
        ([], 2, 0.5),
    ],
)
def test_no_rank_has_cpus_of_two_machines(nodes: list[float], ranks: int, share: float) -> None:
    assert share_of(nodes, ranks) == share
