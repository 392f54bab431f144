"""Steps that are made within a call which is skipped as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.survive.killed import survive, told_of_going_on
from tests.survive.test_survive import TRAIN

pytest.importorskip("torch")

# As of optimizers that are given another one: SAM, Lookahead.
OUTER = """
class Outer(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(list(params), {"lr": lr})
        self.inner = torch.optim.AdamW(self.param_groups, lr=lr)
        self.param_groups = self.inner.param_groups
    def step(self, closure=None):
        if closure:
            with torch.enable_grad():
                closure().backward()
        self.inner.step()
optimizer = Outer(model.parameters(), lr=0.02)
"""
NESTED = TRAIN.replace("optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)\n", OUTER).replace(
    "optimizer.state_dict()", "optimizer.inner.state_dict()"
)
CLOSURE = "optimizer.step(lambda: torch.nn.functional.cross_entropy(model(inputs), targets))"


@pytest.mark.survive
@pytest.mark.fault("killed")
@pytest.mark.parametrize("call", ["optimizer.step()", CLOSURE], ids=["alone", "with a closure"])
def test_a_step_within_a_step_is_the_same_one(call: str, tmp_path: Path) -> None:
    text = NESTED.replace("optimizer.step()", call)
    assert "from its start" not in "".join(told_of_going_on(tmp_path, text))


IN_CALL = """
import os, signal
import torch
nn, F = torch.nn, torch.nn.functional
torch.manual_seed(1)

class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)

    def forward(self, x, y):
        losses = 0.0
        for one, target in zip(x, y):
            slopes = torch.autograd.grad(F.cross_entropy(self.net(one), target), self.net.parameters())
            fast = [w - 0.4 * slope for w, slope in zip(self.net.parameters(), slopes)]
            losses = losses + F.cross_entropy(F.linear(one, *fast), target)
        self.optimizer.zero_grad()
        losses.backward()
        self.optimizer.step()
        return losses.item()

learner = Learner()
for step in range(1, 31):
    print(step, f"{learner(torch.randn(4, 8, 6), torch.randint(0, 3, (4, 8))):.9f}", flush=True)
    if step == int(os.environ.get("DIES", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
torch.save(learner.state_dict(), "end.pt")
"""


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_a_module_whose_call_is_a_whole_step_goes_on(tmp_path: Path) -> None:
    """As of MAML: what it calls is the model."""
    told_of_going_on(tmp_path, IN_CALL)


IN_BACKWARD = """
import torch
model = torch.nn.Linear(3, 2)
optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}
for each in model.parameters():
    each.register_post_accumulate_grad_hook(lambda each: optimizers[each].step())
for _ in range(5):
    model(torch.randn(4, 3)).pow(2).mean().backward()
"""


@pytest.mark.survive
def test_steps_within_a_backward_pass_are_told(tmp_path: Path) -> None:
    """As PyTorch's tutorial saves the memory of gradients. They are skipped with it, so that no step is seen."""
    got = survive(tmp_path, "told", IN_BACKWARD)
    assert got.returncode == 0 and got.stderr.count("it makes steps within a backward pass") == 1, got.stderr
