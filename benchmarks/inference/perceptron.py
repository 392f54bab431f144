"""A perceptron over rows of a table: python perceptron.py [--requests 100000] [--rows 32]."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--requests", type=int, default=100000)
parser.add_argument("--rows", type=int, default=32)
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1)),
    *(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.1)),
    nn.Linear(512, 10),
)
model.eval()
table = torch.randn(4096, 64)
positive = 0
with torch.no_grad():
    for number in range(args.requests):
        rows = table[torch.arange(number * args.rows, (number + 1) * args.rows) % len(table)]
        positive += int((model(rows).argmax(dim=1) == 0).sum())
print("of the first class:", positive)
