"""Where a value stands that another run may have otherwise, and what it is to be."""

from __future__ import annotations

from overdrive.core.hyperparameters import OPTIMIZER, ValuePlace
from overdrive.seams.varied import asked_for, line_of_program


def test_the_line_that_is_told_is_the_programs() -> None:
    assert line_of_program().startswith("test_varied.py:")


def test_the_first_value_of_a_line_is_meant_and_later_rates_keep_their_proportion_to_it() -> None:
    first: dict[str, float] = {}
    places = [ValuePlace(OPTIMIZER, "lr", value, "train.py:3", "Adam") for value in (0.1, 0.01)]
    values = {places[0].key_of_any: 0.2}
    assert asked_for(places[0], 0.1, values, first) == 0.2
    assert asked_for(places[1], 0.01, values, first) == 0.02
    assert asked_for(places[1], 0.01, {places[1].key: 0.5}, first) == 0.5
