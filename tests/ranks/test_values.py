"""Models whose code asks values of its batch on two ranks: the numbers of one process, and no wait without an end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.ranks.comparing import same_on_ranks

Write = Callable[[str], Path]

# As language models do, it asks whether there is anything to mask. `act(mask)` comes between a question and what is
# done by the answer.
ASKING = """
import torch
from overdrive.ranks.rank import current
def now(rank, which, mask):  # on that rank alone, in its part, and in no trial
    own = current()
    return own is not None and own.rank == rank and own.group.mine() and step == which and len(mask) < 7
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
class Asking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop, self.head = torch.nn.Linear(6, 6), torch.nn.Dropout(0.2), torch.nn.Linear(6, 3)
        self.calls = [0]
    def forward(self, x, mask, y):
        asked = torch.all(mask)
        act(mask)
        inner = self.drop(self.body(x).tanh())
        if not asked:
            inner = inner * mask[:, :, None]
        if {question}:
            inner = inner / 2
        made = self.head(inner.sum(1))
        return made, torch.nn.functional.cross_entropy(made, y)
model = Asking()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(14):
    rows = 8 if step % 5 else 7
    lengths = torch.full((rows,), 5) if step % 3 == 1 else torch.randint(2, 6, (rows,))
    mask = torch.arange(5) < lengths[:, None]
    optimizer.zero_grad()
    made, loss = model(torch.randn(rows, 5, 6), mask, torch.randint(3, (rows,)))
    (loss + made.square().mean()).backward()
    optimizer.step()
    print(step, loss.item(), sum(each.norm().item() for each in model.parameters()), flush=True)
"""
NOTHING = "pass"
COUNTED = "mask.sum() == mask.numel()"


def asking(act: str = NOTHING, question: str = COUNTED) -> str:
    return f"def act(mask):\n    {act}\n{ASKING.replace('{question}', question)}"


def test_a_model_that_asks_values_of_its_batch_is_divided(script: Write, warm_python: Run, overdrive: Run) -> None:
    told = same_on_ranks(script(asking()), warm_python, overdrive)
    assert "called whole" not in told


@pytest.mark.cluster
def test_one_that_reads_another_number_of_each_batch_is_called_whole(
    script: Write, warm_python: Run, overdrive: Run
) -> None:
    told = same_on_ranks(script(asking(NOTHING, "int(mask.sum()) % 2")), warm_python, overdrive)
    assert "Asking is called whole on every rank: it looks at values of its batch\n" in told


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("what", "question", "reason"),
    [
        ("if now(0, 1, mask): raise ValueError('only here')", COUNTED, "only here"),  # the other has a new answer
        ("if now(1, 1, mask): raise ValueError('only here')", COUNTED, "only here"),
        ("if now(1, 2, mask): raise ValueError('only here')", COUNTED, "only here"),
        ("if now(1, 2, mask): mask.any()", COUNTED, "it makes one number of its batch (any) as it did not before"),
        # The other asks for the loss.
        (NOTHING, "now(1, 2, mask) or mask.any()", "rank 0 asks for the any of a batch, its number 2 in step 3, and"),
    ],
)
@pytest.mark.fault(16, 19)
def test_a_part_that_goes_astray_on_one_rank_alone_is_undone_on_both(
    what: str, question: str, reason: str, script: Write, warm_python: Run, overdrive: Run
) -> None:
    told = same_on_ranks(script(asking(what, question)), warm_python, overdrive)
    assert f"Asking is called whole on every rank: {reason}" in told
