"""Gradients of what no optimizer trains: of images that are attacked or looked at, and of features within a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.survive.killed import told_of_going_on

pytestmark = [pytest.mark.survive, pytest.mark.timeout(240)]

PROGRAM = """
import os, signal
import torch
nn, F = torch.nn, torch.nn.functional
torch.manual_seed(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(4 * 8 * 8, 1000)  # losses of many classes are not computed for each step that is skipped
    def forward(self, x):
        return self.head(self.features(x).flatten(1))

model = Net()
opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
seen, noise = [], torch.zeros(8, 1, 8, 8, requires_grad=True)

ATTACKS

attacks = [each for name, each in list(globals().items()) if name.startswith("attacked")]

for step in range(1, 25):
    x, y = torch.rand(8, 1, 8, 8), torch.randint(0, 4, (8,))
    x = attacks[step % len(attacks)](x, y)
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.9f}", f"{x.double().sum().item():.17g}", flush=True)
    if step == int(os.environ.get("DIES", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
torch.save(model.state_dict(), "end.pt")
"""
ATTACKS = {
    "the sign of an image's gradient": """
def attacked(x, y):
    x.requires_grad_()
    F.cross_entropy(model(x), y).backward()
    return (x + 0.1 * x.grad.sign()).clamp(0, 1).detach()
""",
    "by several steps, of what is added outside of the model": """
def attacked(x, y):
    delta = torch.zeros_like(x).uniform_(-0.1, 0.1).requires_grad_()
    for _ in range(3):
        F.cross_entropy(model((x + delta).clamp(0, 1)), y).backward()
        delta.data = (delta + 0.02 * delta.grad.detach().sign()).clamp(-0.1, 0.1)
        delta.grad.zero_()
    model.zero_grad()
    return (x + delta).detach()
""",
    "where the model is right, as PGD does": """
def attacked(x, y):
    delta = torch.zeros_like(x).requires_grad_()
    right = model(x + delta).topk(400).indices.eq(y[:, None]).any(1)
    F.cross_entropy(model(x + delta), y).backward()
    delta.data[right] = (delta + 0.05 * delta.grad.sign())[right]
    return (x + delta).detach()
""",
    "of noise that is kept from step to step": """
def attacked(x, y):
    F.cross_entropy(model(x + noise), y).backward()
    noise.data.add_(noise.grad, alpha=3.0)
    if noise.grad.abs().mean() > 0.001:
        noise.grad.mul_(0.5)
    return (x + noise).detach()
""",
    "of a gradient that is differentiated": """
def attacked(x, y):
    x.requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model(x), y), x, create_graph=True)
    slope.pow(2).sum().backward()
    return (x + 10 * x.grad).detach()
""",
    "of features, kept by the program": """
def attacked(x, y):
    found = model.features(x)
    found.retain_grad()
    F.cross_entropy(model.head(found.flatten(1)), y).backward()
    return (x + found.grad.mean(1, keepdim=True)).detach()
""",
    "of features, by a hook": """
def attacked(x, y):
    found = model.features(x)
    found.register_hook(lambda gradient: seen.append(gradient.detach()))
    F.cross_entropy(model.head(found.flatten(1)), y).backward()
    return (x + seen[-1].mean(1, keepdim=True)).detach()
""",
}


def test_a_run_that_was_killed_goes_on_with_gradients(tmp_path: Path) -> None:
    """Each step has another of them."""
    functions = [text.replace("attacked", f"attacked_{number}") for number, text in enumerate(ATTACKS.values())]
    text = PROGRAM.replace("ATTACKS", "".join(functions))
    told_of_going_on(tmp_path, text, dies=20)
