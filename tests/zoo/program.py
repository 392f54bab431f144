"""Two small programs with much that can go wrong, as people write them: python program.py images|rows [SEED].

`images`: convolutions, batch norm, dropout; random augmentation; SGD with momentum and weight decay, two batches a
step. `rows`: an LSTM with AdamW, its own loss scaling, clipping, and a guard against a sample that is infinite.
Both shuffle, decay the learning rate every epoch (16 steps, 2 ms each on one core) and evaluate on held-out data.
"""

import random
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 5
MEAN, SPREAD = 0.25, 1.2
SCALE = 1024.0


class Normalise(nn.Module):
    """A transform that is a module, as torchvision's are."""

    def forward(self, image):
        return (image - MEAN) / SPREAD


class Pictures(Dataset):
    """Noisy 8 x 8 patterns of five classes; `augment`: flipped and with more noise, by chance."""

    normalise = Normalise()

    def __init__(self, count, seed, augment=False, broken=None):
        patterns = np.random.default_rng(0).normal(size=(CLASSES, 8, 8))
        chance = np.random.default_rng(seed)
        labels = chance.integers(CLASSES, size=count)
        pixels = 0.5 * patterns[labels] + chance.normal(size=(count, 8, 8))
        self.labels = torch.from_numpy(labels)
        self.images = torch.from_numpy(pixels).float()[:, None]
        self.augment = augment
        if broken is not None:
            self.images[broken] = float("inf")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.normalise(self.images[index])
        if self.augment:
            if random.random() < 0.5:
                image = image.flip(-1)
            image = image + 0.2 * torch.randn(image.shape)
        return image, self.labels[index]


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(16)
        self.dropout = nn.Dropout(0.25)
        self.hidden = nn.Linear(64, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = self.dropout(x.flatten(1))
        return self.head(F.relu(self.hidden(x)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 24, batch_first=True)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        states, _ = self.lstm(x.squeeze(1))
        return self.head(states.mean(1))


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x).argmax(1) == y).sum())
    model.train()
    return 100 * right / len(loader.dataset)


def train_images(epochs):
    model = Convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.95)
    train = DataLoader(Pictures(380, seed=1, augment=True), batch_size=12, shuffle=True)
    test = DataLoader(Pictures(64, seed=2), batch_size=32)
    for epoch in range(epochs):
        for number, (x, y) in enumerate(train):
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
        print(f"epoch {epoch}: accuracy {evaluate(model, test):.2f}")


def train_rows(epochs):
    model = Recurrent()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.95)
    train = DataLoader(Pictures(380, seed=1, broken=7), batch_size=23, shuffle=True)
    test = DataLoader(Pictures(64, seed=2), batch_size=32)
    for epoch in range(epochs):
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            if not torch.isfinite(loss):
                continue
            optimizer.zero_grad()
            (SCALE * loss).backward()
            for parameter in model.parameters():
                parameter.grad /= SCALE
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch}: accuracy {evaluate(model, test):.2f}")


def main(name="images", seed="0"):
    torch.manual_seed(int(seed))
    random.seed(int(seed))
    {"images": train_images, "rows": train_rows}[name](epochs=30)


if __name__ == "__main__":
    main(*sys.argv[1:])
