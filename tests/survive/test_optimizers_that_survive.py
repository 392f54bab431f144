"""Killed programs with optimizers of other kinds than PyTorch's, and with hooks on what these train."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.survive.killed import survive

pytest.importorskip("torch")

# As timm's Adan counts its steps, Prodigy keeps its estimate of a rate, and timm's Lamb keeps a tensor: in the groups.
LIBRARY = """
import torch
class Counting(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "estimate": 1e-6})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            group.setdefault("total", torch.zeros(()))
            for p in group["params"]:
                group["total"] += p.grad.norm()
                group["estimate"] = max(group["estimate"], p.grad.norm().item())
                p -= group["lr"] / group["step"] * p.grad * group["estimate"] / (1 + group["total"])
"""
COUNTS = """
import os, signal, sys
sys.path.insert(0, "site-packages")
import torch
from counting import Counting
torch.manual_seed(3)
model = torch.nn.Linear(6, 2)
optimizer = Counting([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.2}])
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
x = torch.randn(60, 6); y = (x.sum(1) > 0).long()
for step in range(1, 31):
    i = torch.randint(0, 60, (12,))
    loss = torch.nn.functional.cross_entropy(model(x[i]), y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
    if step % 4 == 1:
        last = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    print(step, f"{loss:.9f}")
    if step == int(os.environ.get("DIES", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
torch.save([model.state_dict(), last["optimizer"], optimizer.state_dict()], "end.pt")
"""


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_what_a_librarys_optimizer_keeps_in_its_groups_is_kept(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        folder = tmp_path / name / "site-packages"
        folder.mkdir(parents=True)
        (folder / "counting.py").write_text(LIBRARY)
    _killed_twice(tmp_path, COUNTS)


# Pruning by magnitude in the middle of training: the mask is in the hook alone, as is what the other one holds.
PRUNES = """
import os, signal, torch
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(60, 6); y = (x.sum(1) > 0).long()
def prune(weight):
    mask = (weight.detach().abs() > weight.detach().abs().median()).float()
    weight.register_hook(lambda gradient: gradient * mask)
def shrink(weight):
    scale = weight.detach().abs().mean()
    def act(each):
        each.grad.mul_(scale)
    weight.register_post_accumulate_grad_hook(act)
for step in range(1, 31):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step == 10:
        prune(model[0].weight)
        shrink(model[2].weight)
    print(step, f"{loss:.9f}")
    if step == int(os.environ.get("DIES", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
torch.save(model.state_dict(), "end.pt")
"""


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_what_a_hook_on_a_weight_holds_is_kept(tmp_path: Path) -> None:
    _killed_twice(tmp_path, PRUNES)


# As Reptile learns: each task has a copy of the model and an optimizer, which are let go after it.
TASKS = """
import copy, gc, os, signal, weakref, torch
from overdrive.seams.torch import optimizers
torch.manual_seed(3)
found, looks = optimizers.models_of, []
optimizers.models_of = lambda *given: looks.append(1) or found(*given)
model = torch.nn.Linear(6, 2)
outer = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.randn(60, 6); y = (x.sum(1) > 0).long()
seen = []
for task in range(1, 301):
    inner = copy.deepcopy(model)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
    seen.append(weakref.ref(optimizer))
    for _ in range(2):
        i = torch.randint(0, 60, (12,))
        loss = torch.nn.functional.cross_entropy(inner(x[i]), y[i])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    for p, q in zip(model.parameters(), inner.parameters()):
        p.grad = p.detach() - q.detach()
    outer.step()
    print(task, f"{loss:.9f}")
    if task == int(os.environ.get("DIES", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
gc.collect()
print("kept", sum(each() is not None for each in seen) <= 2, "looked for", len(looks))  # a snapshot waits for one
torch.save(model.state_dict(), "end.pt")
"""


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_an_optimizer_of_each_task_is_let_go_with_it(tmp_path: Path) -> None:
    """And its models are not looked for among all objects, which takes longer than such a task."""
    parts = _killed_twice(tmp_path, TASKS, dies=(140, 230))
    assert parts[-1].stdout.endswith("kept True looked for 0\n")


def _killed_twice(
    tmp_path: Path, program: str, dies: tuple[int, int] = (14, 23)
) -> list[subprocess.CompletedProcess[str]]:
    """It goes on both times, and ends as one that was not killed."""
    whole = survive(tmp_path, "whole", program)
    assert whole.returncode == 0, whole.stderr
    parts = [survive(tmp_path, "killed", program, dies=step) for step in (*dies, 0)]
    assert [each.returncode for each in parts] == [-signal.SIGKILL, -signal.SIGKILL, 0], parts[-1].stderr
    told = "".join(each.stderr for each in parts)
    assert told.count("gone on after step") == 2 and "from its start" not in told, told
    assert "".join(each.stdout for each in parts) == whole.stdout
    ends = [files_of_end(tmp_path / name) for name in ("whole", "killed")]
    assert ends[0] == ends[1]
    return parts


def files_of_end(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
