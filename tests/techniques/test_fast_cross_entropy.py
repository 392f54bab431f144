"""`fast_cross_entropy`: what it is for, what it leaves to torch, and where it leaves itself out.

Its numbers are asked for in `tests/kernels/cross_entropy`; here torch, or Triton's interpreter, is in its place.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from overdrive.core.facts import Facts
from overdrive.kernels.cross_entropy.comparison import CrossEntropy, strange, worse
from overdrive.kernels.cross_entropy.operator import MEAN, NONE, SUM, Call, arguments, slopes_plainly, tile
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.kernels import fast_cross_entropy
from overdrive.worker.session import Session
from tests.conftest import ROOT
from tests.fakes.cuda import fake_cuda
from tests.kernels.cross_entropy.cases import needs_interpreter, simple
from tests.kernels.cross_entropy.standin import by_torch, on_the_cpu

NAME = "fast_cross_entropy"
LEAST = {"least": 1}
X, Y = torch.randn(6, 10), torch.arange(6)
PLAIN = F.cross_entropy


def train(
    techniques: Any = (),
    loss_of: Callable[..., Any] = lambda x, y: F.cross_entropy(x, y),
    device: str = "cpu",
    steps: int = 5,
) -> tuple[list[str], dict[str, str]]:
    """Losses, and why techniques were left out."""
    torch.manual_seed(0)
    x, y = torch.randn(16, 30), torch.randint(10, (16,))
    with Session(techniques) as session:
        model = nn.Linear(30, 10).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found, session.seams.left_out


def called(x: Any = X, y: Any = Y, *more: Any, **named: Any) -> Call | None:
    return arguments((x, y, *more), named, 1)


def test_calls_that_are_done_here() -> None:
    assert called() == Call(X, Y, None, -100, MEAN, 0.0, False)
    weight = torch.rand(10)
    given = called(X, Y, weight, None, 3, None, "none", 0.1)
    assert given == Call(X, Y, weight, 3, NONE, 0.1, False)
    assert arguments((), {"input": X, "target": Y, "reduction": "sum"}, 60) == Call(X, Y, None, -100, SUM, 0.0, False)
    for kind in (torch.bfloat16, torch.float16):
        assert called(X.to(kind), weight=weight.to(kind))
    assert called(nn.Parameter(X)) and called(X.view(2, 3, 10).view(6, 10))


@pytest.mark.parametrize(
    "given",
    {
        "64 bits": called(X.double()),
        "images of classes": called(torch.randn(2, 3, 4), torch.zeros(2, 4, dtype=torch.int64)),
        "one sample": called(X[0], Y[0]),
        "no sample": called(X[:0], Y[:0]),
        "probabilities": called(X, X.softmax(1)),
        "bytes for classes": called(X, Y.byte()),
        "another number of targets": called(X, Y[:5]),
        "a part of a larger tensor": called(torch.randn(6, 12)[:, :10]),
        "rows of a larger tensor": called(torch.randn(7, 10)[1:]),
        "transposed": called(torch.randn(10, 6).t()),
        "a subclass": called(X.as_subclass(type("Own", (torch.Tensor,), {}))),
        "no tensor": called([[0.1, 0.2]], Y),
        "sparse": called(X.to_sparse()),
        "on another device": called(X.to("meta"), Y),
        "weights of another type": called(X, Y, torch.rand(10).double()),
        "weights of another length": called(X, Y, torch.rand(9)),
        "weights that are trained": called(X, Y, torch.rand(10, requires_grad=True)),
        "an old argument": called(X, Y, size_average=False),
        "another old argument": called(X, Y, reduce=False),
        "no reduction": called(X, Y, reduction="max"),
        "smoothing beyond 1": called(X, Y, label_smoothing=1.5),
        "smoothing by a tensor": called(X, Y, label_smoothing=torch.tensor(0.1)),
        "an ignored class by a tensor": called(X, Y, ignore_index=torch.tensor(1)),
        "what torch does not know": called(X, Y, other=1),
        "few logits": arguments((X, Y), {}, 61),
    }.items(),
    ids=lambda each: each[0],
)
def test_calls_that_are_torchs(given: Any) -> None:
    assert given[1] is None


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "loss_of",
    [
        lambda x, y: torch.jit.trace(lambda a: F.cross_entropy(a, y), x, check_trace=False)(x),
        lambda x, y: torch.func.vmap(lambda a, b: F.cross_entropy(a[None], b[None]))(x, y).mean(),
        lambda x, y: torch.func.functional_call(nn.Identity(), {}, (x,)).square().mean(),
        lambda x, y: F.nll_loss(x.log_softmax(1), y),
    ],
)
def test_what_is_traced_or_transformed_is_torchs(loss_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train((), loss_of)
    calls = by_torch(monkeypatch, 1.5)
    assert train([(NAME, LEAST)], loss_of) == (plain, {}) and not calls


def test_forward_differentiation_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = by_torch(monkeypatch)
    with Session([(NAME, LEAST)]), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        F.cross_entropy(dual, Y)
    assert not calls


def test_it_answers_and_can_be_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = F.cross_entropy(X, Y)
    calls = by_torch(monkeypatch, 1.5)
    with Session([(NAME, LEAST)]) as session:
        handle = session.handles[NAME]
        assert torch.equal(F.cross_entropy(X, Y), plain * 1.5) and torch.equal(nn.CrossEntropyLoss()(X, Y), plain * 1.5)
        handle.off()
        assert torch.equal(F.cross_entropy(X, Y), plain)
        handle.on()
        assert torch.equal(F.cross_entropy(X, Y), plain * 1.5)
    assert torch.equal(F.cross_entropy(X, Y), plain) and len(calls) == 3 and not session.seams.left_out


def test_only_what_was_compared_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 kinds; and none is compared while a graph is recorded, for that would read numbers."""
    calls = by_torch(monkeypatch)
    compared: list[Call] = []
    monkeypatch.setattr(CrossEntropy, "differs_on", lambda self, plain, call: compared.append(call))
    recording = [True]
    monkeypatch.setattr(fast_cross_entropy, "_recording", lambda: recording[0])
    with Session([(NAME, LEAST)]) as session:
        F.cross_entropy(X, Y)
        assert not calls and not compared
        recording[0] = False
        for columns in (*range(10, 40), 10, 39):
            F.cross_entropy(torch.randn(6, columns), Y)
            F.cross_entropy(torch.randn(7, columns), torch.arange(7))  # rows are like one another
        recording[0] = True
        F.cross_entropy(X, Y)
    assert [call.logits.shape[1] for call in compared] == list(range(10, 26))
    assert len(calls) == 2 * 16 + 2 + 1 and not session.seams.left_out


def test_where_it_is_worse_than_torch_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train()
    on_the_cpu(monkeypatch)
    off = lambda call: call.plainly(PLAIN, call.logits) * 1.001  # noqa: E731
    monkeypatch.setattr(CrossEntropy, "differs_on", lambda self, plain, call: worse(plain, call, off))
    losses, left_out = train([(NAME, LEAST)])
    assert losses == plain and "beyond rounding" in left_out[NAME]


def test_torch_itself_is_no_worse_than_torch() -> None:
    for reduction in (NONE, MEAN, SUM):
        call = simple(6, 10, torch.float32, reduction, 0.1)
        for given in (call, strange(call)):
            assert worse(F.cross_entropy, given, lambda call: call.plainly(F.cross_entropy, call.logits)) is None


def test_an_error_of_the_kernels_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train()
    by_torch(monkeypatch)

    def broken(self: Any, call: Call) -> Any:
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    monkeypatch.setattr(CrossEntropy, "__call__", broken)
    losses, left_out = train([(NAME, LEAST)])
    assert losses == plain and "out of memory" in left_out[NAME]


def test_without_triton_or_a_gpu_it_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train()
    monkeypatch.setattr(fast_cross_entropy, "find_spec", lambda name: None)
    losses, left_out = train([(NAME, LEAST)])
    assert losses == plain and "Triton" in left_out[NAME] and "not installed" in left_out[NAME]
    monkeypatch.setattr(fast_cross_entropy, "find_spec", lambda name: object())
    losses, left_out = train([(NAME, LEAST)])
    assert losses == plain and left_out[NAME].startswith("the model is on the cpu")


def test_on_the_stand_in_for_a_gpu_it_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Triton, too, for which there is no GPU."""
    monkeypatch.setattr(fast_cross_entropy, "find_spec", lambda name: object())
    with fake_cuda():
        plain, _ = train(device="cuda")
        losses, left_out = train([(NAME, LEAST)], device="cuda")
    assert losses == plain and NAME in left_out


def test_a_pytorch_for_other_gpus_and_an_old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "not one for GPUs by NVIDIA" in (fast_cross_entropy._not_here() or "")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for capability, fits in (((7, 5), False), ((8, 0), True), ((10, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        assert (fast_cross_entropy._not_here() is None) is fits


def test_it_is_not_tried_where_it_cannot_help(monkeypatch: pytest.MonkeyPatch) -> None:
    technique = catalogue()[NAME]
    monkeypatch.setattr(fast_cross_entropy, "find_spec", lambda name: object())
    there = Facts(device="cuda", compute_capability=9.0, own={NAME: {"computes": True}})
    assert technique.applies(there) is None
    assert "on the cpu" in (technique.applies(Facts()) or "")
    assert "8" in (technique.applies(Facts(device="cuda", compute_capability=7.5)) or "")
    assert "million" in (technique.applies(Facts(device="cuda", own={NAME: {"computes": False}})) or "")
    monkeypatch.setattr(fast_cross_entropy, "find_spec", lambda name: None)
    assert "Triton" in (technique.applies(there) or "")


@pytest.mark.parametrize(("rows", "seen"), [(1 << 17, True), (16, False)])
def test_what_it_watches_for(rows: int, seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_cross_entropy, "DEVICE", "cpu")
    told: list[Callable[[], Any]] = []
    with Session(observers=[lambda seams: told.append(catalogue()[NAME].observe(seams))]):
        F.cross_entropy(torch.zeros(rows, 8), torch.zeros(rows, dtype=torch.int64))
    assert told[0]() == {"computes": seen}


def test_the_catalogue_and_an_installed_technique_import_no_triton() -> None:
    code = (
        "import sys; from overdrive.techniques.catalogue import catalogue; catalogue()\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules\n"
        "from overdrive.kernels.cross_entropy import comparison\n"
        "assert 'overdrive.kernels.cross_entropy.kernel' not in sys.modules and comparison\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_torchs_operations_in_the_kernels_place(reduction: int, weighted: bool, smoothing: float) -> None:
    """What takes the place of the kernel of the backward pass."""
    call = simple(6, 10, reduction=reduction, smoothing=smoothing)
    call.target[2] = call.ignored
    weight = torch.rand(10) if weighted else None
    leaf = call.logits.requires_grad_()
    given = Call(leaf, call.target, weight, call.ignored, reduction, smoothing, False)
    loss = given.plainly(F.cross_entropy, leaf)
    outer = torch.linspace(1, 2, loss.numel()).view(loss.shape)
    counts = (call.target != call.ignored).float() if weight is None else weight[call.target.clamp(0)]
    count = counts[call.target != call.ignored].sum()
    found = slopes_plainly(outer, leaf.detach(), call.target, weight, count, call.ignored, reduction, smoothing)
    torch.testing.assert_close(found, torch.autograd.grad(loss, leaf, outer)[0])


@pytest.mark.parametrize("columns", [1, 2, 3, 10, 512, 513, 1000, 1024, 4096, 4097, 50257, 128256])
def test_tiles_are_powers_of_two_that_have_all_columns_or_the_most(columns: int) -> None:
    has = tile(columns)
    assert has.columns & (has.columns - 1) == 0 and has.rows & (has.rows - 1) == 0
    assert has.columns >= min(columns, 4096) and 512 <= max(has.rows * has.columns, 512) <= 4096


@needs_interpreter
def test_training_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = train()
    on_the_cpu(monkeypatch)
    losses, left_out = train([(NAME, LEAST)])
    assert not left_out and losses == pytest.approx(plain, rel=1e-5)
    calls: list[Call] = []
    ours = CrossEntropy.__call__
    monkeypatch.setattr(CrossEntropy, "__call__", lambda self, call: calls.append(call) or ours(self, call))
    train([(NAME, LEAST)])
    assert len(calls) == 5


def test_a_checkpointed_loss_is_made_again_as_far_as_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch ends that by an error, which is raised as the last tensor is kept: in the midst of the answer."""
    calls = by_torch(monkeypatch)
    x = X.clone().requires_grad_()
    expected = torch.autograd.grad(F.cross_entropy(x, Y), x)[0]
    with Session([(NAME, LEAST)]) as session:
        loss = checkpoint(lambda x: F.cross_entropy(x, Y), x, use_reentrant=False)
        assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
    assert not session.seams.left_out and len(calls) == 2


@needs_interpreter
def test_a_checkpointed_loss_and_saved_tensors_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_cpu(monkeypatch)
    x = X.clone().requires_grad_()
    expected = torch.autograd.grad(F.cross_entropy(x, Y), x)[0]
    with Session([(NAME, LEAST)]) as session, save_on_cpu():
        for loss in (F.cross_entropy(x, Y), checkpoint(F.cross_entropy, x, Y, use_reentrant=False)):
            torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)
    assert not session.seams.left_out
