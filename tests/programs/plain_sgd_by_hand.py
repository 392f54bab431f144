"""Softmax regression and a hidden layer from scratch: autograd only, no torch.optim."""
import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.2)
args = parser.parse_args()

torch.manual_seed(1)
bs = 32
x_train = torch.randn(512, 30)
y_train = (x_train[:, :3] + 0.5 * x_train[:, 3:6] ** 2).argmax(dim=1)


class MnistLogistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(30, 32) / math.sqrt(30))
        self.b1 = nn.Parameter(torch.zeros(32))
        self.w2 = nn.Parameter(torch.randn(32, 3) / math.sqrt(32))
        self.b2 = nn.Parameter(torch.zeros(3))

    def forward(self, xb):
        return torch.relu(xb @ self.w1 + self.b1) @ self.w2 + self.b2


model = MnistLogistic()


def accuracy(out, yb):
    return (out.argmax(dim=1) == yb).float().mean()


for epoch in range(args.epochs):
    for i in range((len(x_train) - 1) // bs + 1):
        xb = x_train[i * bs:i * bs + bs]
        yb = y_train[i * bs:i * bs + bs]
        loss = F.cross_entropy(model(xb), yb)

        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= args.lr * p.grad
            model.zero_grad()
    print(epoch, f"loss {loss.item():.7f}")

with torch.no_grad():
    out = model(x_train)
    print(f"final loss {F.cross_entropy(out, y_train).item():.7f} acc {accuracy(out, y_train).item():.4f}")
