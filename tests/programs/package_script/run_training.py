import argparse
import logging
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import trainlib
from trainlib.model import build_model

CONFIG = {
    "in_ch": 2,
    "width": 8,
    "n_classes": 3,
    "p_drop": 0.1,
    "lr": 5e-3,
    "batch_size": 20,
}


def make_split(n):
    y = torch.randint(0, CONFIG["n_classes"], (n,))
    x = torch.randn(n, CONFIG["in_ch"], 10, 10)
    x[torch.arange(n), :, 3, 3] += 2.0 * y[:, None].float()
    return TensorDataset(x, y)


def cli():
    parser = argparse.ArgumentParser(prog="run_training")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=17)
    return parser.parse_args()


def main():
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    args = cli()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader = DataLoader(make_split(200), batch_size=CONFIG["batch_size"], shuffle=True)
    val_loader = DataLoader(make_split(80), batch_size=40)
    model = build_model(CONFIG).to(device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=CONFIG["lr"])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)

    history = trainlib.fit(model, train_loader, val_loader, torch.nn.CrossEntropyLoss(), optimizer, scheduler,
                           device, args.epochs)
    print("best val loss %.7f" % min(h["val_loss"] for h in history))
    return 0


if __name__ == "__main__":
    sys.exit(main())
