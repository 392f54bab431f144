"""How many words of 32 bits were drawn from Python's and NumPy's global generators, and drawing as many again.

That is a few bytes, where a state is 5,000. Of both generators (Mersenne twister) a draw takes whole words in order.
"""

from __future__ import annotations

import random
import sys
from functools import cache
from typing import Any

_MOST = 64  # blocks of 624 words between two states: then they are told by nobody
_BLOCK = 624

Words = list[Any]  # of Python, its spare number; where NumPy's was used, of that, whether it has a spare one, and that


def between(before: Any, after: Any) -> Words | None:
    """From one `state.host_state()` to another; None where it is not so: a generator was seeded, say."""
    (python, numpy), (python_after, numpy_after) = before, after
    found = _of_python(python, python_after)
    if found is None:
        return None
    if numpy is numpy_after:
        return [found, python_after[2]]
    if not (isinstance(numpy, tuple) and isinstance(numpy_after, tuple)):
        return None
    of_numpy = _of_numpy(numpy, numpy_after)
    return None if of_numpy is None else [found, python_after[2], of_numpy, *numpy_after[3:5]]


def draw(words: Words) -> None:
    count, spare, *of_numpy = words
    generator: Any = random._inst
    if count:
        generator.getrandbits(32 * count)
    generator.gauss_next = spare
    if of_numpy:
        numpy = sys.modules["numpy"].random
        numpy.mtrand._rand._bit_generator.random_raw(of_numpy[0], output=False)
        numpy.set_state((*numpy.get_state()[:3], *of_numpy[1:]))


@cache
def _pythons() -> random.Random:
    return random.Random(0)  # without a seed it would draw one from the system, which takes 100 us


@cache
def _numpys() -> Any:
    return sys.modules["numpy"].random.MT19937(0)


def _of_python(before: Any, after: Any) -> int | None:
    if before is after or before[:2] == after[:2]:
        return 0
    numbers, then = before[1], after[1]
    generator = _pythons()
    generator.setstate(before)
    for count, step in _steps(numbers[-1], then[-1]):
        if step:
            generator.getrandbits(32 * step)
        if generator.getstate()[1] == then:
            return count
    return None


def _of_numpy(before: Any, after: Any) -> int | None:
    if before[0] != "MT19937" or after[0] != "MT19937":
        return None
    generator = _numpys()
    generator.state = {"bit_generator": "MT19937", "state": {"key": before[1], "pos": before[2]}}
    for count, step in _steps(before[2], after[2]):
        if step:
            generator.random_raw(step, output=False)
        state = generator.state["state"]
        if state["pos"] == after[2] and (state["key"] == after[1]).all():
            return count
    return None


def _steps(place: int, then: int) -> list[tuple[int, int]]:
    """Words that may lie between two places within a block: how many in all, and how many more than the one before."""
    first = (then - place) % _BLOCK
    return [(first + _BLOCK * number, _BLOCK if number else first) for number in range(_MOST)]
