"""Sinusoid fit with a SIREN-ish MLP; uses torch.compile for speed."""
import argparse

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--backend", type=str, default="inductor")
parser.add_argument("--no-compile", action="store_true")
args = parser.parse_args()

torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(3.0 * x)


model = nn.Sequential(nn.Linear(1, 32), Sine(), nn.Linear(32, 32), Sine(), nn.Linear(32, 1)).to(device)
if not args.no_compile:
    model = torch.compile(model, backend=args.backend)

opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
x = torch.linspace(-1, 1, 256, device=device).unsqueeze(1)
y = torch.sin(8 * x) * torch.exp(-x * x)

for step in range(args.steps):
    idx = torch.randint(0, 256, (64,), device=device)
    loss = ((model(x[idx]) - y[idx]) ** 2).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(f"step {step}: {loss.item():.7f}")

model.eval()
with torch.no_grad():
    print(f"final mse {((model(x[:64]) - y[:64]) ** 2).mean().item():.7f}")
