"""Host techniques and larger batches on a GPU. Skipped, saying so, where there is none."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from overdrive.machine.numa import allowed_cores, nodes, one_a_core
from overdrive.seams.torch.loss_values import LossValues
from overdrive.worker.session import Session
from overdrive.worker.torch.noise_scale import NoiseScale

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU (CUDA), and there is none here")


def train(techniques: list[tuple[str, dict[str, object]]], loader: DataLoader[object]) -> tuple[int, float]:
    torch.manual_seed(0)
    steps = 0
    with Session(techniques) as session:
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
    assert not session.seams.left_out
    return steps, loss.item()


def loader(workers: int = 0) -> DataLoader[object]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 64, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=32, num_workers=workers, pin_memory=True)


def test_larger_batches_reach_the_gpu() -> None:
    steps, loss = train([("batch_size", {"times": 4})], loader())
    assert steps == 4 and loss < 2


@pytest.mark.skipif(
    len(nodes()) < 2 and len(one_a_core(allowed_cores())) == len(allowed_cores()), reason="nothing to choose here"
)
def test_training_on_some_cores_is_the_same_and_pinned_batches_come_all_the_same() -> None:
    before = os.sched_getaffinity(0)
    plain = train([], loader(2))
    pinned = train([("affinity", {"node": 0, "hyper_threads": len(nodes()) > 1})], loader(2))
    assert pinned == plain and os.sched_getaffinity(0) == before


def test_the_noise_scale_is_found_from_gradients_on_the_gpu() -> None:
    weight = nn.Parameter(torch.zeros(100, 100, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scale = NoiseScale()
    for seed in range(8):
        generator = torch.Generator("cuda").manual_seed(seed)
        weight.grad = 1 + torch.randn(100, 100, device="cuda", generator=generator) * (400 / 32) ** 0.5
        scale.add(optimizer)
    assert scale.samples(32) == pytest.approx(400, rel=0.25)


def test_a_loss_that_is_not_finite_is_known_without_waiting() -> None:
    values, found = LossValues(1), None
    losses = [torch.tensor(float("nan") if step == 3 else 1.0, device="cuda") for step in range(1, 50)]
    values.noted(losses[0], int)  # which makes its memory
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step, loss in enumerate(losses):
            found = found or values.noted(loss, lambda step=step: step)
            time.sleep(0.001)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found and found[0] == 3
