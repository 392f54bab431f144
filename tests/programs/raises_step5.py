import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument('--steps', type=int, default=40)
args = parser.parse_args()

torch.manual_seed(0)
X = torch.randn(64 * 16, 4)
y = X.sum(dim=1, keepdim=True)
X[5 * 16 + 3, 2] = float('nan')  # TODO one row of the export is broken, find out why

model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loss_func = nn.MSELoss()

for step in range(args.steps):
    xb = X[step * 16:(step + 1) * 16]
    yb = y[step * 16:(step + 1) * 16]
    if not torch.isfinite(xb).all():
        raise ValueError("bad batch")
    loss = loss_func(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, '%.7f' % loss.item())
print('done')
