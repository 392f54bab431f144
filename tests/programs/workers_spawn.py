"""Same idea on every OS: spawned loader workers, so keep the main guard."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TwoMoons(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.rand(n, generator=g) * 3.14159
        self.y = torch.randint(0, 2, (n,), generator=g)
        flip = 1 - 2 * self.y.float()
        self.x = torch.stack([torch.cos(t) * flip + self.y * 1.0,
                              torch.sin(t) * flip + self.y * 0.5], dim=1)
        self.x += 0.1 * torch.randn(n, 2, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i].item()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


def run(epochs, workers):
    torch.manual_seed(7)
    loader = DataLoader(TwoMoons(512, seed=5), batch_size=32, shuffle=True, num_workers=workers,
                        multiprocessing_context="spawn", persistent_workers=True)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    loss_fn = nn.BCEWithLogitsLoss()
    for epoch in range(epochs):
        hits, total = 0, 0.0
        for x, y in loader:
            out = net(x)
            loss = loss_fn(out, y.float())
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            hits += ((out > 0) == y.bool()).sum().item()
        print(f"epoch {epoch}  loss {total / len(loader):.7f}  acc {hits / 512:.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--workers", type=int, default=2)
    ns = ap.parse_args()
    run(ns.epochs, ns.workers)
