"""`fast_max_pool`: torch's own results and gradients in every bit, with whatever else the pool is used with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from overdrive.core.facts import Facts
from overdrive.kernels import build
from overdrive.kernels.max_pool.operator import MaxPool, fits
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session

NAME = "fast_max_pool"
F = nn.functional
compiled = pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler here")


class Net(nn.Module):
    def __init__(self, pool: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 20, 3), nn.Linear(20 * 9, 5)
        self.pool = pool or nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.a(x)))
        x = self.pool(F.relu(self.b(x)))
        return self.c(x.flatten(1))  # type: ignore[no-any-return]


def train(techniques: list[str], make: Callable[[], Net] = Net, channels_last: bool = False, bf16: bool = False) -> Any:
    """Losses, and the parameters of some steps; and why techniques were left out."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 3, 17, 16), torch.randint(5, (6,))
    with Session([(name, {}) for name in techniques]) as session:
        model = make()
        if channels_last:
            model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for step in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(model(x[: 4 + step % 3]).float(), y[: 4 + step % 3])
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        model.eval()
        with torch.no_grad():
            losses.append(model(x).sum().item().hex())
    return losses, [each.detach().numpy().tobytes() for each in model.parameters()], session.seams.left_out


@compiled
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_training_is_the_same_in_every_bit(channels_last: bool, bf16: bool) -> None:
    how = {"channels_last": channels_last, "bf16": bf16}
    plain, ours = train([], **how), train([NAME], **how)
    assert not ours[2]
    assert plain[:2] == ours[:2]


@compiled
def test_the_kernel_is_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Size] = []
    plain = MaxPool.__call__
    monkeypatch.setattr(MaxPool, "__call__", lambda self, x: calls.append(x.shape) or plain(self, x))
    assert not train([NAME])[2]
    assert len(calls) > 2 * 5


@compiled
def test_values_that_may_come_out_in_another_way() -> None:
    pool = MaxPool(build.Building("max_pool/max_pool.c"))
    assert pool.differs(torch.max_pool2d) is None
    generator = torch.Generator().manual_seed(0)
    for sizes in ((3, 16, 8, 70), (2, 33, 9, 14), (5, 4, 2, 2), (64, 8, 34, 34)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randint(-2, 3, sizes, generator=generator).to(dtype)  # many equal ones
            for each in (x, x.contiguous(memory_format=torch.channels_last)):
                assert fits((each, 2), {})
                assert pool.differs_on(torch.max_pool2d, each) is None


def test_sizes_that_are_rounded_up_are_torchs() -> None:
    for height, done in ((8, True), (7, False)):
        assert fits((torch.ones(2, 3, height, 6), 2, [], 0, 1, True), {}) is done


@compiled
def test_a_kernel_that_differs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = MaxPool.choose
    monkeypatch.setattr(MaxPool, "choose", lambda self, x, form: choose(self, x + (x == 2.5), form))
    plain, ours = train([]), train([NAME])
    assert "its result differs from torch's" in ours[2][NAME]
    assert plain[:2] == ours[:2]


@compiled
def test_gradients_can_be_differentiated_again() -> None:
    found = []
    for techniques in ([], [(NAME, {})]):
        with Session(techniques) as session:
            torch.manual_seed(0)
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.randn(4, 3, 17, 16, requires_grad=True)
            (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            slope.square().sum().backward()
            optimizer.step()
            assert not session.seams.left_out
        found.append([each.grad for each in (x, *model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


OTHERS: dict[str, Callable[[Any], Any]] = {
    "overlapping": lambda x: F.max_pool2d(x, 2, 1)[:, :, ::2, ::2],
    "padded": lambda x: F.max_pool2d(x, 2, padding=1)[:, :, :-1, :-1],
    "with indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "in 64 bits": lambda x: F.max_pool2d(x.double(), 2).float(),
    "a slice": lambda x: F.max_pool2d(torch.cat([x, x], 3)[..., : x.shape[3]], 2),
}


@compiled
@pytest.mark.parametrize("name", list(OTHERS))
def test_other_pools_are_torchs(name: str) -> None:
    plain, ours = train([], lambda: Net(OTHERS[name])), train([NAME], lambda: Net(OTHERS[name]))
    assert "no max pool of 2 x 2" in ours[2][NAME]
    assert plain[:2] == ours[:2]


@compiled
def test_a_function_of_torchs_own_keeps_working() -> None:
    with Session([(NAME, {})]):
        x = torch.randn(2, 3, 8, 8)
        scripted = torch.jit.script(lambda_free)
        assert torch.equal(scripted(x), lambda_free(x))
        assert torch.equal(torch.func.vmap(lambda_free)(x[None])[0], lambda_free(x))
        traced = torch.jit.trace(nn.MaxPool2d(2), x)
        assert torch.equal(traced(x), lambda_free(x))
    assert torch.max_pool2d is torch._C._VariableFunctions.max_pool2d


@compiled
def test_a_model_that_is_compiled_in_pieces_stays_the_same() -> None:
    def make() -> Net:
        model = Net(lambda x: (torch._dynamo.graph_break(), F.max_pool2d(x, 2))[1])
        model.compile(backend="eager")
        return model

    plain, ours = train([], make), train([NAME], make)
    assert not [reason for reason in ours[2].values() if "differs" in reason]
    assert plain[:2] == ours[:2]


def lambda_free(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x, 2)


@pytest.mark.fault(27)
def test_without_a_compiler_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert catalogue()[NAME].applies(Facts()) == "there is no C compiler on this machine"
    assert "no C compiler" in train([NAME])[2][NAME]


@compiled
@pytest.mark.fault(27)
def test_a_compiler_that_fails_takes_the_technique_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cc: no such machine' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    plain, ours = train([]), train([NAME])
    assert "the C compiler failed (cc: no such machine)" in ours[2][NAME]
    assert plain[:2] == ours[:2]


@compiled
def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with Session([(NAME, {})]):
        pass  # no pool was called
    assert not train([NAME])[2]
    assert not list(tmp_path.iterdir())


@compiled
def test_one_openmp_runtime_serves_both() -> None:
    """In a process of its own: others may have loaded any."""
    code = (
        "import re, torch\n"
        "from overdrive.kernels.build import Building\n"
        "from overdrive.kernels.max_pool.operator import MaxPool\n"
        "torch.mm(torch.ones(300, 300), torch.ones(300, 300))\n"
        "MaxPool(Building('max_pool/max_pool.c'))(torch.randn(64, 16, 32, 32))\n"
        "print(len(set(re.findall(r'\\S*/lib(?:gomp|iomp5|omp)\\S*\\.so\\S*', open('/proc/self/maps').read()))))"
    )
    if shutil.which("gcc") is None or not sys.platform.startswith("linux"):
        pytest.skip("gcc's OpenMP is what is looked at")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() in ("0", "1")


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_a_backward_pass_that_the_kernel_fails_in_is_carried_out_by_torch(
    form: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overdrive.kernels.max_pool.operator import MaxPool

    def gradient() -> Any:
        x = torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(1)).contiguous(memory_format=form)
        pooled = torch.nn.functional.max_pool2d(x.requires_grad_(), 2)
        return torch.autograd.grad((pooled * torch.arange(pooled.numel()).view(pooled.shape)).sum(), x)[0]

    def broken(*_: Any) -> Any:
        raise MemoryError

    plain = gradient()
    with Session([("fast_max_pool", {})]) as session:
        assert torch.equal(gradient(), plain)
        monkeypatch.setattr(MaxPool, "spread", broken)
        found = gradient()
    assert torch.equal(found, plain) and found.stride() == plain.stride() and not session.seams.left_out


@pytest.mark.parametrize(
    "pool, pools", [(nn.MaxPool2d(2), True), (nn.MaxPool2d(3, 2, 1), False), (nn.Identity(), False)]
)
def test_it_is_not_tried_where_the_program_has_no_such_pool(pool: nn.Module, pools: bool) -> None:
    technique = catalogue()[NAME]
    told: list[Callable[[], Any]] = []
    with Session(observers=[lambda seams: told.append(technique.observe(seams))]):
        pool(torch.randn(2, 3, 8, 8))
    assert told[0]() == {"pools": pools}
    reason = technique.applies(Facts(own={NAME: told[0]()}))
    assert pools or (reason and "no max pool" in reason)


@compiled
def test_beside_checkpoints_its_comparison_with_torch_is_not_taken_for_the_models() -> None:
    """What a block kept in its first call was more than what it kept when it was called again, and the run ended."""
    kept: list[Any] = []
    with (
        Session([(NAME, {})]) as session,
        torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None),
    ):
        counts = []
        for _ in range(2):
            nn.MaxPool2d(2)(torch.randn(2, 3, 8, 8, requires_grad=True))
            counts.append(len(kept))
            kept.clear()
    assert counts == [1, 1] and not session.seams.left_out


@compiled
def test_a_mode_of_the_programs_is_told_of_the_models_functions_alone() -> None:
    class Names(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    def told() -> list[str]:
        names.clear()
        with Names():
            model(x)
        return names.copy()

    names: list[str] = []
    model, x = Net(), torch.randn(2, 3, 17, 16)
    plain = told()
    with Session([(NAME, {})]):
        model(x)
        assert told() == plain


@compiled
def test_a_block_that_ends_in_a_pool_may_be_checkpointed() -> None:
    """PyTorch ends the second call by an error as the last tensor is kept, in the midst of the pool."""
    conv, x = nn.Conv2d(3, 8, 3, padding=1), torch.randn(2, 3, 32, 32)
    found = []
    for techniques in ([], [(NAME, {})]):
        with Session(techniques) as session:
            conv.zero_grad()
            pooled = checkpoint(lambda x: F.max_pool2d(conv(x), 2), x, use_reentrant=False)
            pooled.square().sum().backward()
            assert conv.weight.grad is not None and not session.seams.left_out
            found.append(conv.weight.grad.clone())
    assert torch.equal(found[0], found[1])
