"""The CNN of examples/cifar_cnn.py with its images in memory."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class SimpleCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(32 * 6 * 6, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc(torch.flatten(x, 1))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def make_data(args):
    n = max(4096, 4 * args.batch_size)
    labels = torch.randint(10, (n,))
    images = torch.randn(n, 3, 32, 32) + 0.3 * torch.randn(10, 3, 32, 32)[labels]
    return images, labels


def make_model(args):
    return SimpleCNN()


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


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
