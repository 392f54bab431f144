"""States of the shared random generators."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from overdrive.core import rng  # noqa: E402
from overdrive.core.rng import Glimpse, States, same_mark  # noqa: E402


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, pythons = np.random.get_state(), random.getstate()
    yield
    np.random.set_state(before)
    random.setstate(pythons)


def test_numpys_state_is_what_numpy_says() -> None:
    for draw in (lambda: None, np.random.rand, np.random.randn, np.random.randn, lambda: np.random.seed(3)):
        draw()
        for _ in range(2):  # the second time it is known
            told, meant = States.now().numpy, np.random.get_state()
            assert told[0] == meant[0] and (told[1] == meant[1]).all() and told[2:] == meant[2:]


def test_pythons_state_is_what_python_says() -> None:
    drawn = (
        lambda: None,
        random.random,
        lambda: random.gauss(0, 1),
        lambda: random.gauss(0, 1),
        lambda: random.seed(3),
    )
    for draw in drawn:
        before = random.getstate()
        draw()
        for _ in range(2):  # the second time it is known
            assert States.now().python == random.getstate()
        random.setstate(before)
        assert States.now().python == before
    for _ in range(700):  # past the end of its 624 numbers, where all are made anew
        random.random()
        assert States.now().python == random.getstate()


def test_pythons_generator_is_asked_itself_where_it_lies_in_memory_in_another_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert rng._lies_as_known()  # here
    monkeypatch.setattr(rng, "_lies_as_known", lambda: False)
    monkeypatch.setattr(rng, "_memory_of", lambda generator: 1 / 0)
    assert States.now().python == random.getstate()


def test_the_second_of_a_pair_of_normal_numbers_counts_as_drawn() -> None:
    np.random.seed(0)
    nothing_left = States.now()
    np.random.randn()
    one_left = States.now()
    place = np.random.get_state()[2]
    second = np.random.randn()
    none_left = States.now()
    assert np.random.get_state()[2] == place  # the generator itself stood still
    assert not one_left.same(none_left) and not nothing_left.same(none_left)
    one_left.restore()
    assert States.now().same(one_left) and np.random.randn() == second
    assert States.now().same(none_left)


def test_another_generator_is_asked_itself() -> None:
    mine = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        before = States.now()
        assert before.same(States.now())
        np.random.rand()
        assert not before.same(States.now())
    finally:
        np.random.set_bit_generator(mine)


@pytest.mark.parametrize(
    "draw", [random.random, lambda: random.gauss(0, 1), np.random.rand, np.random.randn, lambda: torch.rand(1)]
)
def test_the_digest_and_the_plain_form_tell_every_draw(draw: Callable[[], object]) -> None:
    before = States.now()
    draw()
    after = States.now()
    assert not before.same(after) and before.digest() != after.digest()
    written = io.BytesIO()
    torch.save(before.plain(), written)
    written.seek(0)
    States.of_plain(torch.load(written, weights_only=True)).restore()
    assert States.now().same(before) and States.now().digest() == before.digest()


def test_frameworks_that_the_program_has_not_imported_are_left_alone() -> None:
    program = """
import random, sys
from overdrive.core.rng import States, reseed
before = States.now()
number = random.random()
assert not before.same(States.now())
before.restore()
assert random.random() == number
States.of_plain(before.plain()).restore()
assert States.now().digest() == before.digest()
reseed(1)
assert not {"numpy", "torch"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_glimpse_puts_back_what_was_drawn_since() -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    random.gauss(0, 1)
    glimpse = Glimpse()
    expected = [random.gauss(0, 1), random.random(), np.random.rand(), torch.rand(1).item(), States.now().digest()]
    glimpse.restore()
    found = [random.gauss(0, 1), random.random(), np.random.rand(), torch.rand(1).item(), States.now().digest()]
    assert found == expected


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        lambda: random.gauss(0, 1),
        np.random.rand,
        np.random.randn,
        lambda: np.random.seed(3),
        lambda: random.seed(3),
    ],
)
def test_a_mark_is_another_one_after_each_draw(draw: Callable[[], object]) -> None:
    random.seed(1), np.random.seed(1)
    for _ in range(4):  # every other normal number is left over from the one before
        before = States.mark_of_host()
        assert same_mark(before, States.mark_of_host())
        states = States.now()
        draw()
        assert same_mark(before, States.mark_of_host()) == states.same(States.now())


def test_a_mark_is_of_the_generator_that_is_there() -> None:
    before, others = States.mark_of_host(), np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        other = States.mark_of_host()
        assert not same_mark(before, other)
        assert same_mark(other, States.mark_of_host())
        np.random.rand()
        assert not same_mark(other, States.mark_of_host())
    finally:
        np.random.set_bit_generator(others)
