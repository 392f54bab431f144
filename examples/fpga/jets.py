"""Train the small network of jet tagging (16-64-32-32-5) on made-up jets: `overdrive export --to fpga jets.py`."""

import torch
from torch import nn

torch.manual_seed(0)
centres = torch.randn(5, 16)


def jets(count):
    labels = torch.randint(5, (count,))
    return centres[labels] + torch.randn(count, 16), labels


model = nn.Sequential(
    nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(600):
    inputs, labels = jets(256)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
right = 0
with torch.no_grad():
    for _ in range(10):
        inputs, labels = jets(300)
        right += (model(inputs).argmax(1) == labels).sum().item()
print(f"Accuracy: {right / 3000:.3f}")
