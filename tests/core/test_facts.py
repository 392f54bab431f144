from dataclasses import replace

import pytest

from overdrive.core.facts import Facts, LoaderFacts
from overdrive.techniques.catalogue import catalogue


def test_without_data_the_rest_is_the_whole_step() -> None:
    facts = Facts(step_seconds=0.02, shares={"data": 0.6, "forward": 0.3, "optimizer": 0.1}).without_data()
    assert facts.shares == {"data": 0.0, "forward": pytest.approx(0.75), "optimizer": pytest.approx(0.25)}
    assert facts.step_seconds == pytest.approx(0.008)


def test_of_a_step_that_is_all_data_nothing_is_told() -> None:
    facts = Facts(step_seconds=0.02, shares={"data": 1.0})
    assert facts.without_data() == facts
    assert Facts().without_data() == Facts()


MADE_BY_WORKERS = LoaderFacts(
    32, 2, True, 8000, 0.002, seconds_per_item={"decode": 4e-4, "collate": 6e-5, "wait": 1e-4}
)


def test_workers_take_what_they_make_samples_in_from_the_cores_of_the_program() -> None:
    """A loop that waits for no data may be slowed down by what makes them, beside it."""
    shares = {"data": 0.01, "forward": 0.99}
    facts = Facts(step_seconds=0.088, samples_per_step=32, cores=2, shares=shares, loaders=(MADE_BY_WORKERS,))
    assert facts.taken_by_data() == pytest.approx(4.6e-4 * 32 / (0.088 * 2))
    assert facts.no_samples_to_gain_by() is None
    saving = catalogue()["sample_cache"].expected_step_saving(facts)
    assert saving == pytest.approx(0.8 * facts.taken_by_data())
    several = replace(facts, samples_per_step=64)  # a step of two batches
    assert several.taken_by_data() == pytest.approx(2 * facts.taken_by_data())


@pytest.mark.parametrize(
    "others", [{"device": "cuda"}, {"cores": 64}, {"loaders": (replace(MADE_BY_WORKERS, workers=0),)}]
)
def test_they_take_nothing_beside_a_gpu_or_on_cores_that_are_free(others: dict[str, object]) -> None:
    shares = {"data": 0.01, "forward": 0.99}
    facts = Facts(step_seconds=0.088, samples_per_step=32, cores=2, shares=shares, loaders=(MADE_BY_WORKERS,))
    told = replace(facts, **others).no_samples_to_gain_by()
    assert told == "waiting for data is 1% of a step"
