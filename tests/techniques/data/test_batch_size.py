"""`batch_size`: larger batches of the same samples, only where asked for, compared by samples and not by steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts, LoaderFacts
from overdrive.core.program import Program
from overdrive.core.records import Block
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.tune_result import Figures
from overdrive.techniques.catalogue import catalogue
from overdrive.trials.duel import Duel, comparable
from overdrive.tuner.whole_runs import whole_run
from overdrive.worker.session import Session
from overdrive.worker.torch.noise_scale import NoiseScale

SAMPLES = TensorDataset(torch.arange(100))


def epoch(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for (batch,) in loader]


def test_an_epoch_has_the_same_samples_in_the_same_order_in_fewer_batches() -> None:
    loader = DataLoader(SAMPLES, batch_size=8, shuffle=True)
    torch.manual_seed(0)
    plain = epoch(loader)
    for drop_last, sizes in ((False, [16] * 6 + [4]), (True, [16] * 6)):
        loader = DataLoader(SAMPLES, batch_size=8, shuffle=True, drop_last=drop_last)
        torch.manual_seed(0)
        with Session([("batch_size", {"times": 2})]) as session:
            larger = epoch(loader)
            assert len(loader) == len(sizes) and loader.batch_size == 16 and not session.seams.left_out
            assert [len(batch) for batch in epoch(loader)] == sizes  # not twice as large again
        assert [len(batch) for batch in larger] == sizes
        assert list(chain(*larger)) == list(chain(*plain))[: sum(sizes)]
        assert loader.batch_size == 8 and len(epoch(loader)[0]) == 8


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_make_the_larger_batches_too(persistent: bool) -> None:
    loader = DataLoader(SAMPLES, batch_size=10, num_workers=1, persistent_workers=persistent)
    assert len(epoch(loader)) == 10
    with Session([("batch_size", {"times": 2})]):
        assert [len(batch) for batch in epoch(loader)] == [20] * 5
    assert len(epoch(loader)) == 10


def test_what_does_not_suit_is_left_as_it_is() -> None:
    own = DataLoader(SAMPLES, batch_sampler=type("Own", (BatchSampler,), {})(RandomSampler(SAMPLES), 10, False))
    small = DataLoader(SAMPLES, batch_size=30)
    for loader, reason in ((own, "own batch sampler"), (small, "smaller than a batch of 120")):
        count = len(loader)
        with Session([("batch_size", {"times": 4})]) as session:
            assert len(epoch(loader)) == count
            assert reason in session.seams.left_out["batch_size"]
    evaluated = DataLoader(SAMPLES, batch_size=10)
    with Session([("batch_size", {"times": 4})]) as session, torch.no_grad():
        assert len(epoch(evaluated)) == 10 and not session.seams.left_out


@pytest.mark.parametrize(("growth", "factor"), [("kept", 1.0), ("sqrt", 2.0), ("linear", 4.0)])
def test_learning_rates_grow_before_a_schedule_sees_them(growth: str, factor: float) -> None:
    with Session([("batch_size", {"times": 4, "learning_rate": growth})]):
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor)
        optimizer.step()
        schedule.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * factor)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert optimizer.param_groups[0]["initial_lr"] == pytest.approx(0.1)


def test_it_is_open_and_offers_what_the_data_set_has_room_for() -> None:
    technique = catalogue()["batch_size"]
    assert technique.contract is Contract.OPEN and technique.applies(Facts()) is not None
    facts = Facts(loaders=(LoaderFacts(32, 0, True, 32 * 17, 0.01),))
    assert [each["times"] for each in technique.candidates(facts)] == [2, 4]


@pytest.mark.parametrize(("techniques", "seconds"), [((("batch_size", {"times": 4}),), 0.5), ((), 2.0)])
def test_a_duel_compares_as_many_samples_where_the_batch_is_larger(techniques: Any, seconds: float) -> None:
    program = Program("train.py")
    duel = Duel(TrialSpec(program), TrialSpec(program, techniques))
    assert comparable(duel, Block(10, 10, 1.0, 80), Block(10, 10, 2.0, 320)) == seconds
    assert comparable(duel, Block(10, 10, 1.0, 0), Block(10, 10, 2.0, 0)) == 2.0


def test_a_duel_compares_as_many_calls_of_models_where_no_step_has_a_batch() -> None:
    """After other rounding an episode is another, and of another length."""
    program = Program("train.py")
    duel = Duel(TrialSpec(program), TrialSpec(program, (("fused_optimizer", {}),)))
    long, short = Block(10, 10, 2.0, 0, training_calls=400), Block(10, 10, 1.0, 0, training_calls=200)
    assert comparable(duel, long, short) == 2.0
    assert comparable(duel, replace(long, samples=80), replace(short, samples=80)) == 1.0, "its batches tell"
    assert comparable(duel, replace(long, training_calls=0), short) == 1.0, "not counted on one side"


def test_a_whole_run_takes_fewer_of_the_larger_steps() -> None:
    before = Figures(samples_per_s=8.0, seconds_per_step=1.0, setup_seconds=0.0)
    after = Figures(samples_per_s=16.0, seconds_per_step=2.0, setup_seconds=0.0)
    assert whole_run(before, after, 1001) == pytest.approx(2.0)


def test_the_noise_scale_is_found_from_a_few_gradients() -> None:
    # Gradients of a sample: mean 1 and variance 400 in each of 10,000 dimensions: the noise scale is 400.
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(100, 100))
    other = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight, other], lr=0.1)
    scale = NoiseScale()
    for _ in range(8):
        weight.grad = 1 + torch.randn(100, 100, generator=generator) * (400 / 32) ** 0.5
        scale.add(optimizer)
    assert scale.samples(32) == pytest.approx(400, rel=0.2)
    other.grad = torch.ones(3)
    scale.add(optimizer)
    assert scale.samples(32) == 0.0  # other parameters than before: not known


def test_the_noise_scale_of_noise_is_infinite_and_of_none_unknown() -> None:
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scale = NoiseScale()
    assert scale.samples(32) == 0.0
    for sign in (1, -1, 1, -1):
        weight.grad = sign * torch.ones(1000)
        scale.add(optimizer)
    assert scale.samples(32) == float("inf")
