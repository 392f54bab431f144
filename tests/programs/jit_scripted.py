import argparse
from typing import List, Tuple

import torch
import torch.nn as nn
from torch import Tensor


class MinimalRNNCell(nn.Module):
    def __init__(self, n_in: int, n_hid: int):
        super().__init__()
        self.ih = nn.Linear(n_in, n_hid)
        self.hh = nn.Linear(n_hid, n_hid, bias=False)
        self.gate = nn.Linear(n_in + n_hid, n_hid)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        z = torch.tanh(self.ih(x) + self.hh(h))
        u = torch.sigmoid(self.gate(torch.cat([x, h], dim=-1)))
        return u * h + (1.0 - u) * z


class ScriptedRNN(nn.Module):
    def __init__(self, n_in: int, n_hid: int):
        super().__init__()
        self.cell = MinimalRNNCell(n_in, n_hid)

    def forward(self, xs: Tensor, h: Tensor) -> Tuple[Tensor, Tensor]:
        outs: List[Tensor] = []
        for t in range(xs.size(0)):
            h = self.cell(xs[t], h)
            outs.append(h)
        return torch.stack(outs), h


class Tagger(nn.Module):
    def __init__(self, n_in=5, n_hid=20):
        super().__init__()
        self.n_hid = n_hid
        # the python loop over time was the slow bit
        self.rnn = torch.jit.script(ScriptedRNN(n_in, n_hid))
        self.out = nn.Linear(n_hid, 1)

    def forward(self, xs):
        h0 = torch.zeros(xs.size(1), self.n_hid, dtype=xs.dtype, device=xs.device)
        outs, _ = self.rnn(xs, h0)
        return self.out(outs).squeeze(-1)


def get_batch(n):
    xs = torch.randn(10, n, 5)
    ys = (xs[:, :, 0].cumsum(0) > 0).float()
    return xs, ys


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()

    torch.manual_seed(55)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    bce = nn.BCEWithLogitsLoss()
    for step in range(args.steps):
        xs, ys = get_batch(32)
        loss = bce(model(xs), ys)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        if step % 15 == 0:
            print("step", step, "loss {:.7f}".format(loss.item()))
    print("final loss {:.7f}".format(loss.item()))
