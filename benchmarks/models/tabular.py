"""A multi-layer perceptron on a table: scikit-learn's made classification, evaluated after each epoch."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import make_classification
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--epochs", type=int, default=8)
args = parser.parse_args()

x, y = make_classification(
    24_000, 40, n_informative=20, n_redundant=10, n_classes=6, n_clusters_per_class=3, random_state=0
)
x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
torch.manual_seed(0)
train, test = TensorDataset(x[:20_000], y[:20_000]), TensorDataset(x[20_000:], y[20_000:])
loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 6))
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
for epoch in range(args.epochs):
    model.train()
    for features, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        correct = sum((model(a).argmax(1) == b).sum().item() for a, b in DataLoader(test, batch_size=1000))
    print(f"epoch {epoch + 1}: Accuracy {100 * correct / len(test):.2f}")
