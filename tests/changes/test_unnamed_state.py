"""State that nothing of a data set names: memory around views, hooks, what C's objects hold, methods of libraries."""

from __future__ import annotations

import ctypes
import decimal
import functools
import locale
import logging
import pathlib
import sys
import warnings
from collections import UserList
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from overdrive.changes import bindings  # noqa: E402
from overdrive.changes.fingerprint import fingerprint  # noqa: E402
from overdrive.changes.walk import code_walk  # noqa: E402
from overdrive.datacache.unchanged import Unchanged  # noqa: E402
from tests.changes.test_watched_state import assert_seen  # noqa: E402

Case = tuple[Any, Callable[[], Any]]


class Holder:
    def __init__(self, *held: Any) -> None:
        self.held = held


class BehindArray(Holder):
    def __getitem__(self, index: int) -> Any:
        return self.held[0].base[index]


class BehindTensor(Holder):
    def __getitem__(self, index: int) -> Any:
        return self.held[0].as_strided((9,), (1,), 0)[index], self.held[0].untyped_storage().nbytes()


class Hidden:
    __slots__ = ("level",)


class Hiding(Hidden):
    __slots__ = ("level",)


class Own:
    cut = property(lambda own: 1)

    @functools.cached_property
    def kept(self) -> int:
        return 1


class Lying:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return {}


class Calls(Holder):
    """Calls what it holds."""

    def __getitem__(self, index: int) -> Any:
        return self.held[0]()


def in_memory_beside_an_array() -> Case:
    whole = np.zeros(9)
    return BehindArray(whole[:3]), lambda: whole.__setitem__(7, 1)


def in_memory_beside_a_tensor() -> Case:
    whole = torch.zeros(9)
    return BehindTensor(whole[:3]), lambda: memory_of(whole).__setitem__(30, 1)


def memory_of(tensor: Any) -> Any:
    return np.from_dlpack(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()))


def in_the_size_of_its_memory() -> Case:
    tensor = torch.zeros(9)
    return BehindTensor(tensor), lambda: tensor.untyped_storage().resize_(400)


def in_a_hook_of_a_tensor() -> Case:
    tensor = torch.zeros(3, requires_grad=True)
    return Holder(tensor), lambda: tensor.register_hook(lambda gradient: gradient * 2)


def in_what_a_hook_refers_to() -> Case:
    factor, tensor = [1], torch.zeros(3, requires_grad=True)
    tensor.register_hook(lambda gradient: gradient * factor[0])
    return Holder(tensor), lambda: factor.append(2)


def in_a_hook_of_all_modules(put: Any) -> Case:
    def hook() -> None:
        handle = torch.nn.modules.module.register_module_forward_hook(lambda module, given, made: made)
        put.callback(handle.remove)

    return Holder(torch.nn.Identity()), hook


def in_what_a_partial_calls() -> Case:
    partial = functools.partial(max, 1)
    return Holder(partial), lambda: partial.__setstate__((max, (2,), {}, {}))  # type: ignore[attr-defined]


def in_a_property(put: Any) -> Case:
    put.callback(Own.cut.__init__, Own.cut.fget)  # type: ignore[attr-defined, misc]
    return Own(), lambda: Own.cut.__init__(lambda own: 2)  # type: ignore[attr-defined, misc]


def in_a_cached_property(put: Any) -> Case:
    kept = vars(Own)["kept"]
    put.callback(setattr, kept, "func", kept.func)
    return Own(), lambda: setattr(kept, "func", lambda own: 2)


def in_the_cause_of_an_error() -> Case:
    error = ValueError(1)
    return Holder(error), lambda: setattr(error, "__cause__", KeyError(1))


def in_what_an_error_says_of_a_text() -> Case:
    error = UnicodeDecodeError("utf-8", b"x" * 900, 400, 500, "why")
    return Holder(error), lambda: setattr(error, "end", 600)


def in_a_slot_that_another_hides() -> Case:
    thing = Hiding()
    return Holder(thing), lambda: Hidden.level.__set__(thing, 1)  # type: ignore[attr-defined]


def in_a_method_that_an_operator_calls(put: Any) -> Case:
    put.callback(setattr, UserList, "__len__", UserList.__len__)
    return UserList([1]), lambda: setattr(UserList, "__len__", lambda own: 7)


def in_a_method_of_paths(put: Any) -> Case:
    put.callback(setattr, pathlib.PurePath, "__truediv__", pathlib.PurePath.__truediv__)
    return Holder(pathlib.PurePath("x")), lambda: setattr(pathlib.PurePath, "__truediv__", lambda one, other: one)


def in_a_class_of_a_library_late(put: Any) -> Case:
    put.callback(delattr, torch.nn.ReLU, "overdrive_level")
    read = Calls(lambda: getattr(torch.nn.ReLU, "overdrive_level", 0))
    return read, lambda: setattr(torch.nn.ReLU, "overdrive_level", 1)


def in_a_module_within_a_library(put: Any) -> Case:
    put.callback(setattr, torch.nn.functional, "relu6", torch.nn.functional.relu6)
    return Calls(lambda: torch.nn.functional.relu6(1)), lambda: setattr(torch.nn.functional, "relu6", abs)


def in_a_function_made_an_array_function() -> Case:
    level = [0]
    return Holder(np.frompyfunc(lambda x: x + level[0], 1, 1)), lambda: level.append(1)


def in_how_decimals_are_rounded(put: Any) -> Case:
    context = decimal.getcontext()
    put.callback(setattr, context, "rounding", context.rounding)
    return Calls(lambda: decimal.Decimal(1) / 3), lambda: setattr(context, "rounding", decimal.ROUND_UP)


def in_filters_of_warnings(put: Any) -> Case:
    put.enter_context(warnings.catch_warnings())
    return Calls(lambda: warnings.warn("x", stacklevel=1)), lambda: warnings.simplefilter("error")


def in_the_locale(put: Any) -> Case:
    other = "C" if locale.setlocale(locale.LC_CTYPE) != "C" else "C.UTF-8"
    put.callback(locale.setlocale, locale.LC_CTYPE, locale.setlocale(locale.LC_CTYPE))
    return Calls(lambda: locale.localeconv()), lambda: locale.setlocale(locale.LC_CTYPE, other)


def in_the_default_device(put: Any) -> Case:
    put.callback(torch.set_default_device, None)
    return Holder(), lambda: torch.set_default_device("meta")


def in_denormal_numbers(put: Any) -> Case:
    put.callback(torch.set_flush_denormal, False)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always counts them")
    torch.set_flush_denormal(False)
    return Holder(), lambda: torch.set_flush_denormal(True)


def in_arguments(put: Any) -> Case:
    put.callback(sys.argv.remove, "--overdrive")
    return Calls(lambda: "--overdrive" in sys.argv), lambda: sys.argv.append("--overdrive")


CASES = {name: value for name, value in globals().items() if name.startswith("in_")}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen(name: str) -> None:
    with ExitStack() as put:
        assert_seen(*(CASES[name](put) if CASES[name].__code__.co_argcount else CASES[name]()))


@pytest.mark.parametrize(
    "thing", (Holder(torch.ones(1, requires_grad=True) * 2), Holder(Lying())), ids=("a graph", "attributes that lie")
)
def test_what_cannot_be_watched_is_not_kept(thing: Any) -> None:
    assert fingerprint(thing).hidden_here is not None


def test_what_memory_is_read_by_address_is_not_kept() -> None:
    assert fingerprint(Calls(lambda: ctypes.string_at(1, 1))).hidden_here == "its code may read memory by its address"


def test_what_comes_to_all_modules_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_walk, "_MOST_LOOKED_UP", 0)
    assert fingerprint(Calls(lambda: logging.root)).hidden_here == "its code may come to too many modules"


def test_a_method_of_ours_in_the_place_of_a_librarys_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    unchanged = Unchanged((held := UserList([1]),), fingerprint(held))
    monkeypatch.setattr(UserList, "__len__", bindings.Bindings.__call__)
    assert unchanged.changed() is None
    monkeypatch.setattr(UserList, "__len__", lambda own: 7)
    assert unchanged.changed() is not None
