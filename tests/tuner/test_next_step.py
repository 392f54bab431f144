"""What a tune says to do next: the cause, and a command that can be typed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.speed import Pair
from overdrive.trials.duel import Duel, Side
from overdrive.tuner.findings import Findings
from overdrive.tuner.next_step import next_step, too_short
from overdrive.tuner.outcomes import Rejected
from overdrive.tuner.reasons import ran_out_of_time
from overdrive.tuner.screened import Screened


def found(arguments: Sequence[str] = (), contract: Contract = Contract.ROUNDING, **control: object) -> Findings:
    program = Program("train.py", tuple(arguments))
    spec = TrialSpec(program)
    control = {"old_side": Side(seconds=1.0, steps=100, setups=(2.0,)), "total_steps": None, **control}
    duel = Duel(spec, spec, **control)  # type: ignore[arg-type]
    return Findings(program, contract, control=duel, budget=300.0, runs=10)


def untried(name: str) -> Rejected:
    return Rejected(name, {}, "not tried", kind="time")


def measured(name: str, speedup: float) -> Rejected:
    return Rejected(name, {}, "no gain", measured=Interval(0.99, speedup, 1.1))


def test_a_program_that_ends_too_soon_is_to_run_longer() -> None:
    told = next_step(found(["--lr", "1", "--epochs", "2"], total_steps=48))
    assert "48 steps" in told and "`overdrive tune train.py --lr 1 --epochs 10`" in told
    assert "5 times as many" in next_step(found(["--lr", "1"], total_steps=48))
    assert "ends after" not in next_step(found(total_steps=5000))


@pytest.mark.parametrize(
    ("given", "longer"),
    [
        ("--niters 20 --test_freq 5", "--niters 100 --test_freq 5"),
        ("--mini-batch-size=32 --num-batches=24", "--mini-batch-size=32 --num-batches=120"),
        ("--trainer.max_epochs=1 --start_epoch 0", "--trainer.max_epochs=5 --start_epoch 0"),
        ("--num-steps 128 --total-timesteps 512", "--num-steps 128 --total-timesteps 2560"),
        ("--num_train_epochs 1 --max_train_steps 9 --save_steps 3", "--num_train_epochs 1 --max_train_steps 45 --save"),
        ("--nepoch 3", "--nepoch 15"),
        ("-epochs 3", "-epochs 15"),
    ],
)
def test_the_option_that_makes_a_program_longer_is_known_by_its_usual_names(given: str, longer: str) -> None:
    assert f"`overdrive tune train.py {longer}" in next_step(found(given.split(), total_steps=48))


@pytest.mark.parametrize("given", ["--warmup_steps 5", "--epochs auto", "--epochs", "3 epochs", "--eval-steps=2"])
def test_what_does_not_say_how_long_a_program_is_stays(given: str) -> None:
    assert "by its own options" in next_step(found(given.split(), total_steps=48))


def test_where_no_time_was_left_a_longer_budget_is_named() -> None:
    slow = found(contract=Contract.STATISTICAL, old_side=Side(seconds=500.0, steps=100, setups=(12.0,)))
    slow.rejected = [untried("compile"), untried("threads")]
    told = next_step(slow)
    assert "a step takes 5 s" in told and "12 s for its first step" in told
    assert "`overdrive tune --contract statistical --budget 10m train.py`" in told


def test_what_the_tune_was_asked_for_stands_in_the_next_command() -> None:
    short = found()
    short.rejected = [untried("compile")]
    short.typed = ("--metric", "val acc", "-o", "fast.toml")
    assert "`overdrive tune --budget 10m --metric 'val acc' -o fast.toml train.py`" in next_step(short)


@pytest.mark.parametrize(("seconds", "typed"), [(240.0, "4m"), (90.0, "90s")])
def test_a_budget_that_was_typed_stands_in_the_command_for_a_longer_program(seconds: float, typed: str) -> None:
    short = replace(found(["--epochs", "2"], total_steps=48), budget=seconds, runs=None)
    assert f"`overdrive tune --budget {typed} train.py --epochs 10`" in next_step(short)


def test_the_budget_that_is_named_is_enough_for_what_was_seen_to_gain() -> None:
    """Of public siamese `autocast`, 1.26x, lacked 6 min of 5 for its proof, and 10 were named."""
    short = found(contract=Contract.STATISTICAL)
    gain = Interval(1.13, 1.26, 1.41)
    short.rejected = [replace(untried("autocast"), measured=gain, lacks=350.0), untried("compile")]
    assert "--budget 15m" in next_step(short)
    short.rejected = [replace(untried("autocast"), measured=Interval(0.9, 1.26, 1.7), lacks=350.0)]
    short.rejected += [replace(untried("compile"), lacks=100.0)]
    assert "--budget 10m" in next_step(short)


def test_the_budget_that_is_named_is_enough_for_one_of_those_that_had_no_time() -> None:
    """Of public ddpm, 17 s a step, none had time in 90 s, and 5 min were named, in which none had time either."""
    slow = found(old_side=Side(seconds=1700.0, steps=100, setups=(30.0,)))
    slow.rejected = [replace(untried("compile"), lacks=1000.0), replace(untried("threads"), lacks=800.0)]
    assert "--budget 20m" in next_step(slow)


def test_a_busy_machine_is_named_before_all_else() -> None:
    busy = found()
    busy.rejected, busy.screened = [untried("compile")], Screened(pairs=10, disturbed=8)
    assert "80%" in next_step(busy) and "quieter" in next_step(busy)
    assert "yours alone: `overdrive tune --budget " in next_step(busy)
    busy.screened = Screened(pairs=10, disturbed=2)
    assert "busy" not in next_step(busy)
    assert busy.control is not None
    busy.control.pairs = [Pair(0, 1, 1.0, 1.0, True, (0.5, 0.5), (1.0, 1.0))] * 3
    busy.control.pairs += [Pair(0, 1, 1.0, 1.0, True, (0.0, 0.0), (0.0, 0.0))]
    assert "busy" in next_step(busy)


@pytest.mark.parametrize(("best", "says"), [(1.01, "nothing to gain at rounding"), (1.2, "none was established")])
def test_where_all_was_measured_the_best_is_named(best: float, says: str) -> None:
    all_tried = found()
    all_tried.rejected = [measured("prefetch", 0.9), measured("threads", best)]
    told = next_step(all_tried)
    assert says in told and "2 candidates were measured" in told and f"threads, {best:.2f}x [0.99, 1.10]" in told


def test_where_nothing_could_be_seen_it_is_not_said_that_there_is_nothing() -> None:
    """Of a GPT's engine, 0.97x [0.30, 3.18] on a busy machine: "there is nothing to gain"."""
    unclear = found()
    unclear.rejected = [Rejected("openvino", {}, "inconclusive", measured=Interval(0.3, 0.97, 3.18))]
    assert "1 candidate was measured, and none was established" in next_step(unclear)
    assert "nothing to gain" not in next_step(unclear)


def test_a_busy_machine_is_named_whatever_the_processes_of_other_duels_are_used_to() -> None:
    shared = found()
    assert shared.control is not None
    waits = Pair(0, 1, 1.0, 1.0, True, (0.5, 0.5), (1.0, 1.0))
    shared.control.pairs = [waits] * 6 + [replace(waits, waited=(0.0, 0.0))] * 3
    beside = replace(shared.control, pairs=[waits] * 6)  # one that waits all the while is used to it
    shared.rejected = [Rejected("openvino", {}, "inconclusive", measured=Interval(0.3, 0.97, 3.18), duel=beside)]
    assert "busy" in next_step(shared)


def test_a_machine_that_is_busy_all_the_while_is_named() -> None:
    """All of its blocks wait, and it looks as if they always did: "a step takes 0.7 s" was told of a step of 28 ms."""
    cores = os.cpu_count() or 1
    for used, busy in ((0.9 * cores, True), (0.3 * cores, False)):
        shared = found()
        assert shared.control is not None
        shared.control.pairs = [Pair(0, 1, 1.0, 1.0, True, (0.9, 0.9), (used, used))] * 12
        shared.rejected = [untried("compile")]
        assert ("other programs use 90% of the cores" in next_step(shared)) is busy


def test_nothing_is_said_where_there_is_nothing_to_say() -> None:
    refused = found()
    refused.refusal = "The program fails by itself."
    assert next_step(refused) == ""
    assert next_step(Findings(Program("x.py"), Contract.EXACT)) == ""


@pytest.mark.parametrize(("steps", "says", "epochs"), [(72, "200 are needed", 6), (300, "300 steps are over", 4)])
def test_a_program_that_is_too_short_is_told_how_it_becomes_longer(steps: int, says: str, epochs: int) -> None:
    told = too_short(found(), steps)
    assert says in told and "times as many by its own options" in told
    assert f"train.py --epochs {epochs}`" in too_short(found(("--epochs", "2")), steps)


def test_of_a_program_of_one_step_it_is_said_what_a_step_is() -> None:
    assert "1 step, as calls of optimizer.step() are counted (LBFGS" in too_short(found(), 1)
    assert "LBFGS" not in too_short(found(), 2)


def test_a_screening_that_measured_nothing_says_so() -> None:
    """Of a public DQN on a busy machine: "nothing established in 0 pairs of blocks"."""
    assert Screened().sentence() == "no pair of blocks was measured in its time"
    assert Screened(pairs=1).sentence() == "nothing established in 1 pair of blocks"


def test_what_crashed_hung_or_left_itself_out_was_not_measured() -> None:
    """Told was: there is nothing to gain, 4 candidates were measured; the best was compile, whose gain is not known."""
    failed = found()
    failed.rejected = [Rejected("compile", {}, "crash: SIGSEGV"), Rejected("prefetch", {}, "it draws")]
    assert next_step(failed) == ""
    failed.rejected.append(measured("threads", 1.01))
    assert "1 candidate was measured; the best was threads, 1.01x" in next_step(failed)


def test_a_duel_that_ran_out_of_time_says_so_and_no_other_does() -> None:
    spec = TrialSpec(Program("x.py"))
    ends = ((None, True), ("late", True), ("crash", False), ("ended", False))
    for kind, late in ends:
        assert ran_out_of_time(Duel(spec, spec, exit_reason=ExitReason(kind) if kind else None)) is late
    assert not ran_out_of_time(Duel(spec, spec, interval=Interval(0.9, 1.0, 1.1)))
    added = TrialSpec(spec.program, (("threads", {}),))
    left_out = Duel(spec, added, new_trace=Trace(left_out={"threads": "one core"}))
    assert not ran_out_of_time(left_out)


def test_a_slow_step_is_told_as_the_figures_above_tell_it() -> None:
    """A public program's table said 1.32 s, and the sentence below it 0.75 s, which its process had counted alone."""
    slow = found(pairs=[Pair(0, 2, 2.64, 2.64, True), Pair(0, 2, 2.64, 2.64, False)])
    slow.rejected.append(untried("allocator"))
    assert "(a step takes 1.3 s)" in next_step(slow)
