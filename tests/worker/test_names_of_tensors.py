"""What the tensors of a state are called: the same in every run, whatever else lives in the process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from overdrive.worker.torch import state  # noqa: E402


def names(monkeypatch: pytest.MonkeyPatch, *modules: torch.nn.Module) -> list[str]:
    monkeypatch.setattr(state, "live_modules", lambda: list(modules))
    return list(state.Subject.found([]).tensors)


def test_a_module_that_a_compiler_keeps_leaves_the_models_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPT-2 under `compile` was refused: "gradient of score.weight is missing"."""
    model = torch.nn.Linear(2, 1)
    graph = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    graph.register_buffer("_tensor_constant0", torch.zeros(0))
    assert names(monkeypatch, model) == ["weight", "bias"]
    assert {"weight", "bias"} < set(names(monkeypatch, graph, model))
    assert {"weight", "bias"} < set(names(monkeypatch, torch.nn.CrossEntropyLoss(torch.ones(2)), model))


def test_several_models_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    both = names(monkeypatch, torch.nn.Linear(2, 1), torch.nn.Linear(3, 1))
    assert both == ["Linear 1: weight", "Linear 1: bias", "Linear 2: weight", "Linear 2: bias"]


def test_one_without_parameters_has_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.nn.Module()
    table.register_buffer("means", torch.ones(2))
    assert names(monkeypatch, table) == ["means"]
