"""State in places that are easily overlooked: a change of it is seen before the next batch, or nothing is kept."""

from __future__ import annotations

import array
import collections
import functools
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from overdrive.changes.fingerprint import fingerprint  # noqa: E402
from overdrive.changes.state import has_state_of_c  # noqa: E402
from tests.changes.test_watched_state import assert_seen  # noqa: E402

STATE = [0]


class Holder:
    def __init__(self, held: Any = None) -> None:
        self.held = held


class Slotted:
    __slots__ = ("__weakref__", "held")


class Random(random.Random):
    pass


class DefaultDict(collections.defaultdict):  # type: ignore[type-arg]
    pass


class OwnSet(set):  # type: ignore[type-arg]
    pass


class OwnList(list):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(())


class OwnDict(dict):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def keys(self) -> Any:
        return ()


class OwnOrdered(collections.OrderedDict):  # type: ignore[type-arg]
    pass


class Reducing(collections.deque):  # type: ignore[type-arg]
    def __reduce__(self) -> Any:
        return Reducing, ()


class Hearing(torch.Tensor):
    heard = 0

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        Hearing.heard += 1
        return super().__torch_function__(function, kinds, args, kwargs or {})


@functools.lru_cache
def table() -> Any:
    return [0, [1]]


@functools.lru_cache(maxsize=4)
def shifted(by: int) -> int:
    return by + STATE[0]


def settings() -> types.ModuleType:
    module = types.ModuleType("overdrive_settings")
    sys.modules[module.__name__] = module
    return module


def late() -> Any:
    return getattr(sys.modules["overdrive_settings"], "late", 0)


def imported() -> Any:
    import overdrive_settings

    return overdrive_settings.size


def dynamic() -> Any:
    import overdrive_settings

    return overdrive_settings.dynamic


def made_up(name: str) -> Any:
    if name == "dynamic":
        return STATE[0]
    raise AttributeError(name)


def relative() -> Any:
    from .settings import size  # type: ignore[import-not-found]

    return size


def named() -> None:
    """Nothing."""


def setting(thing: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(thing, name, value)


def in_a_cell_that_was_empty() -> Any:
    def make() -> Any:
        def read() -> Any:
            return held

        def fill() -> None:
            nonlocal held
            held = 1

        if not STATE:
            held = 0
        return read, fill

    return make()


def in_a_slot_that_is_left_empty() -> Any:
    thing = Slotted()
    thing.held = None
    return thing, lambda: delattr(thing, "held")


def in_the_order_of_a_set() -> Any:
    things = {0}
    things.update((8, 16))
    return Holder(things), lambda: (things.clear(), things.update((16, 8, 0)))


def in_the_order_of_an_own_set() -> Any:
    things = OwnSet((0, 8, 16))
    return things, lambda: (things.clear(), things.update((16, 8, 0)))


def in_the_order_of_an_own_dict() -> Any:
    things = OwnOrdered(one=1, two=2)
    return things, lambda: things.move_to_end("one")


def in_a_list_that_hides_it() -> Any:
    things = OwnList([[0]])
    return things, lambda: things[0].append(1)


def in_a_dict_that_hides_it() -> Any:
    things = OwnDict(one=[0])
    return things, lambda: things["one"].append(1)


def in_an_own_generator() -> Any:
    generator = Random(0)
    return Holder(generator), lambda: generator.seed(1)


def in_what_is_not_there() -> Any:
    things = DefaultDict(int)
    return Holder(things), setting(things, "default_factory", list)


def in_what_a_function_remembers() -> Any:
    table()
    return table, lambda: table()[1].append(2)


def in_what_a_function_remembered_anew() -> Any:
    STATE[0] = 0
    shifted.cache_clear()
    shifted(1)

    def change() -> None:
        STATE[0] = 5
        shifted.cache_clear()
        shifted(1)
        STATE[0] = 0

    return shifted, change


def in_an_attribute_of_a_partial() -> Any:
    function = functools.partial(int)
    return Holder(function), setting(function, "level", 1)


def in_what_a_class_inherits() -> Any:
    class One:
        level = 1

    class Two:
        level = 2

    class Beside:
        pass

    class Kind(One, Beside):
        pass

    return Kind(), setting(Kind, "__bases__", (Two, Beside))


def in_what_makes_a_class() -> Any:
    class One(type):
        level = 1

    class Two(type):
        level = 2

    class Kind(metaclass=One):
        pass

    return Holder(Kind), setting(Kind, "__class__", Two)


def in_the_name_of_a_class() -> Any:
    class Kind:
        pass

    return Kind(), setting(Kind, "__name__", "other")


def in_the_name_of_a_function() -> Any:
    function = types.FunctionType(named.__code__, globals())
    return Holder(function), setting(function, "__name__", "other")


def in_the_class_of_a_module() -> Any:
    class Module(types.ModuleType):
        late = 1

    module = settings()
    return late, setting(module, "__class__", Module)


def in_what_a_module_has_later() -> Any:
    module = settings()
    return late, setting(module, "late", 1)


def in_what_a_module_makes_up() -> Any:
    module = settings()
    module.__getattr__ = made_up  # type: ignore[method-assign]
    STATE[0] = 0
    return dynamic, lambda: STATE.__setitem__(0, 1)


def in_what_is_imported() -> Any:
    settings().size = 0  # type: ignore[attr-defined]

    def change() -> None:
        settings().size = 1  # type: ignore[attr-defined]

    return imported, change


def in_what_is_imported_from_beside() -> Any:
    for name in ("overdrive_package", "overdrive_package.settings"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[name].size = [0]  # type: ignore[attr-defined]
    function = types.FunctionType(relative.__code__, {"__package__": "overdrive_package", "__name__": "one"})
    return function, lambda: sys.modules[name].size.append(1)


def in_the_names_of_fields() -> Any:
    rows = np.zeros(3, [("one", "i4"), ("two", "i4")])
    return Holder(rows), setting(rows.dtype, "names", ("two", "one"))


def in_whether_an_array_may_be_written_to() -> Any:
    rows = np.zeros(3)
    return Holder(rows), lambda: rows.setflags(write=False)


CASES: dict[str, Callable[[], Any]] = {name: value for name, value in globals().items() if name.startswith("in_")}


@pytest.fixture(autouse=True)
def put_back() -> Any:
    yield
    for name in [each for each in sys.modules if each.startswith(("overdrive_settings", "overdrive_package"))]:
        del sys.modules[name]
    for each in (table, shifted):
        each.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str) -> None:
    assert_seen(*CASES[name]())


def around() -> Any:
    return sys._getframe().f_globals


KEPT = Holder()


@pytest.mark.parametrize(
    "thing",
    [
        Reducing([1]),
        torch.zeros(3).as_subclass(Hearing),
        weakref.proxy(KEPT),
        weakref.ref(KEPT),
        around,
    ],
    ids=["a deque that says itself what it is", "a tensor that hears", "a proxy", "a weak reference", "a look around"],
)
def test_nothing_is_kept_of_what_cannot_be_seen(thing: Any) -> None:
    Hearing.heard = 0
    seen = fingerprint(thing)
    assert seen.hidden_here is not None
    assert not seen.watch.changed()
    assert Hearing.heard == 0


def test_a_weak_reference_to_what_is_held_beside_it_is_seen_through() -> None:
    """As an `nn.LSTM` has them to its weights."""
    one, other = Holder([1]), Holder([1])
    seen = [fingerprint(Holder((one, other, weakref.ref(each)))) for each in (one, other)]
    assert [each.hidden for each in seen] == [None, None] and seen[0].digest != seen[1].digest
    assert fingerprint(Holder((one, other, weakref.ref(one)))).digest == seen[0].digest
    one.held.append(2)
    assert seen[0].watch.changed()


def test_a_weak_reference_to_what_is_gone_is_no_error() -> None:
    thing = Holder()
    proxy = weakref.proxy(thing)
    watch = fingerprint(Holder(proxy)).watch
    del thing
    assert not watch.changed()


@pytest.mark.parametrize("kind", [Holder, Slotted, OwnSet, OwnList, OwnDict, OwnOrdered, Random])
def test_what_python_makes_has_no_state_of_c(kind: type) -> None:
    assert not has_state_of_c(kind)


@pytest.mark.parametrize("root", [int, str, tuple, bytes, float, list, dict, set, frozenset, object])
@pytest.mark.parametrize("space", [{}, {"__slots__": ()}], ids=["attributes", "none"])
def test_nor_has_a_class_upon_what_is_built_in(root: type, space: dict[str, Any]) -> None:
    assert not has_state_of_c(type("Own", (type("Base", (root,), {}),), dict(space)))


@pytest.mark.parametrize("root", [collections.deque, collections.defaultdict, array.array, ValueError])
def test_other_classes_of_c_have(root: type) -> None:
    assert has_state_of_c(type("Own", (root,), {}))
