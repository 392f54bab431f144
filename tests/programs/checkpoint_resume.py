import argparse
import csv
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    parser = argparse.ArgumentParser(description="train with checkpoints; run again to continue")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--out", type=str, default="./checkpoints")
    return parser.parse_args()


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(6, 40)
        self.bn = nn.BatchNorm1d(40)
        self.l2 = nn.Linear(40, 1)

    def forward(self, x):
        return self.l2(F.dropout(F.relu(self.bn(self.l1(x))), 0.1, self.training))


def save_checkpoint(state, is_best, out):
    torch.save(state, os.path.join(out, "checkpoint.pt"))
    if is_best:
        torch.save(state["model"], os.path.join(out, "best.pt"))


def main():
    args = get_args()
    os.makedirs(args.out, exist_ok=True)

    # the data does not depend on where we are in training
    g = torch.Generator().manual_seed(100)
    x = torch.randn(400, 6, generator=g)
    y = (x[:, :1] * x[:, 1:2] + torch.sin(2 * x[:, 2:3])) + 0.05 * torch.randn(400, 1, generator=g)
    train_loader = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[320:], y[320:]), batch_size=80)

    random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Regressor().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 6], gamma=0.5)
    start_epoch = 0
    best = float("inf")

    path = os.path.join(args.out, "checkpoint.pt")
    if os.path.isfile(path):
        print("=> loading checkpoint")
        ckpt = torch.load(path, map_location="cpu", weights_only=False)
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        scheduler.load_state_dict(ckpt["scheduler"])
        start_epoch = ckpt["epoch"]
        best = ckpt["best"]
        torch.set_rng_state(ckpt["rng"])
        random.setstate(ckpt["py_rng"])
        print("=> loaded checkpoint (epoch {})".format(start_epoch))
    else:
        with open(os.path.join(args.out, "metrics.csv"), "w", newline="") as f:
            csv.writer(f).writerow(["epoch", "train_loss", "val_loss"])

    for epoch in range(start_epoch, args.epochs):
        model.train()
        train_loss = 0.0
        for xb, yb in train_loader:
            xb, yb = xb.to(device), yb.to(device)
            if random.random() < 0.5:  # mirror augmentation: both signs flipped give the same product
                xb = xb * torch.tensor([-1.0, -1.0, 1.0, 1.0, 1.0, 1.0], device=device)
            optimizer.zero_grad()
            loss = F.mse_loss(model(xb), yb)
            loss.backward()
            optimizer.step()
            train_loss += loss.item() * len(xb)
        train_loss /= 320
        scheduler.step()

        model.eval()
        with torch.no_grad():
            val_loss = sum(F.mse_loss(model(xb.to(device)), yb.to(device), reduction="sum").item()
                           for xb, yb in val_loader) / 80
        is_best = val_loss < best
        best = min(val_loss, best)
        print("epoch {:d} train {:.8f} val {:.8f}{}".format(epoch, train_loss, val_loss, " *" if is_best else ""))

        with open(os.path.join(args.out, "metrics.csv"), "a", newline="") as f:
            csv.writer(f).writerow([epoch, "%.8f" % train_loss, "%.8f" % val_loss])
        save_checkpoint({
            "epoch": epoch + 1,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "best": best,
            "rng": torch.get_rng_state(),
            "py_rng": random.getstate(),
        }, is_best, args.out)

    print("best val loss {:.8f}".format(best))


if __name__ == "__main__":
    main()
