"""Streaming regression: the samples come from an endless-ish generator."""
import argparse
import itertools
import random

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class SensorStream(IterableDataset):
    """Yields (window, next value) pairs of a noisy AR(2) process."""

    def __init__(self, length, window=8, seed=0):
        super().__init__()
        self.length = length
        self.window = window
        self.seed = seed

    def readings(self, rng):
        a, b = 0.1, 0.3
        while True:
            yield b
            a, b = b, 1.6 * b - 0.8 * a + rng.gauss(0.0, 0.1)

    def __iter__(self):
        info = get_worker_info()
        n, seed = self.length, self.seed
        if info is not None:
            n = n // info.num_workers
            seed = seed + info.id
        stream = self.readings(random.Random(seed))
        buf = list(itertools.islice(stream, self.window))
        for _ in range(n):
            nxt = next(stream)
            yield torch.tensor(buf), torch.tensor([nxt])
            buf = buf[1:] + [nxt]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--bs", type=int, default=32)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--lr", type=float, default=0.01)
    a = p.parse_args()

    torch.manual_seed(3)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    ds = SensorStream(a.steps * a.bs)
    dl = DataLoader(ds, batch_size=a.bs, num_workers=a.workers)

    net = torch.nn.Sequential(
        torch.nn.Linear(8, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 1),
    ).to(dev)
    opt = torch.optim.RMSprop(net.parameters(), lr=a.lr, momentum=0.5)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=a.lr, total_steps=a.steps + 1)

    running = None
    seen = 0
    for i, (x, y) in enumerate(dl):
        x, y = x.to(dev), y.to(dev)
        loss = torch.nn.functional.smooth_l1_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        seen += len(x)
        running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
        if i % 10 == 9:
            print(f"{i + 1:4d} seen={seen} loss={loss.item():.8f} avg={running:.8f}")
    print(f"final loss {running:.8f}")


if __name__ == "__main__":
    main()
