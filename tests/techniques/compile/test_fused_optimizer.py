"""`fused_optimizer` in both implementations; what is common to all is in tests/techniques/test_techniques.py."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session
from tests.fakes.cuda import fake_cuda

WITHOUT_FUSED = ("RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop")


def train(settings: dict[str, Any] | None, name: str, seen: list[Any] | None = None) -> list[float]:
    torch.manual_seed(0)
    losses = []
    with Session([("fused_optimizer", settings)] if settings else []) as session:
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
        if seen is not None:  # within the step, after our own switching
            optimizer.register_step_pre_hook(lambda each, *_: seen.append(each.param_groups[0]["foreach"]))
        for _ in range(8):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert optimizer.param_groups[0]["foreach"] is None
    assert not session.seams.left_out
    return losses


@pytest.mark.parametrize("name", WITHOUT_FUSED)
def test_foreach_steps_alike_where_there_is_no_fused(name: str) -> None:
    seen: list[Any] = []
    assert train({"implementation": "foreach"}, name, seen) == pytest.approx(train(None, name), rel=1e-4)
    assert seen == [True] * 8


@pytest.mark.parametrize("name", WITHOUT_FUSED)
def test_there_is_no_fused_for_these(name: str) -> None:
    seen: list[Any] = []
    assert train({"implementation": "fused"}, name, seen) == train(None, name)
    assert seen == [None] * 8


def test_a_checkpoint_after_a_step_that_was_broken_off_is_the_programs_own() -> None:
    model = nn.Linear(8, 4)

    def broken() -> None:
        raise KeyboardInterrupt

    with Session([("fused_optimizer", {"implementation": "fused"})]) as session:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(broken)
        assert optimizer.param_groups[0]["fused"]
        assert optimizer.state_dict()["param_groups"][0]["fused"] is None
    assert not session.seams.left_out and not optimizer._optimizer_state_dict_pre_hooks


def test_candidates_are_what_there_is() -> None:
    technique = catalogue()["fused_optimizer"]

    def tried(*optimizers: str, device: str = "cpu") -> list[Any]:
        own = {"fused_optimizer": {"optimizers": [*optimizers]}}
        facts = Facts(device=device, own=own, shares={"optimizer": 0.3})
        if technique.applies(facts):
            return []
        return [each["implementation"] for each in technique.candidates(facts)]

    assert tried("Adam") == ["fused"]
    assert tried("RMSprop") == ["foreach"]
    assert tried("SGD", "NAdam") == ["fused", "foreach"]
    assert tried("SGD", "NAdam", device="cuda") == ["fused"]
    assert tried("RMSprop", device="cuda") == [] == tried("LBFGS")


def test_a_choice_of_the_programs_own_stands() -> None:
    with Session([("fused_optimizer", {})]) as session:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        seen: list[Any] = []
        optimizer.register_step_pre_hook(lambda each, *_: seen.append(each.param_groups[0]["fused"]))
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert seen == [None] and not session.seams.left_out


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_gradients_that_become_sparse_are_stepped_as_the_program_wrote_it(kind: Any, implementation: str) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        words, head = nn.Embedding(10, 4), nn.Linear(4, 2)
        optimizer, found = kind([*words.parameters(), *head.parameters()], lr=0.1), []
        for step in range(6):
            words.sparse = step >= 3
            loss = head(words(torch.arange(5))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    plain = losses()
    with Session([("fused_optimizer", {"implementation": implementation})]) as session:
        assert losses() == pytest.approx(plain, rel=1e-5)
    assert not session.seams.left_out


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_a_checkpoint_loaded_on_a_gpu_is_gone_on_with(kind: Any) -> None:
    """Its counts of steps lie on the CPU, where fused kernels of a GPU refuse them. On the stand-in for one."""

    def resumed() -> tuple[list[Any], Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = kind(model.parameters(), lr=0.01)
        _step(model, optimizer, torch.ones(3, 4))
        saved = optimizer.state_dict()
        model.cuda()
        optimizer = kind(model.parameters(), lr=0.01)
        optimizer.load_state_dict(saved)
        for _ in range(2):
            _step(model, optimizer, torch.ones(3, 4).cuda())
        return [each.detach().cpu() for each in model.parameters()], optimizer

    with fake_cuda() as gpu:
        plain, _ = resumed()
        with Session([("fused_optimizer", {})]) as session:
            found, optimizer = resumed()
            counts = [each["step"] for each in optimizer.state.values()]
            assert counts and all(map(gpu.has, counts))
        assert not session.seams.left_out
        counts = [each["step"] for each in optimizer.state.values()]
        assert [float(each) for each in counts] == [3, 3] and not any(map(gpu.has, counts))
        for ours, theirs in zip(found, plain, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad])
def test_a_checkpoint_from_a_gpu_has_its_counts_where_the_program_has_them(kind: Any) -> None:
    """On the stand-in for one: a plain run that went on from it would read each count from the GPU in each step."""
    with fake_cuda() as gpu, Session([("fused_optimizer", {})]) as session:
        model = nn.Linear(4, 2).cuda()
        optimizer = kind(model.parameters(), lr=0.01)
        for _ in range(2):
            _step(model, optimizer, torch.ones(3, 4).cuda())
        there = [each["step"] for each in optimizer.state.values()]
        assert all(map(gpu.has, there))
        for saved in (optimizer.state_dict()["state"], copy.deepcopy(optimizer).state):
            counts = [each["step"] for each in saved.values()]
            assert [float(each) for each in counts] == [2, 2] and not any(map(gpu.has, counts))
        _step(model, optimizer, torch.ones(3, 4).cuda())
        assert all(one is other["step"] for one, other in zip(there, optimizer.state.values(), strict=True))
        assert [float(each.cpu()) for each in there] == [3, 3]
    assert not session.seams.left_out


def test_counts_of_64_bits_are_32_where_fused_kernels_read_them() -> None:
    """On the stand-in for a GPU: with float64 as the default type PyTorch counts in that, and its kernels do not."""
    torch.set_default_dtype(torch.float64)
    try:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        _step(model, optimizer, torch.ones(3, 4))
        saved = optimizer.state_dict()
        with fake_cuda() as gpu, Session([("fused_optimizer", {})]):
            model.cuda()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            optimizer.load_state_dict(saved)
            _step(model, optimizer, torch.ones(3, 4).cuda())
            counts = [each["step"] for each in optimizer.state.values()]
            assert all(map(gpu.has, counts)) and {each.dtype for each in counts} == {torch.float32}
        counts = [each["step"] for each in optimizer.state.values()]
        assert [float(each) for each in counts] == [2, 2] and {each.dtype for each in counts} == {torch.float64}
    finally:
        torch.set_default_dtype(torch.float32)


def _step(model: nn.Module, optimizer: Any, x: Any) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def _thawing(model: Any, step: int) -> None:
    model[0].requires_grad_(step >= 4)


def _every_other(model: Any, step: int) -> None:
    model[0].requires_grad_(step % 2 == 1)


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("before", [_thawing, _every_other])
def test_gradients_that_come_later_than_others_are_no_error(before: Any, closure: bool) -> None:
    """PyTorch's fused SGD takes momenta of all parameters of a group or of none."""
    seen: list[Any] = []

    def weights() -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer.register_step_pre_hook(lambda each, *_: seen.append(each.param_groups[0]["fused"]))
        for step in range(9):
            before(model, step)
            x = torch.randn(6, 8)

            def evaluate(x: Any = x) -> Any:
                model.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            if not closure:
                evaluate()
            optimizer.step(evaluate if closure else None)
        return [each.detach() for each in model.parameters()]

    plain = weights()
    seen.clear()
    with Session([("fused_optimizer", {})]) as session:
        assert_alike(weights(), plain)
    assert not session.seams.left_out and seen.count(True) >= 7


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_gradients_that_lie_otherwise_than_their_parameters_are_not_mixed_up(kind: Any) -> None:
    def weights() -> list[Any]:
        torch.manual_seed(0)
        parameter = nn.Parameter(torch.randn(4, 6))
        optimizer = kind([parameter], lr=0.1)
        for _ in range(3):
            parameter.grad = torch.randn(6, 4).t()
            optimizer.step()
        return [parameter.detach()]

    plain = weights()
    with Session([("fused_optimizer", {})]) as session:
        assert_alike(weights(), plain)
    assert not session.seams.left_out


def test_of_a_weight_that_is_cut_down_what_was_cut_off_is_not_written_to() -> None:
    def weights() -> list[Any]:
        torch.manual_seed(0)
        layer = nn.Linear(8, 4)
        whole = layer.weight.data
        layer.weight.data = whole[:, :5]
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            _step(layer, optimizer, torch.randn(3, 5))
        return [layer.weight.detach(), whole]

    plain = weights()
    with Session([("fused_optimizer", {})]) as session:
        assert_alike(weights(), plain)
    assert not session.seams.left_out


@pytest.mark.parametrize("plan", [("fused_optimizer",), ("channels_last", "fused_optimizer"), ("channels_last",)])
@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_run_without_a_plan_is_resumed_under_one(kind: Any, fused: Any, plan: tuple[str, ...]) -> None:
    """Its optimizer's state lies in another order than weights that have the channels innermost. With `fused`, by which
    the program chooses PyTorch's kernel itself, too."""
    seen: list[Any] = []

    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 2))
        more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = kind(model.parameters(), lr=0.01, fused=fused, **more)
        optimizer.register_step_pre_hook(lambda each, *_: seen.append(each.param_groups[0]["fused"]))
        return model, optimizer

    def steps(model: Any, optimizer: Any, count: int) -> None:
        torch.manual_seed(count)
        for _ in range(count):
            _step(model, optimizer, torch.randn(4, 3, 8, 8))

    model, optimizer = made()
    steps(model, optimizer, 5)
    saved = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), saved)

    def resumed() -> list[Any]:
        model, optimizer = made()
        saved.seek(0)
        states = torch.load(saved)
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        seen.clear()
        steps(model, optimizer, 3)
        return [each.detach() for each in model.parameters()]

    plain = resumed()
    with Session([(name, {}) for name in plan]) as session:
        assert_alike(resumed(), plain)
    assert not session.seams.left_out and seen == [fused or "fused_optimizer" in plan or None] * 3


def assert_alike(found: list[Any], plain: list[Any]) -> None:
    for ours, theirs in zip(found, plain, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
