"""`fast_batch_norm`: torch's own results, statistics and gradients in every bit, and torch itself for all else."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.kernels import build
from overdrive.kernels.batch_norm import operator
from overdrive.kernels.batch_norm.operator import BatchNorm, arguments, fits
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session

NAME = "fast_batch_norm"
F = nn.functional
pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler here")


@pytest.fixture(scope="module")
def kernel() -> BatchNorm:
    return BatchNorm(build.Building("batch_norm/batch_norm.c"))


class Net(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 20, 3), nn.Conv2d(20, 9, 3), nn.Linear(9, 5)
        self.one, self.two = norm(20), norm(9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.one(self.a(x)))
        return self.c(F.relu(self.two(self.b(x))).mean((2, 3)))  # type: ignore[no-any-return]


def train(techniques: list[str], make: Callable[[], nn.Module] = Net, change: Any = lambda model, x: (model, x)) -> Any:
    """Losses, and the parameters and buffers after some steps; and why techniques were left out."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 3, 37, 35), torch.randint(5, (6,))
    with Session([(name, {}) for name in techniques]) as session:
        model, x = change(make(), x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[: 4 + step % 3]), y[: 4 + step % 3].to(x.device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        model.eval()
        with torch.no_grad():
            losses.append(model(x).sum().item().hex())
    return losses, [each.numpy().tobytes() for each in model.state_dict().values()], session.seams.left_out


def counted(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    calls: list[torch.Size] = []
    plain = BatchNorm.__call__
    monkeypatch.setattr(
        BatchNorm, "__call__", lambda self, given: calls.append(given["input"].shape) or plain(self, given)
    )
    monkeypatch.setattr(operator, "LEAST", 1)
    return calls


def test_training_is_the_same_in_every_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train([])
    calls = counted(monkeypatch)
    ours = train([NAME])
    assert not ours[2] and len(calls) > 2 * 4
    assert plain[:2] == ours[:2]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_all_kinds_of_calls_come_to_the_same_bits(threads: int, kernel: BatchNorm) -> None:
    generator = torch.Generator().manual_seed(threads)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert kernel.differs(torch.batch_norm) is None
        for shape in ((2, 1, 5, 5), (5, 8, 4, 4), (3, 30, 23, 29), (1, 9, 16), (7, 3, 3, 4, 5), (2, 64, 50, 50)):
            for scale, middle in ((1.0, 0.0), (1e-3, 1e4), (1e15, 0.0), (0.0, 3.0)):
                x = torch.randn(shape, generator=generator) * scale + middle
                channels = [torch.randn(shape[1], generator=generator) for _ in range(4)]
                for given in (
                    arguments((x, *channels, True, 0.1, 1e-5, True), {}),
                    arguments((x, None, None, None, None, True, 0.25, 0.0, True), {}),
                    arguments((x, channels[0], None, *channels[:2], True, 0.0, 1e-3), {"cudnn_enabled": False}),
                ):
                    assert fits(given, 1) or shape[1] == 1
                    assert kernel.differs_on(torch.batch_norm, given) is None
    finally:
        torch.set_num_threads(before)


def test_numbers_that_are_none_come_out_as_torchs(kernel: BatchNorm) -> None:
    x = torch.randn(2, 9, 6, 7, generator=torch.Generator().manual_seed(0))
    x[0, 1, 2, 3], x[1, 2, 0, 0], x[1, 3] = float("nan"), float("inf"), float("-inf")
    assert kernel.differs_on(torch.batch_norm, arguments((x, None, None, None, None, True, 0.1, 1e-5), {})) is None


def test_it_is_an_operator_like_torchs(kernel: BatchNorm) -> None:
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((2, 9, 6, 7), (9,), (9,)))
    for given in ((x, weight, bias, 1e-5), (x, None, None, 1e-3), (x.detach(), weight, bias, 1e-5)):
        told = torch.library.opcheck(torch.ops.overdrive.batch_norm.default, given)
        assert set(told.values()) == {"SUCCESS"}


def test_gradients_can_be_differentiated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for techniques in ([], [(NAME, {})]):
        if techniques:
            calls = counted(monkeypatch)
        with Session(techniques) as session:
            torch.manual_seed(0)
            model = Net()
            x = torch.randn(4, 3, 17, 16, requires_grad=True)
            (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            slope.square().sum().backward()
            assert not session.seams.left_out
        found.append([each.grad for each in (x, *model.parameters())])
    assert calls
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True) if one is not None)


OTHERS: dict[str, Any] = {
    "channels last": lambda model, x: (
        model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    ),
    "in 64 bits": lambda model, x: (model.double(), x.double()),
    "evaluated": lambda model, x: (model.apply(lambda each: setattr(each, "forward", each.eval().forward)), x),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OTHERS))
def test_other_calls_are_torchs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train([], change=OTHERS[name])
    calls = counted(monkeypatch)
    ours = train([NAME], change=OTHERS[name])
    assert not calls and "no batch normalisation of" in ours[2][NAME]
    assert plain[:2] == ours[:2]


def test_small_ones_are_torchs() -> None:
    for shape, done in (((8, 8, 32, 32), True), ((8, 8, 32, 31), False), ((64, 1024, 1, 1), False)):
        assert fits(arguments((torch.ones(shape), None, None, None, None, True, 0.1, 1e-5), {})) is done


def test_a_kernel_that_differs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train([])
    call = BatchNorm.__call__
    monkeypatch.setattr(operator, "LEAST", 1)
    monkeypatch.setattr(BatchNorm, "__call__", lambda self, given: call(self, given) + (given["input"] == 0))
    ours = train([NAME])
    assert "differs from torch's" in ours[2][NAME]
    assert plain[:2] == ours[:2]


def test_what_is_saved_and_copied_knows_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    with Session([(NAME, {})]):
        model = Net()
        x = torch.randn(4, 3, 17, 16)
        for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            each(x).sum().backward()
        found = model.state_dict()
    assert calls
    assert list(found) == list(Net().state_dict())


def test_statistics_are_written_as_torch_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that went up would be taken for a change by a backward pass that torch's own call is a part of."""
    calls = counted(monkeypatch)
    with Session([(NAME, {})]):
        norm = nn.BatchNorm2d(4)
        assert norm.running_mean is not None
        before = norm.running_mean._version
        loss = norm(torch.randn(2, 4, 2, 2, requires_grad=True)).sum()  # torch's own: the planes are small
        loss = loss + norm(torch.randn(2, 4, 8, 8)).sum()
        loss.backward()
        assert calls and norm.running_mean._version == before


@pytest.mark.parametrize(
    "norm, trained", [(nn.BatchNorm2d(64), True), (nn.BatchNorm2d(64).eval(), False), (nn.Identity(), False)]
)
def test_it_is_not_tried_where_the_program_trains_no_such_norm(norm: nn.Module, trained: bool) -> None:
    technique = catalogue()[NAME]
    told: list[Callable[[], Any]] = []
    with Session(observers=[lambda seams: told.append(technique.observe(seams))]):
        norm(torch.randn(2, 64, 32, 32))
    assert told[0]() == {"norms": trained}
    reason = technique.applies(Facts(own={NAME: told[0]()}))
    assert trained or (reason and "no batch normalisation" in reason)


@pytest.mark.fault(27)
def test_without_a_compiler_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert catalogue()[NAME].applies(Facts()) == "there is no C compiler on this machine"
    assert "no C compiler" in train([NAME])[2][NAME]
