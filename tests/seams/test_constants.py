"""Constants of a script: which are found, and that the code with another value is otherwise the same."""

from __future__ import annotations

from typing import Any

import pytest

from overdrive.core.settings import Value
from overdrive.seams.constants import compiled

SOURCE = """
from __future__ import annotations
import argparse
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
TrainConfig = Linear = lambda *words, **named: SimpleNamespace(**named)
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
nested = {"optim": {"lr": 0.2}, "data": dict(size=16)}
space = argparse.Namespace(rate=0.3, net=SimpleNamespace(hidden=12))
made = TrainConfig(lr=0.4, tags=list())
model = Linear(7, bias=9)
@dataclass
class Config:
    width = 32
    dropout: float = -0.5
    steps: int = field(default=77)
    layers: list = field(default_factory=list)
def train(lr=0.5):
    hidden = 7
if __name__ == "__main__":
    clip = 1.0
if math.pi > 3:
    other = 5
both = also = 1
rate, batch = 1e-2, 8 * 2
(low, high), *rest = (0.1, 0.2), 3, 4
first, second = fetch() if math.pi > 4 else (1, 2)
steps, again = 5, 6
huge = 10 ** 10 ** 10
"""
FOUND = {
    "lr": 1e-3,
    "BATCH": 40,
    "use_amp": True,
    "config.lr": 0.1,
    "config.depth": 4,
    "more.wd": 5e-4,
    "nested.optim.lr": 0.2,
    "nested.data.size": 16,
    "space.rate": 0.3,
    "space.net.hidden": 12,
    "made.lr": 0.4,
    "Config.width": 32,
    "Config.dropout": -0.5,
    "Config.steps": 77,
    "clip": 1.0,
    "rate": 1e-2,
    "batch": 16,
    "again": 6,
}


def test_numbers_that_a_script_names_once_at_its_top_level_are_found() -> None:
    _, places = compiled(SOURCE.encode(), "/a/train.py", {})
    assert {place.name: place.value for place in places} == FOUND
    assert next(place.where for place in places if place.name == "lr") == "train.py:8"


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
    thing: Any = space
    for part in name.split("."):
        thing = thing[part] if isinstance(thing, dict) else getattr(thing, part)
    return thing
