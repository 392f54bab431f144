"""The allocators' settings: theirs, the user's, and before the process starts."""

from __future__ import annotations

import os

import pytest

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session

GPU = Facts(device="cuda")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def test_on_a_gpu_it_sets_pytorchs_allocator_and_leaves_malloc_alone() -> None:
    allocator = catalogue()["allocator"]
    assert allocator.applies(GPU) is None
    needed = [allocator.environment(settings) for settings in allocator.candidates(GPU)]
    assert {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} in needed and len(needed) == 2
    # Without a limit on the share of memory it does nothing: https://github.com/pytorch/pytorch/issues/76648
    assert "garbage_collection_threshold" not in str(needed)
    assert all(list(each) == ["PYTORCH_ALLOC_CONF"] for each in needed)
    cpu = [allocator.environment(settings) for settings in allocator.candidates(Facts())]
    assert not any("PYTORCH_ALLOC_CONF" in each for each in cpu)


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_what_the_user_has_set_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:64")
    allocator = catalogue()["allocator"]
    assert name in (allocator.applies(GPU) or "")
    settings = {"library": "as it is", "gpu": "expandable_segments:True"}
    assert allocator.environment(settings) == {}
    with Session([("allocator", settings)]) as session:
        assert os.environ[name] == "max_split_size_mb:64"
    assert name in session.seams.left_out["allocator"]


def test_it_is_in_force_where_the_process_was_started_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"library": "as it is", "gpu": "expandable_segments:True"}
    with Session([("allocator", settings)]) as session:
        pass
    assert "before the process starts" in session.seams.left_out["allocator"]
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with Session([("allocator", settings)]) as session:
        pass
    assert not session.seams.left_out
