"""PyTorch's compiler is imported where something of it is used, and is then the real one, wherever one looks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import long_but

pytest.importorskip("torch")

TRAINS = """
import contextlib, sys
import torch
from overdrive.seams.torch import late_compiler
from overdrive.worker.session import Session

def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return model.weight.tolist()

around = []

@contextlib.contextmanager
def context():
    around.append("in")
    yield
    around.append("out" if loaded() else "not loaded")

late_compiler.load_within(context)

def loaded():
    return "torch._dynamo.eval_frame" in sys.modules

def kept():
    return [each for each in vars(torch.optim.Optimizer.add_param_group.__wrapped__) if "dynamo" in each]

finders = list(sys.meta_path)
with Session([]):
    found = train()
    assert not loaded() and kept()
    MIDDLE
assert USED is loaded() and around == (["in", "out"] if USED else [])
assert not kept() or loaded()
assert [each for each in sys.meta_path if "overdrive" in type(each).__module__] == []
assert train() == found
assert loaded() and kept()
assert type(sys.modules["torch._dynamo"]).__name__ == type(torch._dynamo).__name__ == "module"
print("done")
"""
USES = {
    "nothing": "pass",
    "all that is imported is looked over": "[getattr(each, '__file__', 0) for each in list(sys.modules.values())]",
    "a part": """
    import torch._dynamo.config
    assert torch._dynamo.config is sys.modules["torch._dynamo.config"] and kept() == []
    assert torch._dynamo.config.__spec__.origin.endswith("config.py")
    assert train() == found and kept()
""",
    "a name": """
    from torch._dynamo import OptimizedModule
    import torch._dynamo.eval_frame
    assert OptimizedModule is torch._dynamo.eval_frame.OptimizedModule
""",
    "a setting by another name": """
    import torch._dynamo as other
    other.config.suppress_errors = True
    other.of_my_own = 3
    assert sys.modules["torch._dynamo"].of_my_own == other.of_my_own == 3 and other.config.suppress_errors
    import torch._dynamo.config
    assert torch._dynamo.config.suppress_errors
""",
    "compiling": """
    model = torch.nn.Linear(4, 1)
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, torch._dynamo.OptimizedModule)
    assert torch.equal(compiled(torch.ones(2, 4)), model(torch.ones(2, 4)))
    assert train() == found
""",
    "keeping the compiler out": """
    @torch._dynamo.disable
    def function():
        return 7
    assert function() == 7 and function.__name__ == "function"
""",
}


@pytest.mark.parametrize("use", long_but(["nothing", "a part", "compiling"], USES))
def test_it_comes_when_it_is_used(use: str) -> None:
    used = "False" if use in ("nothing", "all that is imported is looked over") else "True"
    program = TRAINS.replace("MIDDLE", USES[use].strip()).replace("USED", used)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
