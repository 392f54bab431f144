"""One run in a trial: its metric on the way and at the end, at equal samples whatever the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overdrive.core.hyperparameters import ANNEALED
from overdrive.core.metric import Metric
from overdrive.core.program import Program
from overdrive.core.search_result import COSTS, are_alike
from overdrive.core.settings import Value
from overdrive.search.goal import Goal
from overdrive.search.listing import listing
from overdrive.search.runs import UNITS, Runs
from overdrive.trials.pool import TrialPool
from tests.conftest import IMPORT_TORCH
from tests.warm_trials import WarmPool

pytest.importorskip("torch")

PROGRAM = f"""
batch = 16
{IMPORT_TORCH}
from torch import nn
torch.manual_seed(0)
x = torch.randn(96, 5)
y = x.sum(1, keepdim=True)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch, shuffle=True)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(9):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("Test loss:", nn.functional.mse_loss(model(x), y).item())
"""


@pytest.fixture
def pool() -> Iterator[TrialPool]:
    with WarmPool() as made:
        yield made


def made(pool: TrialPool, path: Path, metric: Metric, target: float | None = None) -> Runs:
    program = Program(str(path))
    return Runs(pool, program, listing(pool, program), metric, Goal(False, target))


def test_a_run_is_followed_at_equal_samples_and_ended_where_it_is_told(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    runs = made(pool, script(PROGRAM), Metric("Test loss"))
    default = runs.run({}, 0, 60.0)
    assert default.state == "complete" and default.progress == 864 and default.metric is not None
    assert runs.output.count("Test loss") == 9
    runs.total = default.progress
    seen: list[tuple[int, float]] = []

    def watch(unit: int, score: float) -> bool:
        seen.append((unit, score))
        return unit >= UNITS // 2

    other = runs.run({"batch-size": 32}, 0, 60.0, watch)
    assert other.state == "pruned" and UNITS // 2 / UNITS * 864 <= other.progress <= 0.7 * 864
    assert [unit for unit, _ in seen] == sorted({unit for unit, _ in seen})
    assert seen[-1][1] < seen[0][1]  # it learns


def test_the_training_loss_is_seen_on_the_way(pool: TrialPool, script: Callable[[str], Path]) -> None:
    runs = made(pool, script(PROGRAM), Metric())
    runs.total = 864
    seen: list[float] = []
    run = runs.run({}, 0, 60.0, lambda unit, score: bool(seen.append(score)))
    assert len(seen) > 5 and seen[-1] < seen[0]
    assert run.metric is not None and run.metric < seen[0]


def test_another_seed_gives_another_result_and_the_same_seed_the_same(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    runs = made(pool, script(PROGRAM), Metric("Test loss"))
    first, again, other = (runs.run({}, seed, 60.0).metric for seed in (1, 1, 2))
    assert first == again != other


def test_a_target_is_reached_on_the_way(pool: TrialPool, script: Callable[[str], Path]) -> None:
    text = PROGRAM.replace("    print(", "    import time; time.sleep(0.3)\n    print(")
    run = made(pool, script(text), Metric("Test loss"), target=1.0).run({}, 0, 60.0)
    assert run.reached is not None and run.reached < run.seconds - 0.3


def test_with_a_target_a_run_is_over_as_it_is_there_or_too_late(pool: TrialPool, script: Callable[[str], Path]) -> None:
    text = PROGRAM.replace("    print(", "    import time; time.sleep(0.3)\n    print(")
    runs = made(pool, script(text), Metric("Test loss"), target=1.0)
    default = runs.run({}, 0, 60.0)
    assert default.progress == 864  # the first one tells how long the program is
    runs.total = default.progress
    there = runs.run({}, 0, 60.0)
    assert there.state == "complete" and there.reached is not None and there.progress < 864
    assert there.seconds < default.seconds
    seen: list[int] = []
    runs.length = 1e6  # seconds of the default run: by these its progress is counted
    runs.run({}, 0, 60.0, lambda unit, score: bool(seen.append(unit)))
    assert not seen
    slow = runs.run({"lr": 1e-5}, 0, there.reached, lambda unit, score: False)
    assert slow.state == "pruned" and not slow.why and slow.reached is None


def test_the_best_after_a_time_is_what_was_printed_by_then(pool: TrialPool, script: Callable[[str], Path]) -> None:
    waits = "    import time; time.sleep(600 if epoch == 4 else 0)\n    print("
    runs = made(pool, script(PROGRAM.replace("    print(", waits)), Metric("Test loss"))
    runs.goal = Goal(False, within=12.0)  # it is there in a second or three
    part = runs.run({}, 0, 60.0)
    assert part.state == "complete" and runs.output.count("Test loss") == 4
    assert part.metric == Metric("Test loss").value((), runs.output, None)
    runs.goal = Goal(False, within=0.05)  # no step by then
    assert runs.run({}, 0, 60.0).state == "failed"


def test_a_loss_after_a_time_is_of_the_steps_up_to_there(pool: TrialPool, script: Callable[[str], Path]) -> None:
    text = PROGRAM.replace("        loss =", "        import time; time.sleep(0.5)\n        loss =")
    runs = made(pool, script(text), Metric())
    runs.goal = Goal(False, within=8.0)
    part = runs.run({}, 0, 60.0)
    assert part.state == "complete" and part.metric is not None and 0 < part.progress < 864


def test_the_metric_by_a_time_is_known_of_runs_that_nobody_ends(pool: TrialPool, script: Callable[[str], Path]) -> None:
    text = PROGRAM.replace("    print(", "    import time; time.sleep(0.3)\n    print(")
    runs = made(pool, script(text), Metric("Test loss"))
    run = runs.run({}, 0, 60.0)
    assert run.metric_by(run.seconds) == run.metric and run.metric_by(0.0) is None
    half = run.metric_by((run.seen[0][0] + run.seen[-1][0]) / 2)
    assert half is not None and run.metric is not None and half > run.metric
    assert not runs.run({}, 0, 60.0, lambda unit, score: False).seen


def test_what_a_metric_is_set_against_is_seen(pool: TrialPool, script: Callable[[str], Path]) -> None:
    text = PROGRAM.replace("        loss =", "        import time; time.sleep(0.02)\n        loss =")
    runs = made(pool, script(text), Metric("Test loss"))
    seen = {}
    for against in COSTS:
        runs.goal = Goal(False, against=against)
        seen[against] = runs.run({}, 0, 60.0)
    assert seen["parameters"].cost == 6  # of a linear layer from five numbers to one
    assert 0.02 < (seen["step"].cost or 0) < 2.0
    assert (seen["memory"].cost or 0) > 1e7  # bytes
    assert seen["time"].cost == seen["time"].seconds
    runs.goal = Goal(False)
    assert runs.run({}, 0, 60.0).cost is None


@pytest.mark.fault(3)
def test_one_that_takes_too_long_has_failed(pool: TrialPool, script: Callable[[str], Path]) -> None:
    text = PROGRAM.replace("        loss =", "        import time; time.sleep(0.2)\n        loss =")
    run = made(pool, script(text), Metric("Test loss")).run({}, 0, 3.0)
    assert run.state == "failed" and "longer than" in run.why


@pytest.mark.fault(18)
def test_one_that_diverges_has_no_metric(pool: TrialPool, script: Callable[[str], Path]) -> None:
    run = made(pool, script(PROGRAM), Metric("Test loss")).run({"lr": 1e6}, 0, 60.0)
    assert run.state == "diverged" and run.metric is None


SCALED = PROGRAM.replace("lr=0.05", "lr=0.05 * batch / 16").replace(
    "    print(", "    print('rate', seen[-1]);  print("
)
SCALED = SCALED.replace(
    "for epoch",
    "seen = []\noptimizer.register_step_pre_hook(lambda o, a, k: seen.append(o.param_groups[0]['lr']))\nfor epoch",
    1,
)


def test_a_rate_at_a_seam_is_the_one_that_is_told_where_another_parameter_changes_the_programs_own(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    """The linear scaling rule."""
    runs = made(pool, script(SCALED), Metric("rate"))
    assert runs.run({}, 0, 60.0).metric == 0.05
    assert runs.run({"batch-size": 32}, 0, 60.0).metric == 0.1
    assert runs.run({"lr": 0.5, "batch-size": 32}, 0, 60.0).metric == 0.5
    assert runs.run({"lr": 0.5}, 0, 60.0).metric == 0.5


def test_a_run_whose_value_was_set_nowhere_has_failed(pool: TrialPool, script: Callable[[str], Path]) -> None:
    text = PROGRAM.replace("nn.Linear(5, 1)", "nn.Sequential(nn.Linear(5, 1), nn.Dropout(batch / 160))")
    runs = made(pool, script(text), Metric("Test loss"))
    assert runs.run({"dropout": 0.3}, 0, 60.0).state == "complete"
    run = runs.run({"dropout": 0.3, "batch-size": 32}, 0, 60.0)
    assert run.state == "failed" and "could not be set" in run.why and "dropout p 0.1" in run.why


def test_a_run_whose_value_the_program_sets_by_itself_has_failed(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    text = PROGRAM.replace("optimizer.step()", "optimizer.step(); optimizer.param_groups[0]['momentum'] = 0.0")
    runs = made(pool, script(text), Metric("Test loss"))
    assert runs.run({"lr": 0.02}, 0, 60.0).state == "complete"
    run = runs.run({"momentum": 0.5}, 0, 60.0)
    assert run.state == "failed" and "itself sets momentum" in run.why


def test_the_training_loss_is_that_before_a_scaler_of_losses(pool: TrialPool, script: Callable[[str], Path]) -> None:
    text = PROGRAM.replace("model = ", "scaler = torch.amp.GradScaler('cpu')\nmodel = ").replace(
        "loss.backward(); optimizer.step()", "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"
    )
    plain, scaled = (made(pool, script(each), Metric()) for each in (PROGRAM, text))
    seen: list[float] = []
    scaled.total = 864
    metric = scaled.run({}, 0, 60.0, lambda unit, score: bool(seen.append(score))).metric
    assert metric == pytest.approx(plain.run({}, 0, 60.0).metric, rel=0.01)
    assert max(seen) < 100


BY_HAND = f"""
lr = 0.05
{IMPORT_TORCH}
torch.manual_seed(0)
x = torch.randn(96, 5)
w = torch.zeros(5, 1, requires_grad=True)
for step in range(20):
    loss = (x @ w - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    with torch.no_grad():
        w -= lr * w.grad
        w.grad = None
print("Test loss:", loss.item())
"""
ANSWERS = f"""
temperature = 1.0
{IMPORT_TORCH}
torch.manual_seed(0)
model = torch.nn.Linear(5, 5)
def evaluate():
    return float(model(torch.ones(4, 5)).div(temperature).softmax(1).max())
for i in range(9):
    evaluate()
print("Test loss:", evaluate())
"""


def test_a_program_without_an_optimizer_is_seen_at_its_end(pool: TrialPool, script: Callable[[str], Path]) -> None:
    runs = made(pool, script(BY_HAND), Metric("Test loss"))
    default, other = (runs.run(values, 0, 60.0) for values in ({}, {"lr": 0.01}))
    assert (default.state, other.state) == ("complete", "complete")
    assert default.metric and other.metric and default.metric < other.metric
    runs = made(pool, script(ANSWERS), Metric("evaluate()"))
    default, other = (runs.run(values, 0, 60.0) for values in ({}, {"temperature": 2.0}))
    assert default.metric and other.metric and default.metric > other.metric


def test_a_program_may_call_its_model_for_long_before_it_trains(pool: TrialPool, script: Callable[[str], Path]) -> None:
    looks = (
        "import time\nfrom overdrive.worker import answering\nanswering._SECONDS = 0.1\nwith torch.no_grad():\n"
        "    for _ in range(20):\n        model(x); time.sleep(0.05)\noptimizer ="
    )
    runs = made(pool, script(PROGRAM.replace("optimizer =", looks)), Metric("Test loss"))
    assert {"lr", "batch-size"} <= {each.name for each in runs.found.parameters}
    assert runs.run({"lr": 0.01}, 0, 60.0).state == "complete"


def test_a_program_that_makes_no_step_for_long_is_no_hang(
    pool: TrialPool, script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overdrive.trials.trial._LEAST_PATIENCE", 1.0)
    run = made(pool, script(PROGRAM + "import time; time.sleep(3)\n"), Metric("Test loss")).run({}, 0, 60.0)
    assert run.state == "complete" and not run.why


@pytest.mark.parametrize("seeded", ["random.seed(0)", "numpy.random.seed(0)"])
def test_seeds_of_a_program_without_a_framework_are_changed(
    pool: TrialPool, script: Callable[[str], Path], seeded: str
) -> None:
    text = f"lr = 0.1\nimport random, numpy\n{seeded}\nprint('Test loss:', {seeded.replace('seed(0)', 'random()')})\n"
    runs = made(pool, script(text), Metric("Test loss"))
    own, first, again, other = (runs.run({}, seed, 60.0).metric for seed in (0, 1, 1, 2))
    assert first == again and len({own, first, other}) == 3


def test_learning_rates_fall_over_a_share_of_the_default_runs_samples(
    pool: TrialPool, script: Callable[[str], Path]
) -> None:
    text = PROGRAM.replace("        loss = ", "        before = model.bias.item()\n        loss = ")
    moved = "print('moved', abs((model.bias.item() - before) / model.bias.grad.item()))"
    text = text.replace("optimizer.step()", f"optimizer.step(); {moved}")
    runs = made(pool, script(text), Metric("Test loss"))
    runs.steps = runs.run({}, 0, 60.0).steps
    assert runs.steps == 54

    def rates(values: dict[str, Value]) -> list[float]:
        runs.run(values, 0, 60.0)
        return [float(line.split()[1]) for line in runs.output.splitlines() if line.startswith("moved")]

    assert rates({})[-1] == pytest.approx(0.05, rel=0.01)
    half = rates({"anneal": 0.5})
    assert half[0] == pytest.approx(0.05, rel=0.01) and half[13] == pytest.approx(0.05 * (1 - 0.99 * 13 / 27), rel=0.02)
    assert half[40] == pytest.approx(0.05 * ANNEALED, rel=0.05)
    larger = rates({"anneal": 1.0, "batch-size": 32, "lr": 0.1})  # half as many steps for as many samples
    assert len(larger) == 27 and larger[-1] == pytest.approx(0.1 * (1 - 0.99 * 26 / 27), rel=0.05)


DRAWS_ITSELF = (
    PROGRAM.replace("torch.manual_seed(0)", "own = torch.Generator().manual_seed(0)")
    .replace("torch.randn(96, 5)", "torch.randn(96, 5, generator=own)")
    .replace("shuffle=True)", "shuffle=True, generator=own)")
    .replace(
        "model = nn.Linear(5, 1)", "model = nn.Linear(5, 1); nn.init.zeros_(model.weight); nn.init.zeros_(model.bias)"
    )
)


@pytest.mark.parametrize(("program", "alike"), [(DRAWS_ITSELF, True), (PROGRAM, False)], ids=["its own", "seeded"])
def test_runs_that_seeds_change_nothing_about_are_alike_wherever_they_were_ended(
    pool: TrialPool, script: Callable[[str], Path], program: str, alike: bool
) -> None:
    """By all that was computed up to there: a loss that is read a moment later is another one."""
    runs = made(pool, script(program), Metric(), target=3.0)
    whole = runs.run({}, 1, 60.0)
    runs.total, runs.steps = whole.progress, whole.steps
    cut = runs.run({}, 2, 60.0)
    assert whole.steps == 54 and cut.reached is not None and cut.steps < 54 and cut.losses and whole.losses
    assert are_alike([whole, cut], cut=True) is alike
