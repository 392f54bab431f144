"""An LSTM that classifies sequences."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Classifier(nn.Module):
    def __init__(self, features, hidden, layers, classes):
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        output, _ = self.lstm(x)
        return self.head(output[:, -1])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def make_data(args):
    labels = torch.randint(8, (2048,))
    series = torch.randn(2048, args.length, 32) + 0.3 * torch.randn(8, args.length, 32)[labels]
    return series, labels


def make_model(args):
    return Classifier(32, args.hidden, 2, 8)


def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def loss_of(output, target):
    return F.cross_entropy(output, target)


def main():
    args = arguments().parse_args()
    torch.manual_seed(0)
    series, labels = (tensor.to(args.device) for tensor in make_data(args))
    model = make_model(args).to(args.device)
    optimizer = make_optimizer(model)
    for epoch in range(args.epochs):
        total = 0.0
        order = torch.randperm(len(series), device=args.device)
        for i in range(0, len(series), args.batch_size):
            batch = order[i : i + args.batch_size]
            loss = loss_of(model(series[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total * args.batch_size / len(series):.4f}")


if __name__ == "__main__":
    main()
