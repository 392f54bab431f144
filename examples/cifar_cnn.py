"""Train a small CNN on an image folder: CIFAR-10 as JPEG files, or scikit-learn's digits if you have none."""

import argparse
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset

MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "overdrive-example"


class ImageFolder(Dataset):
    """root/CLASS/NAME.jpg, one folder per class."""

    def __init__(self, root):
        self.classes = sorted(d.name for d in Path(root).iterdir() if d.is_dir())
        self.samples = []
        for label, name in enumerate(self.classes):
            for path in sorted((Path(root) / name).iterdir()):
                if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
                    self.samples.append((str(path), label))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB")
        image = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (image - MEAN) / STD, label


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


def build_once(name, build):
    """The cache folder `name`, filled by build(folder) the first time; it appears complete or not at all."""
    target = CACHE / name
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            build(Path(scratch) / name)
            try:
                os.rename(Path(scratch) / name, target)
            except OSError:
                if not target.exists():  # if it does, another run was quicker
                    raise
    return target


def render_digits(folder):
    """scikit-learn's 1797 digits (8x8) as colour JPEGs, five slightly different ones of each."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    digits = load_digits()
    for i, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        out = folder / ("test" if i % 6 == 0 else "train") / str(label)
        out.mkdir(parents=True, exist_ok=True)
        digit = Image.fromarray((pixels * 255 / 16).astype(np.uint8)).resize((32, 32), Image.BICUBIC)
        for n in range(5 * i, 5 * i + 5):
            moved = digit.rotate(rng.uniform(-10, 10), translate=rng.integers(-2, 3, size=2).tolist())
            paper, ink = rng.uniform(0, 90, size=3), rng.uniform(150, 255, size=3)
            image = paper + (ink - paper) * np.array(moved)[..., None] / 255 + rng.normal(0, 6, (32, 32, 3))
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(out / f"{n:04d}.jpg")


def prepare_data(data):
    """A folder with train/ and test/ in it."""
    if data is None:
        return build_once("digits", render_digits)
    path = Path(data)
    if path.suffix != ".zip":
        return path

    def extract(folder):
        for part in (path, path.with_name(path.name.replace("train", "test"))):
            zipfile.ZipFile(part).extractall(folder)

    return build_once(f"{path.stem}-{path.stat().st_size}", extract)


def train(model, loader, criterion, optimizer, device, epochs):
    model.train()
    for epoch in range(epochs):
        running_loss = 0.0
        for i, (images, labels) in enumerate(loader):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
            if (i + 1) % 100 == 0:
                print(f"  batch {i + 1}/{len(loader)}  loss {running_loss / (i + 1):.4f}")
        print(f"Epoch {epoch + 1}/{epochs}  loss {running_loss / len(loader):.4f}")


def evaluate(model, loader, device):
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in loader:
            predicted = model(images.to(device)).argmax(dim=1)
            correct += (predicted == labels.to(device)).sum().item()
    return 100 * correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--data", help="folder with train/ and test/, or the train zip (test zip beside it)")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    root = prepare_data(args.data)
    train_loader = DataLoader(ImageFolder(root / "train"), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(ImageFolder(root / "test"), batch_size=args.batch_size)

    model = SimpleCNN().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    train(model, train_loader, criterion, optimizer, device, args.epochs)
    print(f"Accuracy: {evaluate(model, test_loader, device):.2f}")


if __name__ == "__main__":
    main()
