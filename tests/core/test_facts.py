import pytest

from overdrive.core.facts import Facts


def test_without_data_the_rest_is_the_whole_step() -> None:
    facts = Facts(step_seconds=0.02, shares={"data": 0.6, "forward": 0.3, "optimizer": 0.1}).without_data()
    assert facts.shares == {"data": 0.0, "forward": pytest.approx(0.75), "optimizer": pytest.approx(0.25)}
    assert facts.step_seconds == pytest.approx(0.008)


def test_of_a_step_that_is_all_data_nothing_is_told() -> None:
    facts = Facts(step_seconds=0.02, shares={"data": 1.0})
    assert facts.without_data() == facts
    assert Facts().without_data() == Facts()
