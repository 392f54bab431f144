"""The states of a state replay are thinned so that they leave room on the disk, in either framework."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from overdrive.worker.replay import Reference
from overdrive.worker.thinning import thinned

STEPS = {1, 2, 3, 4, 10, 20, 40, 80, 97, 98, 99, 100}


def with_free(bytes_free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=bytes_free))


def test_all_steps_are_kept_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(4 * 5 * 12 * 1000, monkeypatch)
    assert thinned(STEPS, 1000, tmp_path) == STEPS


def test_as_many_evenly_spaced_steps_are_kept_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(4 * 5 * 6 * 1000, monkeypatch)
    kept = thinned(STEPS, 1000, tmp_path)
    assert len(kept) == 6 and kept < STEPS and {1, 100} <= kept


def test_steps_with_a_rare_event_stay_where_few_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ends of epochs evenly spaced ones met none, so that what is wrong in their last batches alone passed."""
    with_free(4 * 5 * 4 * 1000, monkeypatch)
    assert thinned(STEPS, 1000, tmp_path, (20, 40)) == {1, 20, 40, 100}
    assert thinned(STEPS, 1000, tmp_path, (20, 500)) > {1, 20, 100}
    assert len(thinned(STEPS, 1000, tmp_path, (20, 500))) == 4 == len(thinned(STEPS, 1000, tmp_path, STEPS))


def test_the_limit_is_fixed_where_the_disk_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(10**15, monkeypatch)
    assert len(thinned(STEPS, 10**8, tmp_path)) == 8  # 4 GB


def test_a_full_disk_leaves_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(0, monkeypatch)
    assert len(thinned(STEPS, 10**9, tmp_path)) == 4
    assert thinned({1, 2, 3}, 10**9, tmp_path) == {1, 2, 3}


class _Program:
    """Steps with a state of 4,000 bytes."""

    needs = "targets"
    open_ended = False

    def size(self) -> int:
        return 4000

    def save(self, path: Path) -> None:
        path.touch()

    def values(self) -> dict[str, Any]:
        return {}

    results = values

    def inputs(self) -> list[float]:
        return []

    def nothing(self) -> None:
        pass

    settle = begin = end = nothing


def test_a_reference_run_saves_fewer_states_where_all_would_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(4 * 5 * 6 * 4000, monkeypatch)
    reference = Reference(cast(Any, _Program()), sorted(STEPS), tmp_path)
    reference.rare = (10,)
    for step in range(101):
        reference.stands(step)
    assert len(list(tmp_path.glob("state-*"))) == 6
    assert 10 in reference.report()["states"]
    assert reference.report()["thinned"] and len(reference.report()["states"]) == 6
