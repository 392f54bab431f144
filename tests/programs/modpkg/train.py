"""Usage: python -m modpkg.train [--epochs N]"""
import argparse

import torch

from .data import addition_problems, batches
from .nets import Adder


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args(argv)

    torch.manual_seed(11)
    g = torch.Generator()
    g.manual_seed(11)
    x, y = addition_problems(320, 12, g)

    model = Adder()
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{__package__}: {n_params} parameters")
    optim = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        losses = []
        for bx, by in batches(x, y, args.batch_size, g):
            optim.zero_grad()
            loss = torch.nn.functional.mse_loss(model(bx), by)
            loss.backward()
            optim.step()
            losses.append(loss.detach())
        print(f"epoch {epoch} mse {torch.stack(losses).mean():.8f}")


if __name__ == "__main__":
    main()
