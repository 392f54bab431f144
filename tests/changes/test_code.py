"""What a function's code tells of it before it runs."""

from __future__ import annotations

import sys
import types
from types import ModuleType, SimpleNamespace

import pytest

from overdrive.changes import word_places as words
from overdrive.changes.code import asks_for_the_time, is_library_code, is_library_module, seeds_itself
from overdrive.changes.fingerprint import fingerprint

ASKS = {
    "def f(): return time.time()": True,
    "def f():\n import time\n return time.time()": True,
    "def f(): return time()": True,
    "def f(): return monotonic()": True,
    "def f(): return datetime.now()": True,
    "def f(): return [time.perf_counter() for _ in range(2)]": True,
    "def f(): time.sleep(1)": False,
    "def f(self): return self.time": False,
    "def f(self): return self.time[0]": False,
    "def f(time): return time + 1": False,
}


SEEDS_ITSELF = {
    "def f(): return np.random.default_rng().random()": True,
    "def f(): return default_rng()": True,
    "def f(): return random.Random().random()": True,
    "def f(): return [np.random.RandomState() for _ in range(2)]": True,
    "def f(): return random.SystemRandom().random()": True,
    "def f(): return uuid.uuid4().int": True,
    "def f(i): return np.random.default_rng(i).random()": False,
    "def f(i): return np.random.default_rng(seed=i).random()": False,
    "def f(rng): return isinstance(rng, random.Random)": False,
}


def codes(code: types.CodeType) -> list[types.CodeType]:
    return [code, *(inner for each in code.co_consts if isinstance(each, types.CodeType) for inner in codes(each))]


@pytest.mark.parametrize("source", ASKS)
def test_who_asks_for_the_time(source: str) -> None:
    assert any(map(asks_for_the_time, codes(compile(source, "x", "exec"))[1:])) is ASKS[source]


@pytest.mark.parametrize("source", SEEDS_ITSELF)
def test_who_draws_from_a_generator_that_seeds_itself(source: str) -> None:
    assert any(map(seeds_itself, codes(compile(source, "x", "exec"))[1:])) is SEEDS_ITSELF[source]


def test_the_parts_of_a_compiled_library_are_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    assert torch.nn.functional.gelu.__module__ == "torch._C._nn" and is_library_module("torch._C._nn")
    by_hand = ModuleType("torch._C._by_hand")
    monkeypatch.setitem(sys.modules, by_hand.__name__, by_hand)
    assert not is_library_module(by_hand.__name__)


def test_what_is_ours_is_a_librarys_wherever_it_lies() -> None:
    """Of a data set that holds all modules, what we keep in ours is nothing: one array of all memory among it."""
    assert is_library_module(words.__name__) and is_library_code(words.all_words.__wrapped__.__code__)
    words.all_words()
    held = SimpleNamespace(modules={words.__name__: words})
    assert fingerprint(held).of_objects == fingerprint(held).of_objects
