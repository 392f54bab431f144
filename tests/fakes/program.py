"""A program on a GPU, for real trials of it: it brings the stand-in itself."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fakes.cuda import fake_cuda


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = torch.rand(48, 3, 8, 8)
    data = TensorDataset(images, (images.mean((1, 2, 3)) * 1000).long() % 4)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 9, 4)
    ).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(20):
        for batch, labels in DataLoader(data, 8, shuffle=True):
            loss = nn.functional.cross_entropy(model(batch.to("cuda")), labels.to("cuda"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        model.eval()
        with torch.no_grad():
            model(images[:8].to("cuda")).sum().item()
        model.train()


with fake_cuda() as gpu:
    main()
if gpu.order.found:
    raise RuntimeError(f"a race: {gpu.order.found}")
