"""`deferred_scalars` on a stand-in for a GPU that has only come to the mark: what was written later is not there."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session

NAME = "deferred_scalars"


class Late:
    """Reads what memory held at the mark; nothing (NaN) where it was made later."""

    def serves(self, tensor: Any) -> bool:
        return tensor.layout is torch.strided and tensor.device.type == "cpu"

    def mark(self, tensor: Any) -> dict[int, float]:
        with torch.no_grad():
            # By exact type: other tests leave fake tensors behind, which have no memory.
            kinds = (torch.Tensor, nn.Parameter)
            found = [each for each in gc.get_objects() if type(each) in kinds and self.serves(each)]
            return {each.data_ptr(): each.reshape(-1)[0].tolist() for each in found if each.numel()}

    def read(self, tensor: Any, mark: dict[int, float]) -> float:
        return mark.get(tensor.data_ptr(), math.nan)


@pytest.fixture
def technique(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    found = catalogue()[NAME]
    monkeypatch.setattr(type(found), "line", Late)
    yield found


LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
model, other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), nn.Linear(4, 2)
own = nn.Parameter(torch.zeros(3).normal_().clone())
optimizer = torch.optim.SGD([*model.parameters(), *other.parameters(), own], lr=0.1)
seen, held = [], []
for step in range(3):
    x, y = torch.randn(16, 4), torch.randint(2, (16,))
    optimizer.zero_grad()
    BODY
"""
# What a program may do in a step, and how many of its three steps' reads may be early.
BODIES: dict[str, tuple[str, int]] = {
    "after the step": (
        "loss = nn.functional.cross_entropy(model(x), y); loss.backward(); optimizer.step(); seen.append(loss.item())",
        3,
    ),
    "in other words": (
        "loss = nn.functional.cross_entropy(model(x), y); loss.backward(); optimizer.step()\n"
        "    seen += [float(loss), loss.detach().item(), loss.data.item(), f'{loss:.5f}', int(loss * 1000)]",
        12,
    ),
    "parts": (
        "out = model(x); a = nn.functional.cross_entropy(out, y); b = out.square().mean(); loss = a + 0.1 * b\n"
        "    loss.backward(); optimizer.step(); seen += [a.item(), b.item(), loss.item()]",
        9,
    ),
    "a number computed later": (
        "out = model(x); loss = nn.functional.cross_entropy(out, y); loss.backward(); optimizer.step()\n"
        "    seen += [(out.argmax(1) == y).sum().item(), model(x).mean().item(), own.sum().item()]",
        0,
    ),
    "written to after the mark": (
        "out = model(x); part = out.square().mean(); loss = part + out.sum(); loss.backward(); optimizer.step()\n"
        "    with torch.no_grad(): loss *= 3; part.add_(1)\n"
        "    seen += [loss.item(), part.item(), loss.detach().item()]",
        0,
    ),
    "written to before the mark": (
        "loss = nn.functional.cross_entropy(model(x), y); loss /= 4; loss.backward(); optimizer.step()\n"
        "    seen.append(loss.item())",
        3,
    ),
    "a view of what is trained": (
        "first = own[0]; loss = first * model(x).mean(); loss.backward()\n"
        "    own.data -= own.grad\n"
        "    seen += [first.item(), own[0].item()]",
        0,
    ),
    "a loss that is a view": (
        "loss = own[0]; loss.backward(); own.data -= 0.1 * own.grad; optimizer.step(); seen.append(loss.item())",
        0,
    ),
    "two losses and their sum": (
        "one = model(x).square().mean(); one.backward(); two = other(x).square().mean(); two.backward()\n"
        "    both = one + two; optimizer.step(); seen += [one.item(), two.item(), both.item()]",
        6,
    ),
    "a loss of many steps ago": (
        "loss = nn.functional.cross_entropy(model(x), y); loss.backward(); optimizer.step(); held.append(loss)\n"
        "    seen.append(held[0].item())",
        3,
    ),
    "running sum": (
        "loss = nn.functional.cross_entropy(model(x), y); loss.backward(); optimizer.step()\n"
        "    seen.append((seen[-1] if seen else 0.0) + loss.item())",
        3,
    ),
    "without gradient": ("seen.append(torch.ones(1).item())", 0),
}


def run(body: str, chosen: list[Any]) -> tuple[list[Any], Session]:
    space: dict[str, Any] = {}
    with Session(chosen) as session:
        exec(LOOP.replace("BODY", body), space)
    return space["seen"], session


@pytest.mark.parametrize("name", BODIES)
def test_the_program_reads_the_same_numbers(name: str, technique: Any) -> None:
    body, early = BODIES[name]
    expected, _ = run(body, [])
    seen, session = run(body, [(NAME, {})])
    assert seen == expected and [type(each) for each in seen] == [type(each) for each in expected]
    assert not session.seams.left_out
    assert session.handles[NAME].notes.reads == early


def test_only_the_same_thread_and_no_collective_may_be_early(technique: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Session([(NAME, {})]) as session, ThreadPoolExecutor(1) as pool:
        early = session.handles[NAME].notes
        weight = nn.Parameter(torch.ones(1))
        torch.optim.SGD([weight], lr=0.1)
        loss = (weight * 2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert pool.submit(loss.item).result() == 2.0 and early.reads == 0
        assert loss.item() == 2.0 and early.reads == 1
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        other = (weight * 3).sum()
        other.backward()  # type: ignore[no-untyped-call]
        assert other.item() == 3.0 and early.reads == 1


def test_on_the_cpu_nothing_is_early_and_nothing_stays_behind() -> None:
    before = {name: getattr(torch.Tensor, name) for name in ("item", "__float__", "__int__")}
    seen, session = run(BODIES["parts"][0], [(NAME, {})])
    assert seen == run(BODIES["parts"][0], [])[0]
    assert session.handles[NAME].notes.reads == 0 and not session.seams.left_out
    assert {name: getattr(torch.Tensor, name) for name in before} == before
    assert "item" not in vars(torch.Tensor)


def test_a_reading_that_fails_is_left_to_the_program(technique: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> float:
        raise RuntimeError("no stream")

    monkeypatch.setattr(Late, "read", broken)
    body = BODIES["after the step"][0]
    expected, _ = run(body, [])
    seen, session = run(body, [(NAME, {})])
    assert seen == expected and "no stream" in session.seams.left_out[NAME]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (Facts(), "on the CPU"),
        (Facts(device="cuda", own={NAME: {"reads": 0}}), "reads no number"),
        (Facts(device="cuda"), None),
    ],
)
def test_where_it_cannot_help(facts: Facts, reason: str | None) -> None:
    told = catalogue()[NAME].applies(facts)
    assert told is None if reason is None else reason in str(told)


def test_the_trial_counts_what_is_read_back() -> None:
    from overdrive.worker.own_facts import OwnFacts

    found = OwnFacts()
    with Session(observers=[found]) as session:
        (count,) = (each.act for each in session.seams.scalar_read.subscribers)
        exec(LOOP.replace("BODY", BODIES["after the step"][0]), {})
        assert found.gathered("torch")[NAME] == {"reads": 0}  # nothing was on a GPU

        class OnGpu:
            is_cuda = True

        assert count(OnGpu(), lambda: 7) == 7
        found.watch(False)
        assert not session.seams.scalar_read.subscribers
    assert found.gathered("torch")[NAME] == {"reads": 1}
