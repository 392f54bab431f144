"""`overdrive tune --ranks`: trials of several processes, their proof, and the run under the plan that comes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from overdrive.core.contract import Contract
from overdrive.core.exchanged import of_kind
from overdrive.core.facts import Facts
from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.proof.prover import Prover
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.trials.untimed import UntimedRunner
from overdrive.tuner.strategies.ranks import sizes_up_to
from tests.conftest import Run
from tests.ranks.comparing import difference

Write = Callable[[str], Path]

# Takes 2 ms a sample on whichever core, so that two ranks take half of it on a machine of one core too.
SLOW = """
import sys
from time import sleep
import torch

class Slow(torch.nn.Linear):
    def forward(self, x):
        sleep(len(x) * 2e-3)
        return super().forward(x)

torch.manual_seed(0)
model = torch.nn.Sequential(Slow(6, 8), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.utils.data.TensorDataset(torch.randn(100, 6), torch.randint(3, (100,)))
for epoch in range(int(sys.argv[1])):
    for x, y in torch.utils.data.DataLoader(samples, batch_size=24, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), sys.argv[1:], flush=True)
"""
ON_TWO = ("data_parallel", {"ranks": 2})
BESIDE = (("fused_optimizer", {}), ("sample_cache", {}), ("deferred_scalars", {}))
PLAN = """
overdrive = 1
program = "train.py"
contract = "rounding"

[[technique]]
name = "fused_optimizer"
contract = "rounding"

[[technique]]
name = "sample_cache"
contract = "exact"

[[technique]]
name = "data_parallel"
contract = "rounding"
settings = { ranks = 2 }
"""


def test_sizes_double_up_to_all_places() -> None:
    assert [sizes_up_to(places) for places in (1, 2, 4, 6, 8)] == [[], [2], [2, 4], [2, 4, 6], [2, 4, 8]]


@pytest.mark.parametrize("words", [["--ranks", "1"], ["--ranks", "many"]])
def test_bad_input_is_one_sentence(words: list[str], script: Write, overdrive: Run) -> None:
    told = overdrive("tune", *words, "train.py", cwd=script("").parent)
    assert told.returncode == 2 and "neither auto nor a number of processes" in told.stderr


def test_a_plan_says_how_many_ranks_run(script: Write, warm_python: Run, overdrive: Run) -> None:
    path = script(SLOW)
    path.with_name("train.overdrive.toml").write_text(PLAN)
    words = ("1", "--ranks", "3")  # the script's own
    one = warm_python("train.py", *words, cwd=path.parent)
    many = overdrive("run", "train.py", *words, cwd=path.parent)
    assert many.returncode == 0 and not difference(one.stdout, many.stdout, 1e-4), many.stderr
    assert "train.overdrive.toml (fused_optimizer, sample_cache, data_parallel)" in many.stderr


def test_a_run_that_survives_takes_ranks_alone_of_such_a_plan(script: Write, warm_python: Run, overdrive: Run) -> None:
    path = script(SLOW)
    path.with_name("train.overdrive.toml").write_text(PLAN)
    one = warm_python("train.py", "1", cwd=path.parent)
    many = overdrive("run", "--survive=here", "train.py", "1", cwd=path.parent)
    assert many.returncode == 0 and not difference(one.stdout, many.stdout, 1e-4), many.stderr
    assert "left out fused_optimizer: beside ranks no run was gone on with under it" in many.stderr
    assert "(data_parallel)" in many.stderr


@pytest.mark.cluster
def test_a_trial_of_two_ranks_steps_and_is_proved(
    script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(SLOW)
    monkeypatch.chdir(path.parent)
    program = Program("train.py", ("9",))
    plain, on_two = TrialSpec(program), TrialSpec(program, (ON_TWO,))
    with TrialPool() as pool:
        trial = Trial(pool, on_two)
        try:
            assert trial.group.size == 2 and trial.first_step().step == 1
            assert trial.run(3).step == 4 and not trial.left_out
            facts = trial.facts()
        finally:
            trial.stop()
        with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
            prover = Prover(UntimedRunner(pool), TuneCheckpoint(ledger, program, "test"), facts)
            check = prover.rounding(plain, on_two)
            beside = prover.rounding(plain, TrialSpec(program, (*BESIDE, ON_TWO)))
    assert check.level is Contract.ROUNDING, check.sentence
    assert beside.level is Contract.ROUNDING, beside.sentence
    assert isinstance(facts, Facts) and facts.framework == "torch"


@pytest.mark.cluster
def test_a_trial_tells_what_its_ranks_exchange_and_the_memory_of_the_largest(
    script: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 computes for longer, and holds more: rank 0 waits for it."""
    apart = "from overdrive.ranks.rank import current\nrank = current().rank\nheld = b'x' * (rank * 200_000_000)\n"
    path = script(apart + SLOW.replace("sleep(len(x) * 2e-3)", "sleep(0.2 * rank)"))
    monkeypatch.chdir(path.parent)
    with TrialPool() as pool:
        trial = Trial(pool, TrialSpec(Program("train.py", ("50",)), (ON_TWO,)))
        try:
            trial.first_step()
            trial.run(4)
            block = trial.run(5)
        finally:
            trial.stop()
    exchanged = block.exchanged
    assert exchanged is not None and 0.1 < exchanged.seconds / block.seconds < 0.6  # most of one's, none of the other's
    kinds = {operation for operation, _ in map(of_kind, exchanged.counts)}
    assert kinds == {"all_gather", "all_reduce"}, block
    assert block.peak_memory > 350_000_000


@pytest.mark.cluster
def test_one_rank_alone_divides_its_calls_and_waits_for_nobody(script: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(SLOW)
    monkeypatch.chdir(path.parent)
    with TrialPool() as pool:
        trial = Trial(pool, replace(TrialSpec(Program("train.py", ("50",)), (ON_TWO,)), alone=True))
        try:
            assert trial.group.size == 1
            trial.first_step()
            trial.run(9)
            block = trial.run(5)
            assert not trial.left_out
        finally:
            trial.stop()
    exchanged = block.exchanged
    assert exchanged is not None and exchanged.seconds < block.seconds / 2
    kinds = {operation for operation, _ in map(of_kind, exchanged.counts)}
    assert "all_reduce" in kinds, block  # of gradients: none are summed of calls that are made whole


@pytest.mark.cluster
def test_ranks_that_pay_come_into_a_plan_and_ranks_that_do_not_are_told(
    script: Write, python: Run, overdrive: Run
) -> None:
    path = script(SLOW.replace("2e-3", "5e-3"))  # that it pays is to be clear on a busy machine
    few = ("--techniques", "fused_optimizer,sample_cache", "--budget", "4m")
    assert overdrive("doctor", "--pool", "--quick", "--json", "pool.json", cwd=path.parent).returncode < 2
    beside = ("--pool", "pool.json", "--json", "result.json")
    told = overdrive("tune", "--ranks", "2", *beside, *few, "train.py", "400", cwd=path.parent, timeout=600)
    plan = path.with_name("train.overdrive.toml").read_text()
    assert told.returncode == 0 and "settings = { ranks = 2 }" in plan, told.stdout + told.stderr
    assert re.search(r"2 ranks.* make [12]\.\d\dx", told.stdout.replace("\n", " ")), told.stdout
    one, two = json.loads(path.with_name("result.json").read_text())["scaling"]
    assert two["ranks"] == 2 and two["samples_per_s"] > one["samples_per_s"] and two["peak_memory"]
    assert 0 < two["communication"] < 1 and 0 < two["by_doctor"] < 1 and two["efficiency"], two
    assert two["weak"] or two["why_not_weak"], two
    assert "Strong scaling" in path.with_name("train.overdrive.html").read_text()
    quick = path.with_name("quick.py")
    quick.write_text(SLOW.replace("sleep(len(x) * 2e-3)", "pass"))
    words = ("--techniques", "fused_optimizer", "--budget", "3m")
    told = overdrive("tune", "--ranks", "2", *words, "quick.py", "9000", cwd=path.parent, timeout=400)
    assert "The plan is for one process: no number of ranks was seen to be faster." in told.stdout.replace("\n", " ")
    held = "This machine is busy: others held the cores" in told.stdout  # as other tests do: it cannot tell then
    assert re.search(r"data_parallel +(slower: 0\.\d+x \[" + "|inconclusive: others held" * held + ")", told.stdout)
