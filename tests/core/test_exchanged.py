"""What ranks exchange, counted between two moments and added up."""

from __future__ import annotations

from overdrive.core.exchanged import Exchanged, kind_of, of_kind


def test_between_two_moments_only_what_was_added_counts() -> None:
    before = Exchanged(1.0, {"all_gather 0": 3, "all_reduce 4096": 2}, by_memory=True)
    after = Exchanged(1.5, {"all_gather 0": 3, "all_reduce 4096": 6, "broadcast 8": 1}, by_memory=True)
    made = after.since(before)
    assert made == Exchanged(0.5, {"all_reduce 4096": 4, "broadcast 8": 1}, by_memory=True)
    assert made.plus(made) == Exchanged(1.0, {"all_reduce 4096": 8, "broadcast 8": 2}, by_memory=True)


def test_a_kind_is_read_as_it_is_written() -> None:
    assert of_kind(kind_of("point_to_point", 4096)) == ("point_to_point", 4096)
