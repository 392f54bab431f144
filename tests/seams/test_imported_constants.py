"""Constants of modules that a program imports: found and set as they are compiled, no file touched."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from overdrive.core.hyperparameters import CONSTANT, ValuePlace
from overdrive.seams.imported_constants import ImportedConstants, as_word, has_still

NAME = "some_settings"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{NAME}.py").write_text("LR = 0.1\nclass Config:\n    batch = 32\n")
    yield tmp_path
    sys.modules.pop(NAME, None)


def imported(values: dict[str, float]) -> tuple[object, dict[str, ValuePlace], ImportedConstants]:
    places: list[ValuePlace] = []
    seam = ImportedConstants(values, places.extend)
    leave = seam.enter()
    sys.modules.pop(NAME, None)
    try:
        return importlib.import_module(NAME), {place.name: place for place in places}, seam
    finally:
        leave()


def test_they_are_found_and_set_whatever_a_cache_holds(folder: Path) -> None:
    importlib.import_module(NAME)  # compiled, and kept in __pycache__
    module, places, seam = imported({})
    assert {name: place.value for name, place in places.items()} == {"LR": 0.1, "Config.batch": 32}
    assert places["LR"].where == f"{NAME}.py:1" and places["LR"].kind == "imported"
    assert seam.still(places["LR"])
    module.LR = 0.2  # type: ignore[attr-defined]
    assert not seam.still(places["LR"])
    module, _, _ = imported({places["LR"].key: 0.5, places["Config.batch"].key: 64})
    assert (module.LR, module.Config.batch) == (0.5, 64)  # type: ignore[attr-defined]
    sys.modules.pop(NAME)
    assert importlib.import_module(NAME).LR == 0.1  # nothing is left of it


def test_libraries_are_left_alone(folder: Path) -> None:
    places: list[ValuePlace] = []
    leave = ImportedConstants({}, places.extend).enter()
    sys.modules.pop("colorsys", None)
    importlib.import_module("colorsys")
    leave()
    assert not places


def test_a_module_with_a_mistake_fails_as_it_would(folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("LR = = 1\n")
    with pytest.raises(SyntaxError):
        imported({})


def test_a_constant_that_was_set_anew_may_be_a_word_of_the_command_line() -> None:
    place = ValuePlace(CONSTANT, "batch_size", 12, "train.py:3")
    as_it_was = SimpleNamespace(batch_size=12)
    assert has_still(as_it_was, place, {}) and not as_word(as_it_was, place, {})
    word = as_word(SimpleNamespace(batch_size=64), place, {})
    assert word and (word.kind, word.name, word.value) == ("word", "--batch_size", 64)
    assert as_word(SimpleNamespace(batch_size="many"), place, {}) is None
    assert has_still(SimpleNamespace(batch_size=7), place, {place.key: 7})


def test_a_constant_that_is_an_array_by_now_is_another_one() -> None:
    """The whole listing failed: "The truth value of an array with more than one element is ambiguous"."""
    place = ValuePlace(CONSTANT, "weights", 2.0, "train.py:1")
    assert has_still(SimpleNamespace(weights=2.0), place, {})
    for now in (np.full(3, 2.0), [2.0, 2.0]):
        module = SimpleNamespace(weights=now)
        assert not has_still(module, place, {}) and as_word(module, place, {}) is None
