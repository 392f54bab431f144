"""Loaders' workers that are no part of this process's group."""

from __future__ import annotations

import os

import pytest
import torch

from overdrive.seams.torch.workers_apart import set_workers_apart

Loader = torch.utils.data.DataLoader


def test_signals_to_the_group_do_not_come_to_workers() -> None:
    """torchrun sends them to all of a rank's group."""
    undo = set_workers_apart()
    try:
        iterator = iter(Loader(range(4), num_workers=2))
    finally:
        undo()
    workers = [each.pid for each in iterator._workers]
    assert [os.getpgid(each) for each in workers] == workers and os.getpgid(0) not in workers
    assert [int(each) for each in iterator] == [0, 1, 2, 3]
    plain = iter(Loader(range(4), num_workers=1))
    assert [os.getpgid(each.pid) for each in plain._workers] == [os.getpgid(0)]


@pytest.mark.filterwarnings("ignore")
def test_workers_that_are_started_anew_stay_where_they_are() -> None:
    undo = set_workers_apart()
    try:
        assert [int(each) for each in Loader(range(2), num_workers=1, multiprocessing_context="spawn")] == [0, 1]
    finally:
        undo()
