"""`fast_max_pool` on windows of 3 x 3: torch's own results and gradients in every bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.kernels import build
from overdrive.kernels.max_pool import windows
from overdrive.kernels.max_pool.windows import Windows, arguments
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session

NAME = "fast_max_pool"
F = nn.functional
pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler here")


@pytest.fixture(scope="module")
def kernel() -> Windows:
    return Windows(build.Building("max_pool/windows.c"))


def train(techniques: list[str], pool: Callable[[Any], Any], change: Any = lambda each: each) -> Any:
    """Losses, and the parameters of some steps; and why techniques were left out."""
    torch.manual_seed(0)
    x, y = torch.randn(4, 3, 41, 38), torch.randint(5, (4,))
    with Session([(name, {}) for name in techniques]) as session:
        first, last = change(nn.Conv2d(3, 9, 3)), nn.Linear(9, 5)
        parameters = [*first.parameters(), *last.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(last(pool(F.relu(first(change(x)))).mean((2, 3)).float()), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
    return losses, [each.detach().numpy().tobytes() for each in parameters], session.seams.left_out


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    plain = Windows.__call__
    monkeypatch.setattr(Windows, "__call__", lambda self, *given: calls.append(given[1:]) or plain(self, *given))
    monkeypatch.setattr(windows, "LEAST", 1)
    return calls


@pytest.mark.parametrize(
    ("pool", "call"),
    [
        (nn.MaxPool2d(3, 2, 1), (2, 1, False)),
        (nn.MaxPool2d(3, 2, ceil_mode=True), (2, 0, True)),
        (lambda x: F.max_pool2d(x, (3, 3), stride=[1], padding=(1, 1)), (1, 1, False)),
    ],
)
def test_training_is_the_same_in_every_bit(pool: Any, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train([], pool)
    calls = counted(monkeypatch)
    ours = train([NAME], pool)
    assert not ours[2] and calls.count(call) >= 4
    assert plain[:2] == ours[:2]


@pytest.mark.parametrize("threads", [1, 2])
def test_all_sizes_come_to_the_same_bits(threads: int, kernel: Windows) -> None:
    assert kernel.differs(torch.max_pool2d) is None
    generator = torch.Generator().manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for height, width in [*((n, n + 1) for n in range(1, 21)), (112, 112), (5, 300), (130, 3)]:
            channels = 3 if height < 100 else 33  # enough for a second thread
            for x in (
                torch.randn(2, channels, height, width, generator=generator),
                torch.randint(-1, 2, (2, channels, height, width), generator=generator).float(),  # many equal ones
            ):
                for step, pad, up in (
                    (1, 0, False),
                    (1, 1, True),
                    (2, 0, False),
                    (2, 0, True),
                    (2, 1, False),
                    (2, 1, True),
                ):
                    if min(height, width) + 2 * pad >= 3:
                        assert kernel.differs_on(torch.max_pool2d, x, step, pad, up) is None
    finally:
        torch.set_num_threads(before)


def test_it_is_an_operator_like_torchs(kernel: Windows) -> None:
    for given in ((2, 1, False), (1, 0, False), (2, 0, True)):
        for x in (torch.randn(2, 3, 9, 8, requires_grad=True), torch.randn(2, 3, 9, 8)):
            told = torch.library.opcheck(torch.ops.overdrive.max_pool.default, (x, *given))
            assert set(told.values()) == {"SUCCESS"}


def test_gradients_can_be_differentiated_again(kernel: Windows) -> None:
    found = []
    for way in (lambda x: kernel(x, 2, 1, False), lambda x: F.max_pool2d(x, 3, 2, 1)):
        x = torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
        (slope,) = torch.autograd.grad(way(x).pow(3).sum(), x, create_graph=True)
        slope.square().sum().backward()
        found.append(x.grad)
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize(
    ("x", "call"),
    [
        (torch.ones(2, 3, 41, 41, dtype=torch.float64), {"kernel_size": 3, "stride": 2}),
        (torch.ones(2, 3, 41, 41).contiguous(memory_format=torch.channels_last), {"kernel_size": 3, "stride": 2}),
        (torch.ones(2, 3, 82, 41)[:, :, ::2], {"kernel_size": 3, "stride": 2}),
        (torch.ones(3, 41, 41), {"kernel_size": 3, "stride": 2}),
        (torch.ones(2, 3, 41, 41), {"kernel_size": 3}),
        (torch.ones(2, 3, 41, 41), {"kernel_size": (3, 2), "stride": 2}),
        (torch.ones(2, 3, 41, 41), {"kernel_size": 3, "stride": (2, 1)}),
        (torch.ones(2, 3, 41, 41), {"kernel_size": 3, "stride": 2, "dilation": 2}),
        (torch.ones(2, 3, 15, 15), {"kernel_size": 3, "stride": 2}),
    ],
)
def test_other_calls_are_torchs(x: torch.Tensor, call: dict[str, Any]) -> None:
    assert arguments((x,), call) is None
    assert arguments((torch.ones(2, 3, 41, 41), 3, 2), {}) is not None


def test_a_kernel_that_differs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = nn.MaxPool2d(3, 2, 1)
    plain = train([], pool)
    call = Windows.__call__
    monkeypatch.setattr(windows, "LEAST", 1)
    monkeypatch.setattr(Windows, "__call__", lambda self, x, *given: call(self, x + (x == 2.5), *given))
    ours = train([NAME], pool)
    assert "its result differs from torch's" in ours[2][NAME]
    assert plain[:2] == ours[:2]


def test_it_is_tried_where_the_program_has_such_a_pool() -> None:
    told: list[Callable[[], Any]] = []
    with Session(observers=[lambda seams: told.append(catalogue()[NAME].observe(seams))]):
        nn.MaxPool2d(3, 2, 1)(torch.randn(2, 64, 32, 32))
    assert told[0]() == {"pools": True}
