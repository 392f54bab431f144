"""What a run without a plan does in each step, in calls of our functions: no test asserts a time."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest

import overdrive
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from overdrive.worker.watching.losses import LossWatch

torch = pytest.importorskip("torch")

OURS = str(Path(overdrive.__file__).parent)
STEPS = 10


def train(steps: int) -> int:
    """The samples of so many steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(4 * steps, 4))
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return len(data)


def test_few_functions_of_ours_are_called_in_a_step() -> None:
    """As `overdrive run` has it. They were 38; each costs 0.3 us and more amid a step of 200."""
    recorder, called = Recorder(), Counter[str]()

    def count(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            called[frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name] += 1

    with Session((), [recorder, LossWatch(None, lambda: recorder.clock.steps, print)]) as session:
        samples = train(3)
        sys.setprofile(count)
        samples += train(STEPS)
        sys.setprofile(None)
        assert not session.seams.left_out
    assert recorder.clock.steps == STEPS + 3 and recorder.samples == samples
    in_each = {name: number for name, number in called.items() if number >= STEPS}
    assert sum(in_each.values()) <= 16 * STEPS, in_each
