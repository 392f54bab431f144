"""Constants of a script: which are found, and that the code with another value is otherwise the same."""

from __future__ import annotations

from typing import Any

import pytest

from overdrive.core.settings import Value
from overdrive.seams.constants import compiled

SOURCE = """
from __future__ import annotations
import math
lr = 1e-3
BATCH: int = 5 * 8
name = "resnet"
use_amp = True
epochs = 3
epochs += 1
for fold in range(3):
    pass
steps = 1
steps = 2
config = {"lr": 0.1, "model": "cnn", "depth": 4}
more = dict(wd=5e-4)
class Config:
    width = 32
    dropout: float = -0.5
def train(lr=0.5):
    hidden = 7
if __name__ == "__main__":
    clip = 1.0
if math.pi > 3:
    other = 5
both = also = 1
huge = 10 ** 10 ** 10
"""
FOUND = {
    "lr": 1e-3,
    "BATCH": 40,
    "use_amp": True,
    "config.lr": 0.1,
    "config.depth": 4,
    "more.wd": 5e-4,
    "Config.width": 32,
    "Config.dropout": -0.5,
    "clip": 1.0,
}


def test_numbers_that_a_script_names_once_at_its_top_level_are_found() -> None:
    _, places = compiled(SOURCE.encode(), "/a/train.py", {})
    assert {place.name: place.value for place in places} == FOUND
    assert next(place.where for place in places if place.name == "lr") == "train.py:4"


@pytest.mark.parametrize("name", FOUND)
def test_each_is_set_and_nothing_else_changes(name: str) -> None:
    source = SOURCE.replace("huge = 10 ** 10 ** 10", "").encode()
    _, places = compiled(source, "train.py", {})
    place = next(each for each in places if each.name == name)
    value: Value = (not place.value) if isinstance(place.value, bool) else place.value + 1  # type: ignore[operator]
    before, after = _run(source, {}), _run(source, {place.key: value})
    assert _found(after, name) == value
    for other in FOUND:
        if other != name:
            assert _found(after, other) == _found(before, other)


def test_an_error_in_the_script_is_pythons_own_at_its_own_line() -> None:
    with pytest.raises(SyntaxError) as found:
        compiled(b"lr = 1\nlr = = 2\n", "train.py", {})
    assert found.value.lineno == 2 and found.value.filename == "train.py"
    code, (place,) = compiled(b"lr = 1\nraise ValueError\n", "train.py", {})
    code, _ = compiled(b"lr = 1\nraise ValueError\n", "train.py", {place.key: 3})
    with pytest.raises(ValueError) as raised:
        exec(code, {})
    assert raised.traceback[-1].lineno == 1  # counted from 0


def _run(source: bytes, values: dict[str, Value]) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compiled(source, "train.py", values)[0], space)
    return space


def _found(space: dict[str, Any], name: str) -> Any:
    first, _, rest = name.partition(".")
    thing = space[first]
    return thing if not rest else thing[rest] if isinstance(thing, dict) else getattr(thing, rest)


BATCHES = """
def batch(n=24, *, of=3):
    return torch.randint(0, 3, (n,))
def train(length=7, batch_size: int = 16):
    a, b = get_batch(32), loader.make(size=9, batch_size=5)
    c = data[torch.randint(0, 100, (64,))].split(8)
    return nn.BatchNorm1d(12), Batch_Norm(4), range(40), sample(k=2), "a b".split(" "), get_batch(1), get_batch(True)
"""


def test_numbers_where_a_batch_may_be_made_are_found_with_their_column() -> None:
    _, places = compiled(BATCHES.encode(), "/a/train.py", {})
    assert [(each.name, each.value, each.where) for each in sorted(places, key=lambda each: each.where)] == [
        ("batch(n)", 24, "train.py:2:13"),
        ("randint()", 3, "train.py:3:29"),
        ("train(batch_size)", 16, "train.py:4:39"),
        ("get_batch()", 32, "train.py:5:22"),
        ("make(batch_size)", 5, "train.py:5:58"),
        ("randint()", 100, "train.py:6:31"),
        ("randint()", 64, "train.py:6:37"),
        ("split()", 8, "train.py:6:50"),
        ("sample(k)", 2, "train.py:7:67"),
    ]


def test_each_of_these_is_set_alone() -> None:
    source = b"def get_batch(n, m=0):\n    return n, m\nfound = get_batch(8, 8), get_batch(8)\n"
    _, places = compiled(source, "train.py", {})
    assert len(places) == 3
    for index, place in enumerate(places):
        space: dict[str, Any] = {}
        exec(compiled(source, "train.py", {place.key: 9})[0], space)
        flat = [each for pair in space["found"] for each in pair]
        assert flat.count(9) == 1 and flat.index(9) == index
