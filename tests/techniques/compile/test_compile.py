"""`compile`: what it compiles, and that it leaves itself out, in mid-run, wherever compiling does not go well."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core import progress as samples
from overdrive.core.facts import Facts
from overdrive.seams.torch.blocks import repeated_blocks
from overdrive.seams.torch.compiler import _uncompiled
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    """Not before: other tests fork this process, which is a half larger with it."""
    for name in ("torch._functorch.config", "torch._inductor.compile_fx", "torch._inductor.config"):
        importlib.import_module(name)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.relu(self.inner(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """The graphs that reach the compiler's last stage (forward or backward), which here makes no kernels:
    seconds instead of half a minute."""
    seen: list[bool] = []

    def inner(graph: Any, inputs: Any, **kwargs: Any) -> Callable[..., Any]:
        seen.append(bool(kwargs.get("is_backward")))
        return _uncompiled(graph)

    torch._dynamo.reset()
    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx_inner", inner)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield seen
    torch._dynamo.reset()


def train(
    settings: dict[str, Any] | None,
    make: Callable[[], nn.Module] = Net,
    sizes: tuple[int, ...] = (4,) * 4,
    each_step: Callable[[nn.Module], None] | None = None,
) -> tuple[list[float], dict[str, str], nn.Module]:
    torch.manual_seed(0)
    losses = []
    with Session([("compile", settings)] if settings is not None else []) as session:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for size in sizes:
            loss = model(torch.randn(size, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if each_step:
                each_step(model)
    return losses, session.seams.left_out, model


def compiled(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if module._compiled_call_impl is not None]


def test_the_blocks_of_a_model_are_compiled_once_for_all(graphs: list[bool]) -> None:
    seen: list[Any] = []
    losses, left_out, model = train({"regional": True}, each_step=lambda model: seen.append(compiled(model)))
    # Two kinds of block: the first one, whose input needs no gradient, and all the others.
    assert not left_out and graphs.count(False) == 2 < len(model.blocks)  # type: ignore[arg-type]
    assert seen[-1] == list(model.blocks)  # type: ignore[arg-type]
    assert not compiled(model)
    assert losses == pytest.approx(train(None)[0], rel=1e-6)


@pytest.mark.parametrize("regional", [False, True])
def test_a_hook_that_is_put_on_a_module_late_is_called(graphs: list[bool], regional: bool) -> None:
    """PyTorch's compiler by itself goes on without it."""

    def hook(model: nn.Module) -> None:
        model.blocks[1].inner.register_forward_hook(lambda module, given, made: made * 2)  # type: ignore[index, union-attr]

    settings = {"regional": regional}
    losses, left_out, _ = train(settings, each_step=hook)
    assert not left_out and graphs
    assert losses == pytest.approx(train(None, each_step=hook)[0], rel=1e-5)
    assert losses != pytest.approx(train(None)[0], rel=1e-5)


def test_a_model_without_repeated_blocks_has_no_regions() -> None:
    _, left_out, model = train({"regional": True}, make=lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)))
    assert left_out == {"compile": "the model repeats no block"}
    assert not compiled(model)


def test_repeated_blocks_are_the_outermost_of_one_class() -> None:
    model = nn.Sequential(nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block()), nn.Linear(8, 1))
    assert repeated_blocks(model) == [model[0], model[1]]
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
    assert len(repeated_blocks(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 3))) == 3


def test_shapes_as_variables_are_compiled_once(graphs: list[bool]) -> None:
    sizes = (4, 5, 6, 7)
    assert not train({"dynamic": "true"}, sizes=sizes)[1]
    assert graphs.count(False) == 1
    graphs.clear()
    torch._dynamo.reset()
    assert not train({"dynamic": "false"}, sizes=sizes)[1]
    assert graphs.count(False) == 4


def test_a_recompile_storm_takes_it_out_in_mid_run(graphs: list[bool], caplog: pytest.LogCaptureFixture) -> None:
    alive: list[int] = []
    sizes = tuple(range(3, 15))
    losses, left_out, _ = train(
        {"dynamic": "false"}, sizes=sizes, each_step=lambda model: alive.append(len(compiled(model)))
    )
    limit = torch._dynamo.config.recompile_limit
    assert f"more than {limit} times" in left_out["compile"] and "size mismatch" in left_out["compile"]
    assert alive == [1] * limit + [0] * (len(sizes) - limit)
    assert losses == pytest.approx(train(None, sizes=sizes)[0], rel=1e-6)
    assert "recompile_limit" not in caplog.text  # it is our reason, not noise on the program's screen


def test_new_shapes_late_in_a_run_are_no_storm(graphs: list[bool]) -> None:
    _, left_out, _ = train({}, sizes=(4,) * 30 + (6,) * 3 + (9, 11, 13))
    assert not left_out and graphs.count(False) <= 3


@pytest.mark.parametrize("backward", [False, True])
def test_a_compiler_that_crashes_is_left_out_with_the_reason(
    backward: bool, graphs: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    working = torch._inductor.compile_fx.compile_fx_inner

    def broken(graph: Any, inputs: Any, **kwargs: Any) -> Any:
        if bool(kwargs.get("is_backward")) == backward:
            raise RuntimeError("g++: internal error\nmany lines")
        return working(graph, inputs, **kwargs)

    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx_inner", broken)
    losses, left_out, model = train({})
    assert left_out == {"compile": "the compiler failed (RuntimeError: g++: internal error)"}
    assert not compiled(model)
    assert losses == pytest.approx(train(None)[0], rel=1e-6)


def test_a_compiler_that_fails_in_evaluation_only_is_left_out(
    graphs: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    working = torch._inductor.compile_fx.compile_fx_inner
    evaluated: list[float] = []

    def broken(graph: Any, inputs: Any, **kwargs: Any) -> Any:
        if kwargs.get("is_inference"):
            raise RuntimeError("not for inference")
        return working(graph, inputs, **kwargs)

    def evaluate(model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            evaluated.append(model(torch.ones(4, 8)).sum().item())
        model.train()

    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx_inner", broken)
    losses, left_out, _ = train({}, each_step=evaluate)
    assert "not for inference" in left_out["compile"]
    plain, evaluated[:] = list(evaluated), []
    assert losses == pytest.approx(train(None, each_step=evaluate)[0], rel=1e-6)
    assert plain == pytest.approx(evaluated, rel=1e-6)


def test_where_no_compiler_for_kernels_is_installed_the_program_runs_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # else kernels of an earlier test may be found there
    torch._dynamo.reset()
    nowhere = torch._inductor.config.patch({"cpp.cxx": ("/nowhere/g++",)})
    with nowhere, torch._functorch.config.patch(enable_autograd_cache=False):
        losses, left_out, model = train({})
    torch._dynamo.reset()
    assert "the compiler failed" in left_out["compile"]
    assert not compiled(model)
    assert losses == pytest.approx(train(None)[0], rel=1e-6)


def test_a_model_that_falls_wholly_back_says_so(graphs: list[bool]) -> None:
    class Closed(Net):
        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    losses, left_out, _ = train({}, make=Closed)
    assert "nothing in the model" in left_out["compile"] and not graphs
    assert losses == train(None, make=Closed)[0]


def penalised(model: nn.Module) -> torch.Tensor:
    """A step of a program that differentiates gradients, as a penalty on them does."""
    x = torch.randn(4, 8, requires_grad=True)
    y = model(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    return gradient.square().mean()


def test_a_program_that_differentiates_gradients_is_not_compiled() -> None:
    technique = catalogue()["compile"]
    for program, found in ((penalised, True), (lambda model: model(torch.randn(4, 8)).mean(), False)):
        told: list[Callable[[], Any]] = []
        with Session([], [lambda seams, told=told: told.append(technique.observe(seams))]):
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            program(model).backward()
            optimizer.step()
        facts = Facts(modules=True, own={"compile": told[0]()})
        assert ("create_graph" in str(technique.applies(facts))) is found


def test_a_plan_that_compiles_it_all_the_same_names_the_cause(graphs: list[bool]) -> None:
    with Session([("compile", {"mode": "default"})]) as session, pytest.raises(RuntimeError):
        model = Net()
        torch.optim.SGD(model.parameters(), lr=0.01)
        penalised(model).backward()
    assert "create_graph" in session.seams.left_out["compile"] and graphs


def test_a_compiler_at_work_shows_signs_of_life(graphs: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[int] = []
    monkeypatch.setattr(samples, "on_progress", lambda done, total: beats.append(done))
    train({})
    assert len(beats) >= 2  # at the beginning of each graph


def test_a_compiler_that_stands_still_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from overdrive.seams.torch import compiler

    beats: list[int] = []
    work = [0]
    monkeypatch.setattr(compiler, "_PULSE_SECONDS", 0.01)
    monkeypatch.setattr(compiler, "_work_done", lambda: (work[0], 0, 0))
    monkeypatch.setattr(samples, "on_progress", lambda done, total: beats.append(done))
    with compiler.sign_of_life():
        time.sleep(0.1)
        assert len(beats) == 1
        for _ in range(3):
            work[0] += 1
            time.sleep(0.1)
    assert 3 <= len(beats) <= 4


def test_nothing_of_it_stays(graphs: list[bool]) -> None:
    import logging

    log = logging.getLogger("torch._dynamo.convert_frame")
    before = torch._dynamo.config.suppress_errors, list(log.filters)
    train({})
    assert (torch._dynamo.config.suppress_errors, list(log.filters)) == before


def test_results_that_graphs_would_overwrite_are_copied(graphs: list[bool]) -> None:
    kept: list[torch.Tensor] = []
    losses, left_out, _ = train(
        {"mode": "reduce-overhead"},
        each_step=lambda model: kept.append(next(model.parameters()).grad),  # type: ignore[arg-type]
    )
    assert not left_out
    assert len({gradient.data_ptr() for gradient in kept}) == len(kept)
    assert losses == pytest.approx(train(None)[0], rel=1e-6)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_accumulate_leave_the_graphs_memory_in_time(
    monkeypatch: pytest.MonkeyPatch, to_none: bool
) -> None:
    """A stand-in for CUDA graphs' memory: what a backward pass hands out, the next pass of any kind overwrites."""
    pool: list[torch.Tensor] = []

    def inner(graph: Any, inputs: Any, **kwargs: Any) -> Callable[..., Any]:
        plain, backward = _uncompiled(graph), bool(kwargs.get("is_backward"))

        def run(given: Any) -> Any:
            made = plain(given)
            for each in pool:
                each.fill_(float("nan"))
            if not backward:
                return made
            pool[:] = [each.clone() if isinstance(each, torch.Tensor) else torch.empty(0) for each in made]
            return [
                torch.empty(0).set_(kept.untyped_storage(), 0, kept.shape, kept.stride())
                if isinstance(each, torch.Tensor)
                else each
                for each, kept in zip(made, pool, strict=True)
            ]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def accumulated(settings: dict[str, Any] | None) -> tuple[list[torch.Tensor], dict[str, str]]:
        torch.manual_seed(0)
        with Session([("compile", settings)] if settings is not None else []) as session:
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(4):
                optimizer.zero_grad(set_to_none=to_none)
                for _ in range(3):
                    model(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()
        return [each.detach() for each in model.parameters()], session.seams.left_out

    torch._dynamo.reset()
    expected, _ = accumulated(None)
    monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx_inner", inner)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        found, left_out = accumulated({"mode": "reduce-overhead"})
    torch._dynamo.reset()
    assert not left_out
    assert all(torch.allclose(one, other, rtol=1e-4) for one, other in zip(found, expected, strict=True))


def test_the_most_promising_comes_first() -> None:
    technique = catalogue()["compile"]
    assert technique.candidates(Facts()) == [{"mode": "default"}]
    assert {"mode": "default", "regional": True} in technique.candidates(Facts(own={"compile": {"repeated_blocks": 6}}))
    small, large = Facts(device="cuda", step_seconds=0.002), Facts(device="cuda", step_seconds=0.5)
    assert technique.candidates(small)[0] == {"mode": "reduce-overhead"}
    assert technique.candidates(large)[0] == {"mode": "default"}
