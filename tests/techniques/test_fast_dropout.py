"""`fast_dropout`: torch's own draws in every bit, and its generator as torch leaves it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.kernels import build
from overdrive.kernels.dropout import operator
from overdrive.kernels.dropout.operator import Dropout, arguments
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session

NAME = "fast_dropout"
# Of 0.15 and 0.45 the quotient of doubles is another float than that of floats.
RATES = (*(each / 100 for each in range(1, 100)), 1 / 3, 1e-9, 1 - 1e-9)
F = nn.functional
pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler here")


@pytest.fixture(scope="module")
def kernel() -> Dropout:
    made = Dropout(build.Building("dropout/dropout.c"))
    if made.differs(torch.dropout):
        pytest.skip("torch draws by MKL here")
    return made


def train(techniques: list[str], drop: Callable[[Any], Any], dtype: torch.dtype = torch.float32) -> Any:
    """Losses, parameters, and the next number that is drawn; and why techniques were left out."""
    torch.manual_seed(0)
    x, y = torch.randn(16, 30, dtype=dtype), torch.randint(5, (16,))
    with Session([(name, {}) for name in techniques]) as session:
        model = nn.ModuleList([nn.Linear(30, 40), nn.Linear(40, 5)]).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(model[1](drop(model[0](x))), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item().hex())
        found.append(torch.randn(3).tolist())
    return found, [each.detach().numpy().tobytes() for each in model.parameters()], session.seams.left_out


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    plain = Dropout.__call__
    monkeypatch.setattr(Dropout, "__call__", lambda self, name, x, p: calls.append(name) or plain(self, name, x, p))
    monkeypatch.setattr(operator, "LEAST", 1)
    return calls


@pytest.mark.parametrize("inplace", [False, True])
def test_training_is_the_same_in_every_bit(inplace: bool, kernel: Dropout, monkeypatch: pytest.MonkeyPatch) -> None:
    drop = nn.Dropout(0.3, inplace=inplace)
    plain = train([], drop)
    calls = counted(monkeypatch)
    ours = train([NAME], drop)
    assert not ours[2] and calls.count("dropout_" if inplace else "dropout") >= 5
    assert plain[:2] == ours[:2]


def test_any_place_of_the_generator_and_any_size(kernel: Dropout) -> None:
    generator = torch.default_generator
    for seed in range(400):
        count, p = (seed * 37) % 2500 + 1, RATES[seed % len(RATES)]
        torch.manual_seed(seed)
        torch.rand(seed % 5 * 311 + seed % 2)
        if seed % 3:
            torch.randn(1)  # half of a pair of normal numbers is left over
        before, found = generator.get_state(), []
        for way in (lambda x, p: torch.dropout(x, p, True), lambda x, p: kernel("dropout", x, p)):
            generator.set_state(before)
            x = torch.linspace(-1, 1, count)
            x[0] = float("inf")
            found.append((way(x, p).view(torch.int32), generator.get_state(), torch.randn(3), torch.rand(3)))
        same = [torch.equal(one, other) for one, other in zip(*found, strict=True)]
        assert all(same), (seed, count, p, same)


def test_it_is_an_operator_like_torchs(kernel: Dropout) -> None:
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")  # the fourth compares two draws
    told = torch.library.opcheck(torch.ops.overdrive.dropout_noise.default, (torch.randn(7, 5), 0.4), test_utils=tests)
    assert set(told.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("drop", "dtype"),
    [
        (nn.Dropout(0.3), torch.float64),
        (nn.Dropout(0.0), torch.float32),
        (nn.Dropout(1.0), torch.float32),
        (nn.Dropout(0.3).eval(), torch.float32),
        (nn.AlphaDropout(0.3), torch.float32),
        (lambda x: F.dropout(x.t(), 0.3).t(), torch.float32),
        (lambda x: torch.jit.trace(F.dropout, x, check_trace=False)(x), torch.float32),
        (lambda x: torch.func.vmap(F.dropout, randomness="different")(x), torch.float32),
    ],
)
def test_other_calls_are_torchs(drop: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train([], drop, dtype)
    calls = counted(monkeypatch)
    ours = train([NAME], drop, dtype)
    assert not calls and not ours[2]
    assert plain[:2] == ours[:2]


def test_a_stream_that_is_not_torchs_is_left_out(kernel: Dropout, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU of Intel's, where torch draws by MKL."""
    drop = nn.Dropout(0.3)
    plain = train([], drop)
    call = Dropout.__call__
    monkeypatch.setattr(operator, "LEAST", 1)
    monkeypatch.setattr(Dropout, "__call__", lambda self, name, x, p: call(self, name, x, p).flip(0))
    ours = train([NAME], drop)
    assert "torch draws otherwise" in ours[2][NAME]
    assert plain[:2] == ours[:2]


def test_where_another_thread_draws_torch_does(kernel: Dropout, monkeypatch: pytest.MonkeyPatch) -> None:
    drop = nn.Dropout(0.3)
    plain = train([], drop)
    monkeypatch.setattr(operator, "LEAST", 1)
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda one, other: False if one.numel() == 5056 else equal(one, other))
    monkeypatch.setattr(Dropout, "differs", lambda self, plain: None)
    ours = train([NAME], drop)
    assert "another thread draws" in ours[2][NAME]
    assert plain[:2] == ours[:2]


def test_where_there_is_no_memory_for_the_product_torch_draws_the_same(kernel: Dropout) -> None:
    class Full(torch.Tensor):
        def __mul__(self, other: Any) -> Any:
            raise MemoryError

    torch.manual_seed(0)
    before = torch.default_generator.get_state()
    with pytest.raises(MemoryError):
        kernel("dropout", torch.ones(50).as_subclass(Full), 0.3)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_gradients_can_be_differentiated_again_and_graphs_are_torchs(kernel: Dropout) -> None:
    found = []
    for way in (lambda x: torch.dropout(x, 0.3, True), lambda x: kernel("dropout", x, 0.3)):
        torch.manual_seed(1)
        x = torch.linspace(-1, 1, 40).requires_grad_()
        y = way(x)
        assert type(y.grad_fn).__name__ == "MulBackward0"
        (slope,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        slope.square().sum().backward()
        found.append(x.grad)
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize(("drop", "drops"), [(nn.Dropout(0.2), True), (nn.Dropout(0.2).eval(), False), (F.relu, False)])
def test_it_is_not_tried_where_the_program_drops_little(drop: Any, drops: bool) -> None:
    technique = catalogue()[NAME]
    told: list[Callable[[], Any]] = []
    with Session(observers=[lambda seams: told.append(technique.observe(seams))]):
        drop(torch.randn(64, 128))
        nn.Dropout(0.2)(torch.randn(63, 128))
    assert told[0]() == {"drops": drops}
    reason = technique.applies(Facts(own={NAME: told[0]()}))
    assert drops or (reason and "no dropout" in reason)


def test_arguments_of_calls() -> None:
    x = torch.ones(64, 128)
    assert arguments((x, 0.5, True), {}) and arguments((x,), {"p": 0.5, "train": True})
    for call in ((x, 0.5, False), (x, 1, True), (x[:, ::2], 0.5, True), (x.double(), 0.5, True), (x[0], 0.5, True)):
        assert arguments(call, {}) is None


@pytest.mark.fault(27)
def test_without_a_compiler_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert catalogue()[NAME].applies(Facts()) == "there is no C compiler on this machine"
    assert "no C compiler" in train([NAME], nn.Dropout(0.3))[2][NAME]


def test_a_process_that_is_forked_meanwhile_builds_by_itself() -> None:
    building = build.Building("dropout/dropout.c")
    child = os.fork()
    if not child:
        with suppress(BaseException):
            building.load()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert building.load()  # what it has made is still there
