"""State that lies in odd places: each change of it is seen before the next batch; what is left alone is no change."""

from __future__ import annotations

import builtins
import enum
import functools
import math
import os
import pathlib
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from overdrive.changes.fingerprint import fingerprint  # noqa: E402
from overdrive.datacache.opened import Opened  # noqa: E402
from overdrive.datacache.unchanged import Unchanged  # noqa: E402

CACHED_FROM = [0]
LOCK = threading.Lock()


class Array(np.ndarray):
    pass


class Path(type(pathlib.Path())):  # type: ignore[misc]
    level = 0


class Kind(enum.Enum):
    ONE = 1


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


class Reads(Holder):
    """Calls what it holds."""

    def __getitem__(self, index: int) -> Any:
        return self.held()


@functools.lru_cache
def remembered() -> int:
    return CACHED_FROM[0]


def attribute() -> None:
    pass


def of_builtins() -> Any:
    return OVERDRIVE_LEVELS  # type: ignore[name-defined]  # noqa: F821


def of_library() -> Any:
    return math.overdrive_levels  # type: ignore[attr-defined]


def of_mode() -> Any:
    return torch.is_grad_enabled()


def set_attribute(thing: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(thing, name, value)


def in_builtins() -> Any:
    builtins.OVERDRIVE_LEVELS = [0]  # type: ignore[attr-defined]
    return Reads(of_builtins), lambda: of_builtins().append(1)


def in_an_error_in_builtins() -> Any:
    builtins.OVERDRIVE_LEVELS = ValueError(0)  # type: ignore[attr-defined]
    return Reads(of_builtins), lambda: setattr(of_builtins(), "level", 1)


def in_library() -> Any:
    math.overdrive_levels = {"level": 0}  # type: ignore[attr-defined]
    return Reads(of_library), lambda: of_library().update(level=1)


def in_a_lock() -> Any:
    lock = threading.Lock()
    return Holder(lock), lock.acquire


def in_a_lock_of_a_thread() -> Any:
    lock = threading.RLock()
    return Holder(lock), lock.acquire


def in_a_cache() -> Any:
    remembered()
    return Reads(remembered), remembered.cache_clear


def in_a_row() -> Any:
    rows = np.zeros(4, [("x", "f4"), ("y", "i4")])
    return Holder(rows[2]), lambda: rows["y"].fill(3)


def in_an_array() -> Any:
    array = np.zeros(3).view(Array)
    array.level = 0  # type: ignore[attr-defined]
    return Holder(array), set_attribute(array, "level", 1)


def in_a_mask() -> Any:
    array = np.ma.zeros(3, int)
    array.mask = [False] * 3
    return Holder(array), lambda: array.mask.fill(True)


def beside_a_tensor() -> Any:
    tensor = torch.zeros(3)
    tensor.levels = [0]
    return Holder(tensor), lambda: tensor.levels.append(1)


def in_a_flag_of_a_tensor() -> Any:
    tensor = torch.zeros(3)
    return Holder(tensor), lambda: tensor.requires_grad_()


def in_a_gradient() -> Any:
    tensor = torch.zeros(3, requires_grad=True)
    tensor.sum().backward()
    return Holder(tensor), lambda: tensor.grad.numpy().fill(3)


def in_a_type_of_a_tensor() -> Any:
    tensor = torch.zeros(3)
    return Holder(tensor), lambda: setattr(tensor, "data", tensor.data.view(torch.int32))


def in_a_slice() -> Any:
    bounds = [0]
    return Holder(slice(bounds, None)), lambda: bounds.append(1)


def in_an_enum() -> Any:
    return Holder(Kind.ONE), set_attribute(Kind, "level", 1)


def in_a_kind_of_path() -> Any:
    return Holder(Path("x")), set_attribute(Path, "level", 1)


def in_all_attributes_at_once() -> Any:
    inner = Holder(0)
    return Holder([inner]), set_attribute(inner, "__dict__", {"held": 1})


def in_all_attributes_of_a_function() -> Any:
    function = types.FunctionType(attribute.__code__, globals())
    function.level = 0  # type: ignore[attr-defined]
    return Holder(function), set_attribute(function, "__dict__", {"level": 1})


def in_a_mode() -> Any:
    return Reads(of_mode), lambda: torch.set_grad_enabled(False)


def in_a_long_list() -> Any:
    items = list(range(100_000))
    return Holder(items), lambda: items.__setitem__(50_000, 7)


CASES: dict[str, Callable[[], Any]] = {
    name: value for name, value in globals().items() if name.startswith(("in_", "beside_"))
}


@pytest.fixture(autouse=True)
def put_back() -> Any:
    yield
    torch.set_grad_enabled(True)
    for space, name in ((vars(builtins), "OVERDRIVE_LEVELS"), (vars(math), "overdrive_levels")):
        space.pop(name, None)
    for kind in (Kind, Path):
        if "level" in vars(kind):
            type.__delattr__(kind, "level")


def assert_seen(thing: Any, change: Callable[[], Any]) -> None:
    """That looks see nothing before the change, and something after it."""
    unchanged = Unchanged((thing,), fingerprint(thing))
    assert unchanged.seen.hidden_here is None
    assert unchanged.changed() is None and unchanged.changed() is None
    change()
    assert unchanged.changed() is not None


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str) -> None:
    assert_seen(*CASES[name]())


def exists() -> bool:
    return any(map(os.path.exists, ["late", "later"]))


def test_a_file_among_texts_may_come_to_be_there(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["late", "later"]
    unchanged = Unchanged((names, exists), fingerprint(names, exists))
    pathlib.Path("other").touch()
    assert unchanged.changed() is None
    pathlib.Path("later").touch()
    assert unchanged.changed() is not None


def test_a_file_that_could_not_be_opened_may_come_to_be_there(tmp_path: pathlib.Path) -> None:
    with Opened() as opened, pytest.raises(FileNotFoundError):
        (tmp_path / "late").read_text()
    unchanged = Unchanged((1,), fingerprint(1), opened.paths())
    assert unchanged.changed() is None
    (tmp_path / "late").touch()
    assert unchanged.changed() is not None


def by_descriptor(number: int) -> bytes:
    return os.pread(number, 9, 0)


def test_a_file_that_is_open_is_watched_where_code_reads_by_its_number(tmp_path: pathlib.Path) -> None:
    (path := tmp_path / "data").write_text("0")
    with path.open() as file:
        roots = (by_descriptor, file.fileno())
        unchanged = Unchanged(roots, fingerprint(*roots))
        assert unchanged.changed() is None
        with (tmp_path / "log").open("w") as log:  # which a program writes to, and cannot read
            unchanged = Unchanged(roots, fingerprint(*roots))
            print("a line", file=log, flush=True)
            assert unchanged.changed() is None
        path.write_text("1")
        assert unchanged.changed() is not None


def folder_in_builtins() -> Any:
    return os.listdir(OVERDRIVE_FOLDER)  # type: ignore[name-defined]  # noqa: F821


def test_a_file_that_is_named_among_builtins_is_watched(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder that a data set lists, named by a string there, nothing was known."""
    monkeypatch.setattr(builtins, "OVERDRIVE_FOLDER", str(tmp_path), raising=False)
    held = Reads(folder_in_builtins)
    unchanged = Unchanged((held,), fingerprint(held))
    assert unchanged.changed() is None
    (tmp_path / "new").write_text("")
    assert unchanged.changed() is not None
    monkeypatch.setattr(builtins, "OVERDRIVE_FOLDER", str(tmp_path / "other"))
    assert fingerprint(held).digest != unchanged.seen.digest
