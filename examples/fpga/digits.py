"""Train a small CNN on scikit-learn's digits, 8 × 8 pixels: `overdrive export --to fpga digits.py`."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
data = load_digits()
images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(data.target)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.pool, self.flat, self.fc = nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(self.flat(self.pool(self.relu(self.norm(self.conv(x))))))


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(20):
    model.train()
    for at in torch.randperm(1000).split(50):
        loss = nn.functional.cross_entropy(model(images[at]), labels[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for at in torch.arange(1000, len(labels)).split(100):
            right += (model(images[at]).argmax(1) == labels[at]).sum().item()
print(f"Accuracy: {right / (len(labels) - 1000):.3f}")
