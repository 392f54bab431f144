"""Functions of ours in the place of others."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest

from overdrive.core.in_place import InPlace, in_place_of, stands

plain = os.stat


@pytest.fixture
def stat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    @in_place_of(plain)
    def ours(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    monkeypatch.setattr(os, "stat", ours)
    stands(ours, os, "stat")
    yield ours


def test_it_is_no_method(stat: Any) -> None:
    kind: Any = type("Kind", (), {"size_of": os.stat})
    assert kind().size_of("/").st_ino == plain("/").st_ino


def test_it_looks_like_the_one_that_it_stands_for(stat: Any) -> None:
    assert (stat.__name__, stat.__doc__, repr(stat)) == (plain.__name__, plain.__doc__, repr(plain))
    assert inspect.signature(stat) == inspect.signature(plain)


def test_tables_of_functions_take_one_for_the_other(stat: Any) -> None:
    """As `os.supports_follow_symlinks`, which shutil looks into."""
    assert stat == plain and plain == stat and stat != os.lstat
    assert os.stat in os.supports_follow_symlinks and {stat: 1}[plain] == 1


def test_copies_and_pickles_are_itself(stat: Any) -> None:
    assert copy.deepcopy([stat])[0] is stat and pickle.loads(pickle.dumps(stat)) is stat


def test_what_python_binds_is_bound() -> None:
    def plain(self: Any) -> Any:
        return self

    method = in_place_of(plain)(lambda *args: plain(*args))
    kind: Any = type("Kind", (), {"self": method})
    thing = kind()
    assert thing.self() is thing and not isinstance(method, InPlace)


def test_a_method_that_has_its_object_is_bound_no_more() -> None:
    seed = in_place_of(random.seed)(lambda *args: args)
    assert type("Kind", (), {"seed": seed})().seed(3) == (3,)
