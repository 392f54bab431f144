"""What is kept for an object is that object's alone, and goes with it."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import pytest

from overdrive.core.by_identity import ByIdentity


@dataclass(unsafe_hash=True)
class Equal:
    size: int = 8


def test_objects_that_are_equal_do_not_share_what_is_kept() -> None:
    one, other = Equal(), Equal()
    kept: ByIdentity[str] = ByIdentity()
    kept[one] = "one"
    assert one == other and other not in kept and kept.get(other) is None
    assert kept.setdefault(other, "other") == "other" and kept[one] == "one"
    assert list(kept) == [one, other] and list(kept.values()) == ["one", "other"]


def test_it_goes_with_its_object_and_is_none_of_the_next_one_at_that_place() -> None:
    kept: ByIdentity[int] = ByIdentity()
    for number in range(50):
        one = Equal()
        assert one not in kept
        kept[one] = number
        kept[one] = number  # the first reference does not take the second's value with it
        gc.collect(0)
        assert kept[one] == number
        del one
    gc.collect()
    assert len(kept) == 0


def test_one_can_be_taken_out() -> None:
    one = Equal()
    kept: ByIdentity[int] = ByIdentity()
    kept[one] = 1
    with pytest.raises(KeyError):
        del kept[Equal()]
    del kept[one]
    assert one not in kept and not kept
