"""What ranks read of tensors: rank 0's, and who has something else is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overdrive.core.whose import OURS
from overdrive.ranks.lockstep import Lockstep
from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.torch import fetches, optimizers, scalars
from tests.conftest import Run
from tests.ranks.comparing import same_on_ranks

Write = Callable[[str], Path]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([3.0, 3.0, 3.0], ""),
        ([3.0, 3.0000001, 3.0], ""),  # other hardware
        ([float("nan"), float("nan"), float("nan")], ""),
        ([3.0, 3.0, 2.0], "reads a number in step 1 that rank 2 has otherwise (3, and 2 there)"),
        ([4, 4, 5], "rank 2 has otherwise (4, and 5 there)"),
    ],
)
def test_a_number_that_is_another_one_elsewhere_is_told_once(numbers: list[Any], said: str) -> None:
    told: list[str] = []
    group: Any = SimpleNamespace(
        rank=0, mine=lambda: True, numbers_of_each=lambda own, what: [[each] for each in numbers]
    )
    seams = Seams(lambda technique, reason: None)
    Lockstep(lambda: group, told.append).observe(seams)
    for _ in range(2):
        found = seams.scalar_read.run(torch.tensor(numbers[0]), lambda: numbers[0])
        assert found is numbers[0] or found == numbers[0]
        assert type(found) is type(numbers[0])
    assert len(told) == bool(said) and said in "".join(told)


@pytest.mark.parametrize("survives", [False, True])
def test_what_a_data_set_reads_in_a_fetch_is_told_to_nobody_but_by_a_run_that_survives(survives: bool) -> None:
    asked: list[Any] = []

    def numbers_of_each(own: Any, what: str) -> list[list[Any]]:
        asked.extend(own)
        return [[7], own]

    group: Any = SimpleNamespace(rank=1, mine=lambda: True, numbers_of_each=numbers_of_each)
    seams = Seams(lambda technique, reason: None)
    lockstep = Lockstep(lambda: group, lambda what: None)
    lockstep.observe(seams)
    if survives:
        seams.samples_fetched.subscribe(lambda subject, call: call())
    with fetches.noted():
        found = seams.scalar_read.run(torch.tensor(3), lambda: 3)
    assert (found, asked) == ((7, [3]) if survives else (3, []))
    assert seams.scalar_read.run(torch.tensor(4), lambda: 4) == 7 and asked[-1:] == [4], "outside of a fetch rank 0's"


class _Exchange:
    """A rank above 0 whose first one has answered what is in `first`, in this order; `asked`: what it was asked for."""

    rank, size = 1, 2

    def __init__(self) -> None:
        self.monitor = SimpleNamespace(step=0)
        self.first: list[list[Any]] = []
        self.asked: list[Any] = []

    def mine(self) -> bool:
        return True

    def of_all(self, numbers: Any, what: str) -> list[list[int]]:
        return [[*numbers], [*numbers]]

    def numbers_of_each(self, own: Any, what: str) -> list[list[Any]]:
        self.asked.append((what, [*own]))
        return [self.first.pop(0) if self.first else [*own], [*own]]


@pytest.fixture
def exchange() -> Iterator[_Exchange]:
    """What is read in this test is exchanged with it."""
    group: Any = _Exchange()
    seams, patches = Seams(lambda technique, reason: pytest.fail(reason)), Patches()
    Lockstep(lambda: group, lambda what: None).observe(seams)
    removers = [*scalars.enter(seams, patches), *optimizers.enter(seams, patches)]
    try:
        yield group
    finally:
        for each in reversed(removers):
            each()
        patches.restore()


@pytest.mark.parametrize(
    ("read", "first", "found"),
    [
        (lambda x: bool(x > 1), [1], True),
        (lambda x: "more" if x > 1 else "less", [1], "more"),
        (lambda x: max(x, torch.tensor(0.75)).item(), [1, 0.25], 0.25),
        (lambda x: torch.equal(x, x), [0], False),
        (lambda x: x.equal(x), [0], False),
        (lambda x: torch.allclose(x, x), [0], False),
        (lambda x: x.is_nonzero(), [0], False),
        (lambda x: [*range(x.long())], [2], [0, 1]),
        (lambda x: int(x * 4), [3], 3),
        (lambda x: x.tolist(), [0.25], 0.25),
        (lambda x: x.view(1, 1).tolist(), [0.25], [[0.25]]),
        (lambda x: (x.view(1) > 1).tolist(), [1], [True]),
        (lambda x: x.view(1).numpy()[0], [0.25], 0.25),
        (lambda x: (x.view(1) > 1).numpy().tolist(), [1], [True]),
        (lambda x: x.view(1).__array__().tolist(), [0.25], [0.25]),
    ],
)
def test_what_a_program_may_decide_by_is_rank_0s(read: Any, first: list[Any], found: Any, exchange: _Exchange) -> None:
    exchange.first = [[each] for each in first]
    assert read(torch.tensor(0.5)) == found
    assert len(exchange.asked) == len(first)


def test_an_array_is_the_tensors_own_where_all_have_its_numbers(exchange: _Exchange) -> None:
    x = torch.tensor([0.5, float("nan")])
    x.numpy()[0] = 2.0
    exchange.first = [[3.0, 4.0]]
    assert x.numpy().tolist() == [3.0, 4.0] and x[0] == 2.0, "what the program holds stays what it is"
    assert [what for what, _ in exchange.asked[:2]] == ["a number that is read"] * 2


def test_data_and_what_is_printed_are_not_exchanged(exchange: _Exchange) -> None:
    many = torch.arange(40)
    assert many.tolist() == [*range(40)] and many.numpy().sum() == 780 and many.view(5, 8).tolist()[4][7] == 39
    assert repr(torch.tensor([1.5, 2.0])) == "tensor([1.5000, 2.0000])" and str(many)
    assert not exchange.asked


def test_what_a_technique_asks_is_asked_of_nobody(exchange: _Exchange) -> None:
    own: dict[str, Any] = {}
    exec(compile("def ask(x): return bool(x), x.tolist()", f"{OURS}techniques/one.py", "exec"), own)
    assert own["ask"](torch.tensor(0.5)) == (True, 0.5) and not exchange.asked


def test_what_a_technique_makes_an_array_of_is_asked_of_nobody(exchange: _Exchange) -> None:
    """NumPy asks for it by PyTorch's code, which is not the one who asks."""
    source = "import numpy\ndef ask(x): return numpy.asarray(x).tolist(), bool(numpy.allclose(x, x))"
    own: dict[str, Any] = {}
    exec(compile(source, f"{OURS}techniques/one.py", "exec"), own)
    x = torch.tensor([0.5])
    assert own["ask"](x) == ([0.5], True) and not exchange.asked
    exec(compile(source, "train.py", "exec"), own)
    assert own["ask"](x) == ([0.5], True) and len(exchange.asked) >= 2, "a program's are exchanged"


def test_while_a_thread_prints_what_others_read_is_rank_0s(
    exchange: _Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints, read = threading.Event(), threading.Event()

    def shown(*args: Any, **kwargs: Any) -> str:
        prints.set()
        assert read.wait(20)
        return "shown"

    monkeypatch.setattr("torch._tensor_str._str", shown)
    with ThreadPoolExecutor() as pool:
        printed = pool.submit(repr, torch.tensor(0.5))
        assert prints.wait(20)
        exchange.first = [[0.25]]
        found = torch.tensor(0.5).item()
        read.set()
        assert printed.result(20) == "shown"
    assert found == 0.25


@pytest.mark.parametrize(("kind", "asks"), [("Adam", False), ("LBFGS", True)])
def test_an_optimizer_that_compares_goes_by_rank_0_and_so_does_a_closure(
    kind: str, asks: bool, exchange: _Exchange
) -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = getattr(torch.optim, kind)([weight])
    own: list[int] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        before = len(exchange.asked)
        assert loss > 0
        own.append(len(exchange.asked) - before)
        return loss

    optimizer.step(closure)
    assert own and {*own} == {1}, "a closure is the program's code"
    assert bool(len(exchange.asked) - len(own)) is asks
    assert (weight != 9).all()
    assert exchange.asked[-1] == ("a truth value that is read", [1]), "the step is over"


# What rank 1 compares is another number, by some units in the last place, or the other way round: as it may be by other
# hardware, next to a limit.
NUDGED = """
import torch
from torch import nn
from overdrive.ranks.rank import current
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
rank = current().rank if current() else 0
calls = [0]

def rounded(x, way=1):
    calls[0] += 1
    return x * (1 + way * rank * calls[0] * 2.0**-50)

model, x = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(16, 6)
y = x.sum(1, keepdim=True).tanh()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

def trained():
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss

best, waited, steps = torch.tensor(2.0), 0, 0
while waited < 3:  # early stopping: the last ones are the same, and no less
    trained()
    optimizer.step()
    steps += 1
    found = rounded(torch.tensor(1 / min(steps, 4)), -1)
    if found < best:
        best, waited = torch.tensor(1 / min(steps, 4)), 0
    else:
        waited += 1
print("early stopping", steps, float(best))

scale, skipped, largest = 1.0, 0, torch.finfo(torch.float64).max
for step in range(4):  # as GradScaler does
    trained()
    if torch.isfinite(rounded(torch.full((3,), largest * scale))).all():
        optimizer.step()
    else:
        scale, skipped = scale / 2, skipped + 1
print("loss scale", scale, skipped)

clipped = 0
for step in range(4):
    trained()
    norm = nn.utils.get_total_norm([each.grad for each in model.parameters()])
    limit = float(norm)
    if (rounded(norm) > limit).any():
        clipped += 1
        for each in model.parameters():
            each.grad.mul_(0.5)
    optimizer.step()
print("clipped", clipped, sum(each.square().sum() for each in model.parameters()).item())

done, x0 = 0, torch.tensor(4.0)
while not torch.equal(rounded(x0), x0) and done < 5:
    done += 1
    trained()
    optimizer.step()
[half] = rounded(torch.tensor([2.0]), -1).tolist()
whole, third, count = int(rounded(x0, -1)), rounded(x0, -1).numpy(), len(range(rounded(x0, -1).long()))
for step in range(whole + count + int(half) + int(third)):
    trained()
    optimizer.step()
print("counts", done, whole, count, int(half), int(third), trained().item())

from torch.optim import lbfgs
for search in (None, "strong_wolfe"):
    optimizer, compared = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6, line_search_fn=search), [0]

    def other_way(name):
        plain = getattr(torch.Tensor, name)
        def compare(self, other):
            made = plain(self, other)
            compared[0] += made.numel() == 1
            return ~made if rank and made.numel() == 1 and compared[0] % 3 == 0 else made
        return compare

    before = {name: getattr(torch.Tensor, name) for name in ("__lt__", "__le__", "__gt__", "__ge__")}
    for name in before:
        setattr(torch.Tensor, name, other_way(name))
    for step in range(3):
        print(search, optimizer.step(trained).item())
    for name, plain in before.items():
        setattr(torch.Tensor, name, plain)
    print(search, compared[0] > 9, trained().item())
"""


def test_ranks_go_the_same_way_whatever_each_of_them_rounds(script: Write, python: Run, overdrive: Run) -> None:
    told = same_on_ranks(script(NUDGED), python, overdrive)
    assert "reads a truth value in step 6 that rank 1 has otherwise (False, and True there)" in told
