"""Of which kind a call is: numbers that hide in a trial what they multiply."""

from __future__ import annotations

import torch

from overdrive.model_state.division.kinds import told_by_value
from tests.fakes.cuda import fake_cuda


def test_a_weight_on_a_gpu_is_read_once_and_after_each_write() -> None:
    """On the stand-in for one: a term of a loss whose weight is 0 in the first epoch is hidden from a trial."""
    with fake_cuda() as gpu:
        weight = torch.zeros(()).cuda()
        before = len(gpu.synced)
        assert [told_by_value(weight) for _ in range(3)] == [0, 0, 0] and len(gpu.synced) == before + 1
        weight.fill_(0.5)
        assert [told_by_value(weight) for _ in range(3)] == [None] * 3 and len(gpu.synced) == before + 2
        assert told_by_value(torch.ones(1).cuda()) == 1 and told_by_value(torch.ones(2).cuda()) is None


def test_a_weight_on_the_cpu_is_read_each_time() -> None:
    weight = torch.zeros(())
    assert told_by_value(weight) == 0
    weight.data.fill_(0.5)
    assert told_by_value(weight) is None and told_by_value(torch.zeros((), device="meta")) is None
