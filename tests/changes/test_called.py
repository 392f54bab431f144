"""What a fetch comes to in libraries, and what it asks its process for: watched, or else nothing is kept."""

from __future__ import annotations

import abc
import codecs
import copy
import copyreg
import csv
import os
import random
import resource
import shlex
import statistics
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from PIL import Image, ImageFile  # noqa: E402

from overdrive.changes.called import Calls, watch_called  # noqa: E402
from overdrive.changes.fingerprint import fingerprint  # noqa: E402
from overdrive.changes.walk.asked import handlers_of_errors  # noqa: E402
from overdrive.changes.watch import Watch  # noqa: E402
from overdrive.datacache.unchanged import Unchanged  # noqa: E402
from tests.settings import settings_kept  # noqa: E402


class Calling:
    """A data set that calls what it holds."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def __getitem__(self, index: int) -> Any:
        return self.call()


def watched(call: Callable[[], Any]) -> Watch:
    calls = Calls()
    with calls:
        call()
    watch = watch_called(calls.told())
    assert not watch.changed()
    return watch


def test_a_function_that_only_a_library_calls_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(lambda: statistics.mean([1, 2, 3]))
    monkeypatch.setattr(statistics, "_convert", lambda value, kind: 9)
    assert watch.changed()


def test_a_class_that_only_a_library_makes_objects_of_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(lambda: shlex.split("a b"))
    monkeypatch.setattr(shlex, "shlex", None)
    assert watch.changed()


def test_a_method_that_only_a_library_calls_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(lambda: textwrap.wrap("a b"))
    monkeypatch.setattr(textwrap.TextWrapper, "_split_chunks", lambda own, text: ["x"])
    assert watch.changed()


def test_a_setting_that_only_a_library_reads_is_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    Image.new("L", (9, 9)).save(tmp_path / "a.png")
    watch = watched(lambda: Image.open(tmp_path / "a.png").tobytes())
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", not ImageFile.LOAD_TRUNCATED_IMAGES)
    assert watch.changed()


def test_a_setting_in_an_object_of_a_librarys_is_watched() -> None:
    watch = watched(lambda: str(torch.tensor([0.5])))
    torch.set_printoptions(precision=7)
    try:
        assert watch.changed()
    finally:
        torch.set_printoptions(precision=4)


def test_what_a_fetch_itself_sets_anew_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as whether Pillow has its plugins: the first real fetch sets it in the program's process as well."""
    monkeypatch.setattr(Image, "_initialized", 0)
    calls = Calls()
    with calls:
        Image.preinit()
    told = calls.told()
    assert Image._initialized == 1 and "_initialized" in told["PIL.Image"]
    Image._initialized = 0  # as it is where the fetch was tried in a fork
    watch = watch_called(told)
    Image._initialized = 1
    assert not watch.changed()


def test_what_is_called_is_a_part_of_what_is_to_stay_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    held, calls = Calling(lambda: statistics.mean([1, 2, 3])), Calls()
    with calls:
        held[0]
    unchanged = Unchanged((held,), fingerprint(held), (), calls.told())
    assert unchanged.changed() is None
    monkeypatch.setattr(statistics, "_convert", lambda value, kind: 9)
    assert unchanged.changed() == "something of a library's was replaced that samples may depend on"


STATES: dict[str, Callable[[], Any]] = {
    "python": lambda: random.getstate(),
    "numpy": lambda: np.random.get_state(),
    "torch": lambda: torch.get_rng_state(),
    "torch's own": lambda: torch.default_generator.get_state(),
    "seed": lambda: torch.initial_seed(),
    "put back": lambda: (random.getstate(), random.random(), random.setstate(())),
    "rights": lambda: resource.getrlimit(resource.RLIMIT_CORE),
    "mask": lambda: os.umask(0),
    "threads": lambda: threading.active_count(),
    "load": lambda: os.getloadavg(),
}
KEPT: dict[str, Callable[[], Any]] = {
    "seeded": lambda: (random.getstate(), random.seed(1), random.random(), random.setstate(())),
    "fork_rng": lambda: (torch.random.fork_rng(), torch.manual_seed(1)),
    "as PyTorch's recipe for workers": lambda: np.random.seed(torch.initial_seed() % 2**32),
    "a method of its own": lambda: Calling(lambda: 1).get_state(),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("name", STATES)
def test_what_hangs_on_the_moment_or_the_process_is_not_kept(name: str) -> None:
    assert fingerprint(Calling(STATES[name])).hidden_here is not None


@pytest.mark.parametrize("name", KEPT)
def test_what_only_looks_so_is(name: str) -> None:
    assert fingerprint(Calling(KEPT[name])).hidden_here is None


def test_a_function_that_gives_a_state_is_known_under_another_name() -> None:
    for state in (random.getstate, np.random.get_state, torch.get_rng_state):
        assert fingerprint(Calling(state)).hidden_here is not None


class Abstract(abc.ABC):  # noqa: B024
    pass


def numbers(index: Any) -> bool:
    return isinstance(index, Abstract)


def annotated(one: int = 0) -> Any:
    return annotated.__annotations__


NAME_OF_ERRORS = "of a test"
codecs.register_error(NAME_OF_ERRORS, codecs.replace_errors)
handlers_of_errors()  # as tests begin, what is there is frozen, and cannot be found
SEEN: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
    "registered": (lambda: numbers(1), lambda: Abstract.register(bytearray), lambda: None),
    "annotation": (annotated, lambda: annotated.__annotations__.update(two=int), lambda: None),
    "switching": (sys.getswitchinterval, lambda: sys.setswitchinterval(0.02), lambda: sys.setswitchinterval(0.005)),
    "fields": (lambda: csv.reader([""]), lambda: csv.field_size_limit(7), lambda: csv.field_size_limit(131072)),
    "dialect": (lambda: csv.reader([""]), lambda: csv.register_dialect("x"), lambda: csv.unregister_dialect("x")),
    "errors in texts": (
        lambda: b"\xff".decode("ascii", NAME_OF_ERRORS),
        lambda: codecs.register_error(NAME_OF_ERRORS, codecs.ignore_errors),
        lambda: codecs.register_error(NAME_OF_ERRORS, codecs.replace_errors),
    ),
    "how objects are copied": (
        lambda: copy.copy(Abstract),
        lambda: copyreg.pickle(Calling, lambda thing: (Calling, (None,))),
        lambda: copyreg.dispatch_table.pop(Calling),
    ),
    "precision of products": (
        lambda: torch.ones(1, 1) @ torch.ones(1, 1),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "mode": (
        lambda: torch.ones(1).requires_grad,
        lambda: torch.set_grad_enabled(False),
        lambda: torch.set_grad_enabled(True),
    ),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_setting_is_watched(name: str) -> None:
    read, change, put_back = SEEN[name]
    held = Calling((lambda: sys.getswitchinterval()) if name == "switching" else read)
    unchanged = Unchanged((held,), fingerprint(held))
    assert unchanged.changed() is None
    with settings_kept():
        change()
        try:
            assert unchanged.changed() is not None
        finally:
            put_back()


def test_the_mode_is_watched_where_a_parameter_can_be_come_to() -> None:
    held = Calling(torch.nn.Linear(1, 1).bias.exp)
    seen = fingerprint(held)
    assert seen.asks_mode and not fingerprint(Calling(torch.zeros(1).exp)).asks_mode
    unchanged = Unchanged((held,), seen)
    with torch.no_grad():
        assert unchanged.changed() is not None
