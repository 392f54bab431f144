"""A model that waits instead of computing: how long differs from step to step and from process to process."""

import argparse
import math
import os
import socket
import time

import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--base", type=float, default=0.02, help="seconds of each call")
parser.add_argument("--spread", type=float, default=0.0, help="seconds more, from none to twice these, by chance")
parser.add_argument("--slow", type=float, default=1.0, help="one process waits so many times as long")
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--say", type=int, default=10, help="steps between two lines that it prints")
args = parser.parse_args()


def is_first():
    """Of the processes that ask: the one that has the name."""
    global name
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind("\0benchmarks/models/waiting.py")
    except OSError:
        return False
    return True


times = args.slow if args.slow != 1 and is_first() else 1.0
# Of this process: seeds and random numbers are all ranks'. None where nothing varies: a run that survives compares it.
chance = time.perf_counter_ns() + os.getpid() * 7919 if args.spread else 0


class Waiting(torch.nn.Linear):
    def forward(self, x):
        global chance
        if args.spread:
            chance = (chance * 6364136223846793005 + 1442695040888963407) % 2**64
        time.sleep((args.base + 2 * args.spread * (chance / 2**64)) * times)
        return super().forward(x)


torch.manual_seed(0)
model = Waiting(32, 32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    loss = (model(torch.randn(8, 32)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % args.say == 0:
        print(f"step {step}", flush=True)
print(f"loss {math.sqrt(loss.item()):.4f}", flush=True)
