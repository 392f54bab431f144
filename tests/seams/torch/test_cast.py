"""Tensors in results of a program's own classes are given back in the program's own type."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from overdrive.seams.torch.weights import cast  # noqa: E402


@dataclass
class Output:
    logits: Any
    name: str = "of mine"


@dataclass(frozen=True)
class Frozen:
    logits: Any


@dataclass(slots=True)
class Slotted:
    logits: Any


class EasyDict(dict):  # type: ignore[type-arg]
    """Whose items are its attributes, too."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


class AttrDict(dict):  # type: ignore[type-arg]
    def __getattr__(self, name: str) -> Any:
        return self[name]


Pair = namedtuple("Pair", "logits rest")


class Named(Pair):
    pass


def held() -> Any:
    return torch.ones(2, dtype=torch.bfloat16, requires_grad=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda held: Output(held),
        lambda held: Frozen(held),
        lambda held: Slotted(held),
        lambda held: EasyDict(logits=held),
        lambda held: AttrDict(logits=held),
        lambda held: Named(held, None),
    ],
)
def test_a_result_of_another_class_is_copied_with_its_tensors_in_the_other_type(make: Any) -> None:
    given = held()
    thing = make(given)
    made = cast([thing], torch.bfloat16, torch.float32)[0]
    assert type(made) is type(thing) and made is not thing
    assert made.logits.dtype is torch.float32 and thing.logits is given
    made.logits.sum().backward()
    assert given.grad is not None
    if isinstance(made, dict):
        assert made["logits"] is made.logits


def test_what_is_within_is_cast_and_what_is_twice_there_stays_so() -> None:
    one = held()
    made = cast(Output([Frozen(one), {"again": one}]), torch.bfloat16, torch.float32)
    first, second = made.logits[0].logits, made.logits[1]["again"]
    assert first.dtype is torch.float32 and first is second and made.name == "of mine"


def test_other_objects_stay_what_they_are() -> None:
    class Cache:
        keys = held()

    cache = Cache()
    assert cast((cache, Output), torch.bfloat16, torch.float32) == (cache, Output)
