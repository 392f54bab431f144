"""A Horovod program in the idiom of its examples, and beside it the same training by a hand-written mean.

Run on ranks: rank 0 prints, for each way of using Horovod, its losses and those by hand, which are to be the same.
"""

from __future__ import annotations

import copy
import sys

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import distributed, nn

STEPS, ROWS = 6, 8
hvd.init()
torch.manual_seed(7 + hvd.rank())  # ranks begin with other weights: the broadcast makes them one
distributed.init_process_group("gloo")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.used_by_rank_0, self.head = nn.Linear(144, 144), nn.Linear(144, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x))).flatten(1)
        if hvd.rank() == 0:
            x = x + self.used_by_rank_0(x)
        return self.head(x)


first = Net().double()
hvd.broadcast_parameters(first.state_dict(), root_rank=0)
batches = [(torch.randn(ROWS, 1, 8, 8).double(), torch.randint(3, (ROWS,))) for _ in range(2 * STEPS)]


def by_hand(passes: int, op: str, momentum: float) -> list[float]:
    model, losses = copy.deepcopy(first), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    for step in range(STEPS):
        optimizer.zero_grad()
        for x, y in batches[step * passes : (step + 1) * passes]:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        for each in model.parameters():
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
            distributed.all_reduce(each.grad)
            each.grad /= hvd.size() if op == "average" else 1
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_horovod(passes: int, op: str, momentum: float, way: str) -> list[float]:
    model, losses = copy.deepcopy(first), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if hvd.rank() == 0 else 9.0, momentum=momentum)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if way == "fp16" else hvd.Compression.none,
        backward_passes_per_step=passes,
        op=hvd.Sum if op == "sum" else hvd.Average,
        gradient_predivide_factor=4.0 if way == "predivided" else 1.0,
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    for step in range(STEPS):
        optimizer.zero_grad()
        for x, y in batches[step * passes : (step + 1) * passes]:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        if way == "synchronized":
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


for name, passes, op, momentum, way in (
    ("plain", 1, "average", 0.9, ""),
    ("accumulated", 2, "average", 0.0, ""),
    ("sum", 1, "sum", 0.0, ""),
    ("synchronized", 1, "average", 0.9, "synchronized"),
    ("predivided", 1, "average", 0.0, "predivided"),
    ("fp16", 1, "average", 0.0, "fp16"),
):
    pair = by_hand(passes, op, momentum), by_horovod(passes, op, momentum, way)
    if hvd.rank() == 0:
        print(name, *(" ".join(map(repr, losses)) for losses in pair), sep="\n")
sys.stdout.flush()
hvd.shutdown()
