"""ResNet-18 for images of 32x32: a 3x3 stem and no pooling after it, as on CIFAR-10."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks, inputs = [], width
        for stage in range(4):
            for number in range(2):
                outputs = width * 2**stage
                blocks.append(Block(inputs, outputs, 2 if stage and not number else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        return self.fc(x.mean((2, 3)))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def make_data(args):
    labels = torch.randint(10, (2048,))
    images = torch.randn(2048, 3, 32, 32) + 0.3 * torch.randn(10, 3, 32, 32)[labels]
    return images, labels


def make_model(args):
    return ResNet18(args.width)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


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
