"""Words of memory: each change of what they belong to is seen, what changes beside it is not taken for one."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from overdrive.changes import word_places  # noqa: E402
from overdrive.changes.watch import Watch  # noqa: E402
from overdrive.changes.word_places import Places  # noqa: E402
from overdrive.changes.words import Words  # noqa: E402


class Thing:
    def __init__(self) -> None:
        self.one: Any = 1
        self.two: Any = [2]


class Other(Thing):
    pass


def function(one: Any = (), *, two: Any = ()) -> Any:
    return one, two


def set_often(thing: Thing) -> None:
    """By bytecode that has specialised itself."""
    for each in range(100):
        thing.one = each


def put_often(space: dict[str, Any]) -> None:
    for each in range(100):
        space["one"] = each


def reordered(space: dict[str, Any]) -> None:
    space["one"] = space.pop("one")


DICTS: list[Callable[[Any], Any]] = [
    lambda space: space.update(one=object()),
    lambda space: space.pop("two"),
    lambda space: space.popitem(),
    lambda space: space.clear(),
    lambda space: space.setdefault("three", 3),
    put_often,
    reordered,
]
KINDS = [lambda: {"one": 1, "two": 2}, lambda: collections.defaultdict(int, one=1, two=2), lambda: vars(Thing())]


def assert_seen(watch: Watch, change: Callable[[], object]) -> None:
    watch.hold()
    assert not watch.changed()
    change()
    assert watch.changed()


@pytest.mark.parametrize("change", DICTS)
@pytest.mark.parametrize("make", KINDS)
def test_changes_of_a_dict_are_seen(change: Callable[[Any], Any], make: Callable[[], Any]) -> None:
    watch = Watch()
    watch.items(space := make())
    assert_seen(watch, lambda: change(space))


@pytest.mark.parametrize(
    "change",
    [
        set_often,
        lambda thing: setattr(thing, "three", 3),
        lambda thing: delattr(thing, "one"),
        lambda thing: setattr(thing, "__dict__", dict(vars(thing))),
        lambda thing: setattr(thing, "__class__", Other),
    ],
)
def test_changes_of_an_object_are_seen(change: Callable[[Any], Any]) -> None:
    thing = Thing()
    watch = Watch()
    watch.space(thing, vars(thing))
    assert_seen(watch, lambda: change(thing))


@pytest.mark.parametrize(
    "change",
    [
        lambda items: items.append(1),
        lambda items: items.extend(range(1000)),
        lambda items: items.reverse(),
        lambda items: items.__setitem__(1, 7.5),
        lambda items: items.pop(),
        lambda items: items.clear(),
    ],
)
def test_changes_of_a_list_are_seen(change: Callable[[Any], Any]) -> None:
    watch = Watch()
    watch.items(items := [1.5, 2.5, 3.5])
    assert_seen(watch, lambda: change(items))


@pytest.mark.parametrize(
    ("name", "value"), [("__code__", set_often.__code__), ("__defaults__", (1,)), ("__kwdefaults__", {"two": 3})]
)
def test_changes_of_a_function_are_seen(name: str, value: Any) -> None:
    copy = types.FunctionType(function.__code__, {}, argdefs=((),))
    copy.__kwdefaults__ = {"two": ()}
    watch = Watch()
    watch.function(copy)
    assert_seen(watch, lambda: setattr(copy, name, value))


def test_changes_of_a_cell_and_of_a_class_are_seen() -> None:
    cell = types.CellType([1])
    watch = Watch()
    watch.cell(cell)
    assert_seen(watch, lambda: setattr(cell, "cell_contents", [1]))
    watch = Watch()
    watch.cell(cell)
    assert_seen(watch, lambda: delattr(cell, "cell_contents"))
    kind = type("Kind", (), {"one": 1})
    watch = Watch()
    watch.name(vars(kind), "one")
    watch.name(vars(kind), "two")
    assert_seen(watch, lambda: setattr(kind, "two", 2))


@pytest.mark.parametrize("size", [1, 3, 8, 100, 200])
def test_each_byte_of_a_small_array_counts(size: int) -> None:
    whole = np.zeros(size + 16, np.uint8)
    for start in (0, 3, 8):
        array = whole[start : start + size]
        for place in {0, size // 2, size - 1}:
            watch = Watch()
            watch.array(array)
            watch.hold()
            assert not watch.changed()
            array[place] += 1
            assert watch.changed()


def test_what_lies_beside_a_small_array_does_not_count() -> None:
    whole = np.zeros(32, np.uint8)
    watch = Watch()
    watch.array(whole[3:9])
    watch.hold()
    whole[:3] = whole[9:] = 1
    assert not watch.changed()
    whole[:3] = 2
    assert not watch.changed()
    whole[4] = 1
    assert watch.changed()


def test_a_list_that_moves_and_holds_the_same_has_not_changed_and_is_watched_on() -> None:
    watch = Watch()
    watch.items(items := [1.5, 2.5, 3.5])
    watch.items(other := [4.5])
    watch.hold()
    items += range(10_000)
    del items[3:]
    assert not watch.changed()
    assert not watch.changed()
    items[2] = 9.5
    assert watch.changed()
    items[2] = 3.5
    other[0] = 9.5
    assert watch.changed()


def test_what_changes_before_all_is_told_is_a_change() -> None:
    watch = Watch()
    watch.items(items := [1.5, 2.5, 3.5])
    items += range(10_000)
    watch.hold()
    assert watch.changed()


def test_names_beside_those_that_count_may_change_all_the_time() -> None:
    space = {"counts": 1.5, "step": 0}
    watch = Watch()
    watch.name(space, "counts")
    watch.name(space, "absent")
    watch.hold()
    for step in range(5):
        space["step"] = step
        assert not watch.changed()
    space["absent"] = 1
    assert watch.changed()
    del space["absent"]
    assert not watch.changed()
    space["counts"] = 2.5
    assert watch.changed()


def test_libraries_are_told_apart_from_what_is_the_programs() -> None:
    space, library = {"mine": 1.5}, {"theirs": 1.5, "beside": 1}
    watch = Watch()
    watch.name(space, "mine")
    watch.fixed(library, "theirs")
    watch.hold()
    space["mine"] = 2.5
    assert watch.changed()
    assert not watch.replaced()
    library["beside"] = 2
    assert not watch.replaced()
    library["theirs"] = 2.5
    assert watch.replaced()


def test_without_words_the_same_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_places, "_usable", lambda: False)
    for cached in (word_places._version_at, word_places._function_at, word_places._class_at):
        monkeypatch.setattr(word_places, cached.__name__, cached.__wrapped__)
    thing = Thing()
    assert (
        word_places.of_dict(vars(thing))
        is word_places.of_list([1])
        is word_places.of_function(function)
        is word_places.of_spaces([thing])
        is None
    )
    for change in DICTS:
        test_changes_of_a_dict_are_seen(change, KINDS[0])
    test_names_beside_those_that_count_may_change_all_the_time()
    test_libraries_are_told_apart_from_what_is_the_programs()
    test_changes_of_a_cell_and_of_a_class_are_seen()


def test_words_are_there_where_python_has_them() -> None:
    """Before 3.13, of which the rest of these tests would pass without them."""
    import sys

    if sys.implementation.name == "cpython" and sys.version_info < (3, 13):
        assert None not in (
            word_places.of_dict({}),
            word_places.of_list([]),
            word_places.of_function(function),
            word_places.of_spaces([Thing()]),
        )


def test_another_word_is_asked_about_once_it_is_another() -> None:
    asked: list[int] = []
    array = np.zeros(4, np.uint64)
    known = Words()
    for place in range(4):
        start = array.ctypes.data + 8 * place
        known.add(lambda place=place: asked.append(place) or place == 3, Places((start,)))  # type: ignore[misc, func-returns-value]
    known.seal()
    assert not known.changed()
    assert asked == []
    array[1] = 1
    assert not known.changed()
    assert not known.changed()
    assert asked == [1, 1]  # from then on each time
    array[3] = 1
    assert known.changed()


def test_memory_is_read_only_where_what_refers_to_it_is_as_it_was() -> None:
    """Once a list has other memory, its former may be gone: no page of it is touched then. Here it never was one."""
    array, nowhere = np.zeros(2, np.uint64), 1 << 40
    known = Words()
    known.add(lambda: True, Places((array.ctypes.data,), (nowhere,), (7, 8)))  # changed while it was looked at
    known.seal()
    assert known.changed()
    known = Words()
    words = np.zeros(2000, np.uint64)
    start = words.ctypes.data
    known.add(lambda: words[0] == 2, Places((array.ctypes.data,), range(start, start + words.nbytes, 8)))
    known.seal()
    assert not known.changed()
    assert max(map(len, known._places)) <= 500  # of more numpy lets go of Python's lock
    words[1999] = 1
    assert not known.changed()
    words[0] = 2
    assert known.changed()


def plain() -> Any:
    return torch.zeros(2, 2)


def of_complex() -> Any:
    return torch.zeros(2, 2, dtype=torch.complex64)


def with_gradient() -> Any:
    tensor = torch.zeros(2, 2, requires_grad=True)
    tensor.sum().backward()
    return tensor


def taken_by(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda tensor: setattr(tensor, name, change(tensor))


TENSORS: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (plain, lambda tensor: tensor.add_(0)),
    (plain, lambda tensor: tensor.resize_(4)),
    (plain, lambda tensor: tensor.t_()),
    (plain, lambda tensor: tensor.set_(torch.zeros(2, 2))),
    (plain, lambda tensor: tensor.requires_grad_()),
    (plain, lambda tensor: torch.utils.swap_tensors(tensor, torch.ones(2, 2))),
    (plain, lambda tensor: tensor.untyped_storage().resize_(1 << 20)),
    (plain, taken_by("grad", torch.zeros_like)),
    (plain, taken_by("data", torch.zeros_like)),
    (plain, taken_by("data", lambda tensor: tensor.data.view(torch.int32))),
    (plain, taken_by("data", lambda tensor: tensor.data.t())),
    (plain, taken_by("data", lambda tensor: tensor.data[:1])),
    (of_complex, taken_by("data", lambda tensor: tensor.data.conj())),
    (lambda: of_complex().imag, taken_by("data", lambda tensor: tensor.data.neg())),
    (with_gradient, taken_by("grad", torch.zeros_like)),
    (with_gradient, taken_by("grad", lambda _: None)),
    (with_gradient, lambda tensor: tensor.requires_grad_(False)),
]


@pytest.mark.parametrize(("make", "change"), TENSORS)
def test_changes_of_a_tensor_are_seen(make: Callable[[], Any], change: Callable[[Any], Any]) -> None:
    watch = Watch()
    watch.tensor(tensor := make())
    watch.hold()
    assert not watch.changed()
    assert not watch.touched()
    kept = tensor.detach()[:1], tensor.sum(), tensor.tolist()
    assert not watch.changed()
    assert not watch.touched()
    change(tensor)
    assert watch.changed()
    assert watch.touched()
    del kept
