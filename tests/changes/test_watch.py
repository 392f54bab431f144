"""What a data set holds is watched: changes are seen, and what stays as it was is not taken for one."""

from __future__ import annotations

import abc
import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import pytest

from overdrive.changes.fingerprint import fingerprint
from overdrive.changes.watch import Watch
from overdrive.datacache.unchanged import Unchanged

Item = TypeVar("Item")
OF_PROGRAM = contextvars.ContextVar("OF_PROGRAM", default=0)


def rows() -> Any:
    return np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32)  # more than a part of it


def swapped(array: Any) -> None:
    array[[3, 250]] = array[[250, 3]]


def shuffled(array: Any) -> None:
    np.random.default_rng(1).shuffle(array)


def reversed_(array: Any) -> None:
    array[:] = array[::-1].copy()


def one_bit(array: Any) -> None:
    array.view(np.uint32)[299, 999] ^= 1


def another_type(array: Any) -> None:
    array.dtype = np.int32


def assert_seen(array: Any, change: Callable[[Any], None]) -> None:
    watch = Watch()
    watch.array(array)
    watch.hold()
    assert not watch.changed()
    change(array)
    assert watch.changed()


@pytest.mark.parametrize("change", [swapped, shuffled, reversed_, one_bit])
@pytest.mark.parametrize("make", [rows, lambda: np.asfortranarray(rows()), lambda: rows()[:, ::2]])
def test_a_change_in_place_is_seen(change: Callable[[Any], None], make: Callable[[], Any]) -> None:
    assert_seen(make() if change is not one_bit else rows(), change)


def test_objects_that_change_places_are_seen() -> None:
    array = np.array(["a", "b", None], dtype=object)
    watch = Watch()
    watch.array(array)
    watch.hold()
    assert not watch.changed()
    array[[0, 1]] = array[[1, 0]]
    assert watch.changed()


def transposed(array: Any) -> None:
    array.shape = array.shape[::-1]


@pytest.mark.parametrize("size", [(8, 4), (300, 1000)])
@pytest.mark.parametrize("change", [transposed, another_type])
def test_another_form_is_seen(change: Callable[[Any], None], size: tuple[int, ...]) -> None:
    assert_seen(np.zeros(size, np.float32), change)


@pytest.mark.parametrize("others", [0, 7])
def test_what_one_list_loses_is_not_what_the_next_gains(others: int) -> None:
    one, other = [1, 2, 3], [4, 5]
    watch = Watch()
    for each in (one, other, *([] for _ in range(others))):
        watch.items(each)
    watch.hold()
    assert not watch.changed()
    other.insert(0, one.pop())
    assert watch.changed()


def in_decimals() -> Any:
    import decimal

    return decimal.localcontext(decimal.Context(prec=5))


@contextlib.contextmanager
def of_another_type() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def in_another_folder() -> Iterator[None]:  # Python 3.10 has no contextlib.chdir
    before = os.getcwd()
    os.chdir("/")
    try:
        yield
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    "other",
    [
        lambda: np.errstate(over="raise"),
        lambda: np.printoptions(precision=3),
        in_decimals,
        of_another_type,
        in_another_folder,
    ],
    ids=["numpy's errors", "numpy's precision", "decimals", "default type", "folder"],
)
def test_settings_count_but_where_techniques_that_change_them_are_switched(
    other: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import decimal  # noqa: F401

    seen = Unchanged(([1, 2],), fingerprint([1, 2]))
    assert seen.changed() is None
    with other():
        assert "a setting" in (seen.changed() or "")
        monkeypatch.setenv("OVERDRIVE_SWITCHED", "1")
        assert seen.changed() is None
        monkeypatch.delenv("OVERDRIVE_SWITCHED")
    assert seen.changed() is None


def test_a_context_variable_of_the_programs_own_is_no_setting() -> None:
    seen = Unchanged(([1, 2],), fingerprint([1, 2]))
    for each in range(3):
        OF_PROGRAM.set(each)
        assert seen.changed() is None
    with np.errstate(over="raise"):
        OF_PROGRAM.set(4)
        assert seen.changed() is not None
        assert seen.changed() is not None


def fresh_objects() -> dict[str, Any]:
    """Of classes and functions that nobody has looked at yet."""

    class Plain:
        def __init__(self) -> None:
            self.level = 1

    class Slotted:
        __slots__ = ("level",)

    class Pickled(Plain):
        def __getstate__(self) -> Any:
            return {"level": self.level}

    class Annotated:
        level: int = 1

    class Abstract(abc.ABC):  # noqa: B024
        level = 1

    class Listed(list):  # type: ignore[type-arg]
        pass

    class Of(Generic[Item]):
        pass

    def function(level: int = 1) -> int:
        return level

    slotted = Slotted()
    slotted.level = 1  # type: ignore[attr-defined]
    tuples = collections.namedtuple("tuples", "level")
    made = dataclasses.make_dataclass("made", [("level", int)])
    kinds = [Plain(), slotted, Pickled(), Annotated(), Abstract(), Listed([1]), Of(), function, tuples(1), made(1)]
    kinds += [Plain, enum.Enum("Level", "one two").one, functools.partial(function, 2), ValueError(Plain())]  # type: ignore[attr-defined]
    return {type(each).__qualname__ + str(place): each for place, each in enumerate(kinds)}


@pytest.mark.parametrize("name", fresh_objects())
def test_looking_at_an_object_is_no_change_of_it(name: str) -> None:
    """Pickling one for the first time puts `__slotnames__` into its class, which was watched already: every data set of
    a class of the program's own was refused, "fetching a sample changes the data set"."""
    thing = fresh_objects()[name]
    watch = fingerprint(thing).watch
    assert not watch.changed() and not watch.replaced()
