"""What a step needs, counted: single operators, and a whole program in its trials."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Run
from tests.schemas import held
from tests.warm_trials import warm_trials

torch = pytest.importorskip("torch")
from overdrive.cli import requirements  # noqa: E402
from overdrive.core.json_data import from_json, to_json  # noqa: E402
from overdrive.core.program import Program  # noqa: E402
from overdrive.core.records import ExitReason, TrialOver  # noqa: E402
from overdrive.insight.requirements.counting import CannotCount, _why, count  # noqa: E402
from overdrive.seams.answering import AnsweringModel  # noqa: E402
from overdrive.trials import pool  # noqa: E402
from overdrive.worker.live_memory import LiveMemory  # noqa: E402
from overdrive.worker.needs import FIRST, make_observer  # noqa: E402
from overdrive.worker.operators import Call, Operators  # noqa: E402
from overdrive.worker.profiling.recorder import NotHere  # noqa: E402


def calls_of(act: Callable[[], object]) -> list[Call]:
    mode = Operators(LiveMemory("cpu"))
    with mode:
        act()
    return mode.calls


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (ExitReason("hang", "no step for 140 s"), "The program stopped making steps (no step for 140 s)."),
        (ExitReason("trains", "an optimizer stepped after 9 calls of the model"), "before it trains"),
    ],
)
def test_a_program_that_is_slow_or_evaluates_first_is_not_said_to_fail(reason: ExitReason, said: str) -> None:
    trial: Any = SimpleNamespace()
    assert said in _why(TrialOver(reason), trial) and "fails" not in _why(TrialOver(reason), trial)


def test_a_program_that_is_too_short_is_told_how_long_it_is_to_be() -> None:
    trial: Any = SimpleNamespace(spec=SimpleNamespace(clock="training"))
    over = TrialOver(ExitReason("ended", ""), trace=SimpleNamespace(steps=20))  # type: ignore[arg-type]
    said = "The program makes 20 training steps, and about 30 are needed: give it more by its own options or its data."
    assert _why(over, trial) == said


def test_of_a_program_that_fails_it_is_said_before_the_machine_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise CannotCount("The program fails by itself.")

    def measures(**_: Any) -> None:
        raise AssertionError("a minute is spent for nothing")

    monkeypatch.setattr(requirements, "count", fails)
    monkeypatch.setattr(requirements, "measured_limits", measures)
    with pytest.raises(CannotCount, match="fails by itself"):
        requirements.wanted(Program("train.py"))


class OfKeras:
    """An optimizer: it has no groups of parameters."""


@pytest.mark.parametrize("optimizer", [OfKeras(), AnsweringModel(lambda: None, lambda model: [], "keras")])
def test_a_program_of_keras_is_told_that_its_operators_are_not_counted(optimizer: Any) -> None:
    observer = make_observer()
    with pytest.raises(NotHere, match="this program is Keras's"):
        for _ in range(FIRST):
            observer.stepped(optimizer)


@pytest.mark.parametrize(
    ("act", "flops", "moved"),
    [
        (lambda a, b: a @ b, 2 * 8**3, 3 * 256),
        (lambda a, b: a + b, 0, 3 * 256),
        (lambda a, b: a.add_(b), 0, 3 * 256),
        (lambda a, b: a.copy_(b), 0, 2 * 256),
        (lambda a, b: a.zero_(), 0, 256),
        (lambda a, b: a[torch.tensor([0, 1])], 0, 2 * 64 + 16),
    ],
)
def test_an_operator_moves_what_it_reads_and_writes(act: Callable[..., object], flops: int, moved: int) -> None:
    a, b = torch.ones(8, 8), torch.ones(8, 8)
    (call,) = [each for each in calls_of(lambda: act(a, b)) if each.name not in ("lift_fresh", "detach_")][-1:]
    assert (call.flops, call.bytes) == (flops, moved)


def test_a_view_moves_nothing() -> None:
    assert calls_of(lambda: torch.ones(0) if torch.ones(0).numel() else None) == []
    a = torch.ones(8, 8)
    assert calls_of(lambda: a.t().view(64) if a.t().is_contiguous() else a.t()) == []


def test_fused_recurrent_layers_and_attention_are_counted() -> None:
    lstm = torch.nn.LSTM(16, 32)
    found = calls_of(lambda: lstm(torch.ones(5, 3, 16)))
    assert sum(each.flops for each in found) == 2 * 5 * 3 * (4 * 32 * 16 + 4 * 32 * 32)
    q = torch.ones(2, 4, 8, 16)
    found = calls_of(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    assert sum(each.flops for each in found) == 2 * (2 * 2 * 4 * 8 * 8 * 16)


def test_live_memory_falls_when_tensors_are_freed() -> None:
    memory = LiveMemory("cpu")
    with Operators(memory):
        a = torch.ones(1000)
        b = a * 2
        view = b[10:]
        del b
        assert memory.now["working"] == 8000, "a view keeps its tensor"
        del view
        assert memory.now["working"] == 4000
        memory.know(a, "gradients")
    assert (memory.now["working"], memory.now["gradients"]) == (0, 4000)
    assert sum(memory.peaks[False].values()) == 8000


PROGRAM = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
optimizer = torch.optim.Adam(model.parameters())
for step in range(40):
    x, y = torch.randn(64, 256), torch.randint(10, (64,))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LocalLauncher", warm_trials)


@pytest.mark.usefixtures("warm")
def test_the_parts_of_a_program_are_counted_and_its_peak_is_measured(script: Callable[..., Path]) -> None:
    needs = count(Program(str(script(PROGRAM))))
    weights = 4 * (256 * 1024 + 1024 + 1024 * 10 + 10)
    assert needs.memory["parameters"] == weights
    assert needs.memory["optimizer states"] == pytest.approx(2 * weights, rel=0.001)
    # the batch, ReLU's result (its input is free again), the logits' softmax; and a little for labels and loss
    assert needs.memory["activations"] == pytest.approx(4 * 64 * (256 + 1024 + 10), rel=0.01)
    products = 2 * 64 * (256 * 1024 + 1024 * 10)
    assert needs.flops == 2 * products + 2 * 64 * 1024 * 10, "no gradient of the first layer's input is computed"
    # In the step the logits and the batch are left, and Adam has two of the largest weight for a moment.
    assert needs.largest == 4 * 256 * 1024
    assert needs.step["workspace"] == pytest.approx(2 * needs.largest, rel=0.01)
    assert needs.step["activations"] == pytest.approx(4 * 64 * (256 + 2), rel=0.05)
    assert needs.samples == 64
    assert 0 < needs.step_seconds <= needs.usual_seconds
    assert needs.estimated_peak == pytest.approx(needs.measured_peak, rel=0.15)


ANSWERS = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).eval()
with torch.no_grad():
    for request in range(60):
        model(torch.randn(64, 256)).argmax(1)
"""


@pytest.mark.usefixtures("warm")
def test_of_a_program_that_only_calls_its_model_a_call_is_counted(
    script: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    needs = count(Program(str(script(ANSWERS))))
    assert needs.inference and needs.samples == 64
    assert needs.memory["parameters"] == 4 * (256 * 1024 + 1024 + 1024 * 10 + 10)
    assert needs.memory["gradients"] == needs.memory["optimizer states"] == needs.memory["activations"] == 0
    assert needs.tensors == sum(needs.memory.values()) and not sum(needs.step.values())
    # a request, the first layer's result and ReLU's; and a little for the last answer
    assert needs.memory["workspace"] == pytest.approx(4 * 64 * (256 + 1024 + 1024), rel=0.01)
    assert needs.flops == 2 * 64 * (256 * 1024 + 1024 * 10)

    from rich.console import Console

    from overdrive.cli.requirements import judged
    from overdrive.report.requirements import requirements
    from tests.machine.test_limits import limits_of, told

    result = judged(needs, limits_of(told()), "infer.py")
    held("requirements", json.loads(json.dumps(to_json(result))))
    requirements(result, Console(width=100))
    said = " ".join(capsys.readouterr().out.split())
    assert "A call of 64 samples takes" in said and "between two calls (measured)" in said
    assert "gradients" not in said and "optimizer" not in said and "step" not in said
    assert "call as it is" in said and "Calls on GPUs are a roofline" in said and "call, and" in said
    assert [each.threads for each in result.threads_seconds] and "it would take about" in said
    on_an_h100 = next(each for each in result.gpus if "H100" in each.name).as_it_is
    assert needs.data_seconds < on_an_h100.least <= on_an_h100.usual


@pytest.mark.usefixtures("warm")
def test_a_program_that_fails_or_does_not_train_is_one_sentence(script: Callable[..., Path]) -> None:
    with pytest.raises(CannotCount, match="no training step"):
        count(Program(str(script("print('hello')"))))
    with pytest.raises(CannotCount, match=r"fails by itself.*KeyError"):
        count(Program(str(script("import torch\n{}['x']"))))


def test_bad_words_are_told_before_anything_runs(overdrive: Run, tmp_path: Path) -> None:
    done = overdrive("doctor", "--for", "nowhere.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "overdrive: There is no script nowhere.py.\n")
    done = overdrive("doctor", "train.py", cwd=tmp_path)
    assert done.returncode == 2 and "--for" in done.stderr


def test_the_report_says_what_was_measured_and_what_was_not(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from overdrive.cli.requirements import judged
    from overdrive.core.requirements_result import Requirements
    from overdrive.report.requirements import requirements
    from tests.insight.requirements.test_step_time import needs, product
    from tests.machine.test_limits import limits_of, told

    step = needs(product(10**12, 10**9, seconds=2.0), measured_peak=2200, kept_peak=4000)
    result = judged(step, limits_of(told()), "train.py")
    written = json.loads(json.dumps(to_json(result)))
    held("requirements", written)
    assert from_json(Requirements, written) == result
    requirements(result, Console(width=100))
    text = capsys.readouterr().out
    flat = " ".join(text.split())
    assert "the estimate is 9% too low" in flat
    assert "No GPU was here to compare it with" in flat
    assert "With 4 threads it would take about 500 ms." in flat
    assert max(map(len, text.splitlines())) <= 100
    assert all(each.name in text for each in result.gpus)
