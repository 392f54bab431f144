"""Filling a table with the cores that this process is granted."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import TensorDataset, default_collate  # noqa: E402

from overdrive.changes.fingerprint import fingerprint  # noqa: E402
from overdrive.datacache.fill import fill  # noqa: E402
from overdrive.datacache.source import Source  # noqa: E402
from overdrive.datacache.table import Table  # noqa: E402
from overdrive.datacache.unchanged import UnchangedInFork  # noqa: E402
from overdrive.forks.layout import layout_of  # noqa: E402
from overdrive.machine import cgroup  # noqa: E402

COUNT = 320  # ten blocks


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"), [(8, "200000 100000", 2), (8, "max 100000", 8), (3, "max 100000", 3)]
)
def test_as_many_workers_fill_as_cores_are_granted(
    affinity: int, quota: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(quota)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    limit = partial(cgroup.cores, tmp_path)
    monkeypatch.setattr(cgroup, "cores", lambda root: limit())
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(affinity)))
    started = tmp_path / "started"

    def started_worker(number: int) -> None:
        with started.open("a") as file:
            file.write("one\n")

    dataset = TensorDataset(torch.arange(COUNT))
    table = Table.in_memory(layout_of(default_collate([dataset[0]])), COUNT)
    watch = fingerprint(dataset).watch
    fill(table, Source(dataset, default_collate, 1, started_worker, 16), lambda: UnchangedInFork(watch))
    assert table.complete and len(started.read_text().split()) == expected
