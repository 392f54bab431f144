"""Losses are kept without waiting for the GPU, by one launch each; on the stand-in for one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from overdrive.worker.watching.losses import LossWatch
from tests.fakes.cuda import fake_cuda


def launches(losses: bool) -> tuple[int, list[list[float]]]:
    with fake_cuda() as gpu:
        torch.manual_seed(0)
        recorder = Recorder(losses=losses)
        with Session([], [recorder]):
            model = nn.Linear(4, 1).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.randn(8, 4, device="cuda")
            for step in range(11):
                optimizer.zero_grad()
                loss: Any = model(x).square().mean()
                if step == 1:
                    before = gpu.launches
                    gpu.synced.clear()
                loss.backward()
                optimizer.step()
            assert not gpu.synced
            return gpu.launches - before, recorder.losses()


def test_a_loss_is_one_launch() -> None:
    (plain, nothing), (kept, losses) = launches(False), launches(True)
    assert kept - plain == 10 and nothing == []
    assert len(losses) == 11 and losses[0] > losses[-1]


def test_of_what_is_published_the_first_pair_of_processes_keeps_losses(tmp_path: Any) -> None:
    from overdrive.core.trial_spec import TrialSpec
    from overdrive.trials.duel import Duel
    from overdrive.trials.process_pair import ProcessPair
    from overdrive.tuner.duel_runner import CANDIDATE, CONTROL, confirmation
    from tests.simulated import target

    plain = TrialSpec(target(tmp_path))
    tuned = TrialSpec(plain.program, (("threads", {}),))

    def kept(old: TrialSpec, new: TrialSpec, number: int, rules: Any) -> bool:
        return ProcessPair(None, Duel(old, new), number, rules, 0.0, None, lambda duel: None).spec(new=True).losses  # type: ignore[arg-type]

    assert [kept(plain, tuned, number, confirmation(3)) for number in range(3)] == [True, False, False]
    assert all(kept(plain, plain, number, CONTROL) and kept(plain, tuned, number, CANDIDATE) for number in range(2))


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_a_loss_of_any_shape_is_kept_as_its_mean(shape: tuple[int, ...]) -> None:
    from overdrive.seams.torch.step_recorder import _Losses

    with fake_cuda():
        losses, loss = _Losses(), torch.full(shape, 2.0, device="cuda")
        losses.append(loss)
        loss.zero_()
        assert losses.values() == [2.0]


def test_a_loss_that_is_not_finite_is_told_some_steps_later_and_nothing_waits_for_it() -> None:
    told: list[str] = []
    with fake_cuda() as gpu:
        recorder = Recorder()
        watch = LossWatch("go-on", lambda: recorder.clock.steps, told.append)
        with Session([], [recorder, watch]) as session:
            weight = torch.ones(1, device="cuda").requires_grad_()
            optimizer = torch.optim.SGD([weight], lr=0.0)
            factors = torch.tensor([1.0, 1.0, float("nan"), 1.0, 1.0], device="cuda")
            gpu.synced.clear()
            for factor in factors:
                (weight * factor).sum().backward()
                optimizer.step()
            assert not gpu.synced and not session.seams.left_out
    assert len(told) == 1 and "the loss of step 3 is nan" in told[0]
