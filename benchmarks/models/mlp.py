"""A multi-layer perceptron on images of 28x28."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def make_data(args):
    labels = torch.randint(10, (8192,))
    images = torch.randn(8192, 784) + 0.3 * torch.randn(10, 784)[labels]
    return images, labels


def make_model(args):
    width = args.width
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(width, 10),
    )  # fmt: skip


def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def loss_of(output, target):
    return F.cross_entropy(output, target)


def main():
    args = arguments().parse_args()
    torch.manual_seed(0)
    images, labels = (tensor.to(args.device) for tensor in make_data(args))
    model = make_model(args).to(args.device)
    optimizer = make_optimizer(model)
    for epoch in range(args.epochs):
        total = 0.0
        order = torch.randperm(len(images), device=args.device)
        for i in range(0, len(images), args.batch_size):
            batch = order[i : i + args.batch_size]
            loss = loss_of(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total * args.batch_size / len(images):.4f}")


if __name__ == "__main__":
    main()
