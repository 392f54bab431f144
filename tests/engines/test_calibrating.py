"""An engine that is calibrated is built from the inputs of the first calls, which the model answers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from overdrive.engines.answering import EngineAnswers
from tests.engines.graph_runtime import Graphs


def narrow(by: float, calls: int = 20) -> tuple[Graphs, EngineAnswers, list[Any], list[Any]]:
    """What comes of these calls where an engine's results are off by so much of themselves."""
    torch.manual_seed(0)
    runtime = Graphs(lambda array: array * (1 + by), calibrating=6)
    runtime.narrow = True
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    answers, given = EngineAnswers(runtime, "narrow"), [torch.randn(5, 4) for _ in range(calls)]
    with torch.no_grad():
        found = [answers.called(model, model.forward, each) for each in given]
        expected = [model(each) for each in given]
    return runtime, answers, found, expected


def test_the_first_calls_are_the_models_and_their_inputs_the_examples() -> None:
    runtime, answers, found, expected = narrow(0.1)
    assert len(runtime.examples) == 6 and len(runtime.built) == 1
    assert all(torch.equal(one, other) for one, other in zip(found[:6], expected[:6], strict=True))
    assert answers.answered > 5, answers.told()
    other = [torch.equal(one, other) for one, other in zip(found, expected, strict=True)]
    assert not all(other), "what is answered in fewer bits is handed out"


def test_of_large_batches_fewer_calls_are_gathered() -> None:
    torch.manual_seed(0)
    runtime, model = Graphs(calibrating=16), nn.Linear(4, 3).eval()
    runtime.narrow = True
    answers = EngineAnswers(runtime, "narrow")
    with torch.no_grad():
        for _ in range(8):
            answers.called(model, model.forward, torch.randn(64, 4))
    assert len(runtime.examples) == 4 and len(runtime.built) == 1


def test_what_is_no_rounding_in_any_format_ends_the_engine() -> None:
    _, answers, found, expected = narrow(0.5)
    assert answers.answered == 0 and "an engine's answer was another one" in answers.left
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_what_was_gathered_of_another_model_is_forgotten() -> None:
    torch.manual_seed(0)
    runtime, model = Graphs(calibrating=6), nn.Linear(4, 3).eval()
    answers = EngineAnswers(runtime, "narrow")
    with torch.no_grad():
        for call in range(14):
            if call == 4:
                model.weight.mul_(2)
            answers.called(model, model.forward, torch.full((2, 4), float(call)))
    assert [float(each[0][0, 0]) for each in runtime.examples] == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
