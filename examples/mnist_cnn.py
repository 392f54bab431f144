"""The usual MNIST example: a small CNN, Adadelta, 14 epochs."""

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from PIL import Image
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


def read_idx(path, header):
    with gzip.open(path) as f:
        return np.frombuffer(f.read(), dtype=np.uint8, offset=header)


def load_arrays(data, train):
    """Images (N, 28, 28) uint8 and labels: MNIST from its four .gz files, or scikit-learn's digits."""
    if data:
        prefix = "train" if train else "t10k"
        images = read_idx(Path(data) / f"{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
        labels = read_idx(Path(data) / f"{prefix}-labels-idx1-ubyte.gz", 8)
        return images, labels

    from sklearn.datasets import load_digits

    digits = load_digits()
    small = (digits.images * 255 / 16).astype(np.uint8)
    images = np.stack([np.array(Image.fromarray(d).resize((28, 28), Image.BICUBIC)) for d in small])
    chosen = (np.arange(len(images)) % 6 != 0) == train
    return images[chosen], digits.target[chosen]


class MNIST(Dataset):
    def __init__(self, data, train):
        self.images, self.labels = load_arrays(data, train)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = Image.fromarray(self.images[index])
        tensor = torch.from_numpy(np.array(image)).unsqueeze(0).float() / 255
        tensor = (tensor - 0.1307) / 0.3081
        return tensor, int(self.labels[index])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % 10 == 0:
            done, total = batch_idx * len(data), len(train_loader.dataset)
            percent = 100 * batch_idx / len(train_loader)
            print(f"Train Epoch: {epoch} [{done}/{total} ({percent:.0f}%)]\tLoss: {loss.item():.6f}")
            if args.dry_run:
                break


def test(model, device, test_loader):
    model.eval()
    test_loss = 0
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()

    total = len(test_loader.dataset)
    print(
        f"\nTest set: Average loss: {test_loss / total:.4f}, "
        f"Accuracy: {correct}/{total} ({100 * correct / total:.2f}%)\n"
    )


def main():
    parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
    parser.add_argument("--batch-size", type=int, default=64, help="batch size for training (default: 64)")
    parser.add_argument("--epochs", type=int, default=14, help="number of epochs (default: 14)")
    parser.add_argument("--lr", type=float, default=1.0, help="learning rate (default: 1.0)")
    parser.add_argument("--dry-run", action="store_true", help="quickly check a single pass")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--data", help="folder with the four MNIST .gz files (default: sklearn digits)")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader = DataLoader(MNIST(args.data, train=True), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(MNIST(args.data, train=False), batch_size=1000)

    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)

    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()
        if args.dry_run:
            break


if __name__ == "__main__":
    main()
