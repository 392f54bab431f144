#!/usr/bin/env python
"""Imbalanced binary classification with early stopping."""
import argparse
import copy

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


class EarlyStopping:
    """Stops the training if validation loss doesn't improve after a given patience."""

    def __init__(self, patience=3, delta=0.0):
        self.patience = patience
        self.delta = delta
        self.counter = 0
        self.best_loss = None
        self.best_state = None
        self.early_stop = False

    def __call__(self, val_loss, model):
        if self.best_loss is None or val_loss < self.best_loss - self.delta:
            self.best_loss = val_loss
            self.best_state = copy.deepcopy(model.state_dict())
            self.counter = 0
        else:
            self.counter += 1
            print(f'EarlyStopping counter: {self.counter} out of {self.patience}')
            if self.counter >= self.patience:
                self.early_stop = True


def make_data(n, rng):
    y = (rng.random(n) < 0.15).astype(np.float32)
    x = rng.normal(size=(n, 8)).astype(np.float32)
    x[:, :3] += y[:, None] * 1.2
    return torch.from_numpy(x), torch.from_numpy(y)


def train_epoch(model, loader, criterion, optimizer, device):
    model.train()
    losses = []
    positives = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        positives += int(y.sum().item())
    return float(np.mean(losses)), positives


def validate(model, loader, criterion, device):
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            losses.append(criterion(model(x).squeeze(1), y).item())
    return float(np.mean(losses))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--epochs', type=int, default=12)
    parser.add_argument('--patience', type=int, default=2)
    parser.add_argument('--weighted', action='store_true', help='oversample the rare class')
    args = parser.parse_args()

    rng = np.random.default_rng(4)
    torch.manual_seed(4)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    x_train, y_train = make_data(256, rng)
    x_val, y_val = make_data(128, rng)
    train_set = TensorDataset(x_train, y_train)

    generator = torch.Generator()
    generator.manual_seed(123)
    if args.weighted:
        counts = torch.bincount(y_train.long())
        weights = 1.0 / counts[y_train.long()].double()
        sampler = WeightedRandomSampler(weights, num_samples=len(train_set), replacement=True, generator=generator)
        train_loader = DataLoader(train_set, batch_size=32, sampler=sampler)
    else:
        train_loader = DataLoader(train_set, batch_size=32, shuffle=True, generator=generator)
    val_loader = DataLoader(TensorDataset(x_val, y_val), batch_size=64, shuffle=False)

    model = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 1),
    ).to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    stopper = EarlyStopping(patience=args.patience)

    for epoch in range(args.epochs):
        train_loss, positives = train_epoch(model, train_loader, criterion, optimizer, device)
        val_loss = validate(model, val_loader, criterion, device)
        print(f'epoch {epoch:02d} train_loss {train_loss:.7f} val_loss {val_loss:.7f} positives {positives}')
        stopper(val_loss, model)
        if stopper.early_stop:
            print('Early stopping')
            break

    model.load_state_dict(stopper.best_state)
    print(f'best val loss {validate(model, val_loader, criterion, device):.7f}')


if __name__ == '__main__':
    main()
