"""Trials end as values: whatever the program does, the tuner learns what it was and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest

from overdrive.core import messages
from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.techniques import catalogue
from overdrive.trials.duel import Side
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from tests.conftest import IMPORT_TORCH, long_but
from tests.warm_trials import WarmPool

TRAIN = """
import os, signal, sys, time
IMPORT_TORCH
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for step in range(200):
    FAULT
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""".replace("IMPORT_TORCH", IMPORT_TORCH)

Make = Callable[..., Trial]


@pytest.fixture
def trial(script: Callable[[str], Path]) -> Iterator[Make]:
    """A trial of a script with a fault in its loop."""
    with WarmPool() as pool:
        made: list[Trial] = []

        def make(fault: str = "pass", profiling: str = "") -> Trial:
            path = script(TRAIN.replace("FAULT", fault))
            made.append(Trial(pool, TrialSpec(Program(str(path)), profiling=profiling)))
            return made[-1]

        yield make
        for each in made:
            each.stop()


ROLLS_OUT = """
IMPORT_TORCH
torch.manual_seed(0)
policy, critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1).eval()
optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
for step in range(200):
    for _ in range(1 + step % 3):
        loss = torch.nn.MSELoss()(policy(torch.randn(8, 4)), torch.zeros(8, 2))
    with torch.no_grad():
        policy(torch.randn(1, 4))
    critic(torch.randn(1, 4))
    loss.backward()
    optimizer.step()
""".replace("IMPORT_TORCH", IMPORT_TORCH)


def test_a_block_says_how_often_models_were_called_in_training(script: Callable[[str], Path]) -> None:
    """Calls that record gradients: without losses, evaluations, and models in evaluation mode."""
    with WarmPool() as pool:
        trial = Trial(pool, TrialSpec(Program(str(script(ROLLS_OUT)))))
        try:
            first = trial.first_step()
            blocks = [trial.run(3), trial.run(2, lead=1)]
        finally:
            trial.stop()
    assert first.training_calls == 1
    assert [block.training_calls for block in blocks] == [2 + 3 + 1, 3 + 1]
    assert not any(block.samples for block in blocks)


def exit_reason_of(trial: Trial) -> tuple[str, str]:
    trial.first_step()
    return exit_reason_of_running(trial)


def exit_reason_of_running(trial: Trial) -> tuple[str, str]:
    with pytest.raises(TrialOver) as over:
        trial.run(500)
    return over.value.exit_reason.kind, over.value.exit_reason.detail


def test_what_a_trial_does_before_the_program_begins_is_told_apart(
    script: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's run starts by another way."""
    (tmp_path / "slow_to_come.py").write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(catalogue, "_also", [])
    monkeypatch.chdir(tmp_path)
    path = script(TRAIN.replace("FAULT", "time.sleep(0.2)"))
    with WarmPool(also=("slow_to_come",)) as pool:
        trial = Trial(pool, TrialSpec(Program(str(path))))
        try:
            first = trial.first_step()
            assert first.launch >= 0.3 and first.seconds - first.launch >= 0.2
            assert 0.0 < first.installing < first.seconds - first.launch  # PyTorch was patched meanwhile
            later = trial.run(1)
            assert later.launch == later.installing == 0.0
        finally:
            trial.stop()


def test_stops_at_the_step_that_was_ordered(trial: Make) -> None:
    one = trial()
    assert one.first_step().step == 1
    block = one.run(10)
    assert (block.step, block.steps) == (11, 10) and block.seconds > 0
    trace = one.trace()
    assert trace.steps == 11 and len(trace.losses) == 11 and trace.rates == (0.1,) * 11


def test_what_was_printed_by_the_last_step_is_there_with_its_trace(
    script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lay in the program's own buffer, which a run that is cut off never writes: of what is short nothing came."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    path = script(TRAIN.replace("FAULT", "print('made', step)"))
    with TrialPool() as pool:
        one = Trial(pool, TrialSpec(Program(str(path))))
        try:
            one.first_step()
            one.run(4)
            one.trace()
            assert "made 4\n" in one.output_tail()
        finally:
            one.stop()


def test_steps_that_lead_to_a_block_are_made_and_not_timed(trial: Make) -> None:
    one = trial("if step == 12: time.sleep(3)")
    one.first_step()
    block = one.run(8, lead=3)
    assert (block.step, block.steps) == (12, 8)
    slow_lead = one.run(4, lead=2)
    assert (slow_lead.step, slow_lead.steps) == (18, 4) and slow_lead.seconds < 2
    assert one.run(2).step == 20 and one.trace().steps == 20


def test_the_parts_of_steps_that_lead_to_a_block_are_not_counted(trial: Make) -> None:
    one = trial("if step == 12: time.sleep(3)", profiling="times")
    one.first_step()
    one.run(8, lead=3, record="times")
    parts = one.recorded()["seconds"]
    assert parts["forward"] > 0 and parts["optimizer"] > 0
    one.run(4, lead=2, record="times")
    after = one.recorded()["seconds"]
    assert after["forward"] > parts["forward"] and sum(after.values()) - sum(parts.values()) < 3


FETCHING = """if not step:
        from torch.utils.data import DataLoader, TensorDataset
        batches = iter(DataLoader(TensorDataset(torch.randn(4000, 4)), batch_size=8, shuffle=True))
    next(batches)"""


def test_asking_for_the_cost_of_an_item_changes_nothing_of_what_follows(trial: Make) -> None:
    traces = []
    for costs in (False, True):
        one = trial(FETCHING)
        one.first_step()
        one.run(8, profile=True)
        (loader,) = one.facts(costs).loaders
        assert ("collate" in loader.seconds_per_item) is costs and loader.seconds_per_item["wait"] > 0
        one.run(20)
        traces.append(one.trace())
    assert traces[0] == traces[1]


def test_a_program_that_is_over_says_after_how_many_steps(trial: Make) -> None:
    assert exit_reason_of(trial()) == ("ended", "after 200 steps")


def test_one_that_ends_without_python_s_own_ending_is_known_by_its_last_report(trial: Make) -> None:
    one = trial("if step == 20: os._exit(0)")
    one.first_step()
    one.run(10)
    assert exit_reason_of_running(one) == ("ended", "after 11 steps or more")


@pytest.mark.fault(1)
def test_a_program_that_raises_ends_with_its_exception(trial: Make) -> None:
    kind, detail = exit_reason_of(trial("if step == 5: raise ValueError('bad batch')"))
    assert (kind, detail) == ("exception", "ValueError: bad batch")


@pytest.mark.fault(2)
def test_a_program_that_crashes_ends_with_its_signal(trial: Make) -> None:
    kind, detail = exit_reason_of(trial("if step == 5: os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (kind, detail) == ("crash", "SIGSEGV")


def test_a_program_that_exits_ends_with_its_code(trial: Make) -> None:
    assert exit_reason_of(trial("if step == 5: sys.exit(3)"))[0] == "exception"


@pytest.mark.fault(7)
def test_a_program_out_of_memory_is_told_from_a_failing_one(trial: Make) -> None:
    assert exit_reason_of(trial("if step == 5: raise MemoryError()"))[0] == "oom"


HOARD = """if step == 5:
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        hoard = [torch.empty(1 << 26) for _ in range(100)]"""


@pytest.mark.fault(7)
def test_after_one_that_ran_out_of_memory_the_next_starts_clean(trial: Make) -> None:
    kind, detail = exit_reason_of(trial(HOARD))
    assert kind == "oom" and "allocate" in detail
    following = trial()
    side = Side().add(following.first_step()).add(following.run(100))
    assert following.left_out == {} and 0 < side.peak_memory < 2 << 30
    assert exit_reason_of_running(following) == ("ended", "after 200 steps")


ENDS = """if step == 0:
        import atexit
        atexit.register(lambda: (print("goodbye"), time.sleep(WAITS)))"""


TRAINS = """
def train(place, steps):
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""
IN_FORKS = """
import multiprocessing, os, time
IMPORT_TORCH

TRAINS

BEFORE
children = [multiprocessing.get_context("fork").Process(target=train, args=(0, 50)) for _ in range(2)]
for each in children:
    each.start()
for each in children:
    each.join()
assert all(each.exitcode == 0 for each in children)
AFTER
""".replace("IMPORT_TORCH", IMPORT_TORCH).replace("TRAINS", TRAINS)


def _forking(pool: WarmPool, script: Callable[[str], Path], before: str = "", after: str = "") -> Trial:
    path = script(IN_FORKS.replace("BEFORE", before).replace("AFTER", after))
    return Trial(pool, TrialSpec(Program(str(path))))


def test_of_a_program_that_trains_in_processes_that_it_forks_no_step_is_measured(script: Callable[[str], Path]) -> None:
    """Each of them reported its first step, and stood still for a command that another one of them read."""
    with WarmPool() as pool:
        trial = _forking(pool, script)
        with pytest.raises(TrialOver) as over:
            trial.first_step()
        trial.stop()
    assert over.value.exit_reason.kind == "unwatched"
    assert "are made in processes that it forks" in over.value.exit_reason.detail


STARTS = {
    "Process": """
    context = multiprocessing.get_context("METHOD")
    children = [context.Process(target=train, args=(place, 10_000)) for place in range(2)]
    for each in children:
        each.start()
    for each in children:
        each.join()
""",
    "spawn": """
    import torch.multiprocessing
    torch.multiprocessing.start_processes(train, args=(10_000,), nprocs=2, start_method="METHOD")
""",
    "executor": """
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("METHOD")) as pool:
        list(pool.map(train, range(2), [10_000] * 2))
""",
}
IN_SPAWNED = """
import multiprocessing
IMPORT_TORCH

TRAINS

if __name__ == "__main__":
    BEFORE
""".replace("IMPORT_TORCH", IMPORT_TORCH).replace("TRAINS", TRAINS)


WAYS = (("Process", "spawn"), ("spawn", "spawn"), ("executor", "spawn"), ("Process", "forkserver"))


@pytest.mark.parametrize("start, method", long_but([("spawn", "spawn")], WAYS))
def test_of_a_program_that_trains_in_processes_that_it_spawns_the_first_step_tells(
    start: str, method: str, script: Callable[[str], Path]
) -> None:
    """A tune waited for its first step for minutes, and said that none came."""
    path = script(IN_SPAWNED.replace("BEFORE", STARTS[start].replace("METHOD", method).strip()))
    with WarmPool() as pool:
        trial = Trial(pool, TrialSpec(Program(str(path))))
        with pytest.raises(TrialOver) as over:
            trial.first_step()
        trial.stop()
    assert over.value.exit_reason.kind == "unwatched"
    assert "are made in processes that it spawns" in over.value.exit_reason.detail


def test_steps_of_spawned_processes_beside_its_own_are_none_of_its(script: Callable[[str], Path]) -> None:
    both = "train(0, 10)\n" + STARTS["Process"].replace("METHOD", "spawn").replace("10_000", "20")
    with WarmPool() as pool:
        trial = Trial(pool, TrialSpec(Program(str(script(IN_SPAWNED.replace("BEFORE", both))))))
        assert exit_reason_of(trial) == ("ended", "after 10 steps")
        trial.stop()


def test_steps_of_forked_processes_beside_its_own_are_none_of_its(script: Callable[[str], Path]) -> None:
    with WarmPool() as pool:
        trial = _forking(pool, script, "train(0, 20)")
        assert exit_reason_of(trial) == ("ended", "after 20 steps")
        trial.stop()


def test_a_fork_that_comes_to_the_programs_end_is_not_taken_for_the_program(script: Callable[[str], Path]) -> None:
    with WarmPool() as pool:
        goes_on = "if child:\n    os.waitpid(child, 0)\n    train(0, 40)"  # 16 of them until its optimizer leads
        trial = _forking(pool, script, "train(0, 20)\nchild = os.fork()", goes_on)
        assert exit_reason_of(trial) == ("ended", "after 44 steps")
        trial.stop()


def test_an_actor_beside_its_learner_is_not_ended_for_only_answering(script: Callable[[str], Path]) -> None:
    """It calls a model for as long as a program that trains nothing is looked at."""
    act = """
import time
def act():
    torch.set_num_threads(1)
    model, until = torch.nn.Linear(4, 2), time.monotonic() + 10
    with torch.no_grad():
        while time.monotonic() < until:
            model(torch.randn(1, 4))
            time.sleep(0.05)

actor = multiprocessing.get_context("fork").Process(target=act)
actor.start()
train(0, 10)
"""
    with WarmPool() as pool:
        trial = _forking(pool, script, act, "actor.join()\nassert actor.exitcode == 0")
        assert exit_reason_of(trial) == ("ended", "after 10 steps")
        trial.stop()


def test_the_end_of_a_process_is_timed_as_python_ends_it(trial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.trials.trial._END_SECONDS", 20.0)
    one = trial(ENDS.replace("WAITS", "0.5"))
    one.first_step()
    took = one.end()
    assert took is not None and took >= 0.5  # at the least: it slept
    assert "goodbye" in one.output_tail() and one.step == 1 and one.group.exit_code() == 0


def test_so_is_that_of_one_that_came_to_its_program_s_end(trial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.trials.trial._END_SECONDS", 20.0)
    one = trial(ENDS.replace("WAITS", "0.5"))
    assert exit_reason_of(one) == ("ended", "after 200 steps")
    took = one.end()
    assert took is not None and took >= 0.5
    assert "goodbye" in one.output_tail() and one.group.exit_code() == 0
    assert one.end() is None  # it is over


def test_it_ends_as_a_run_under_its_plan_does(script: Callable[[str], Path]) -> None:
    """With our hands off the program's framework, and what lies in buffers written."""
    fault = """if step == 0:
        import atexit
        from overdrive.worker.session import _entered
        atexit.register(lambda: print("in force:", len(_entered)))"""
    path = script(TRAIN.replace("FAULT", fault))
    told = {}
    for techniques in ((), (("threads", {"count": 1}),)):
        with TrialPool() as pool:
            one = Trial(pool, TrialSpec(Program(str(path)), techniques))
            one.first_step()
            assert one.end() is not None
            told[bool(techniques)] = one.output_tail().splitlines()[-1]
            one.stop()
    assert told == {False: "in force: 1", True: "in force: 0"}


def test_an_end_that_does_not_come_is_not_known(trial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.trials.trial._END_SECONDS", 0.5)
    one = trial(ENDS.replace("WAITS", "1000"))
    one.first_step()
    assert one.end() is None
    one.stop()
    assert not psutil.pid_exists(one.group.pids[0])


@pytest.mark.fault(3)
def test_a_program_that_hangs_is_ended_by_the_watchdog(trial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.trials.trial._LEAST_PATIENCE", 2.0)
    one = trial("if step == 5: time.sleep(1000)")
    assert exit_reason_of(one)[0] == "hang"
    one.stop()
    assert not psutil.pid_exists(one.group.pids[0])


@pytest.mark.fault(3)
@pytest.mark.timeout(50)  # less than the patience with one whose threads run
def test_one_none_of_whose_threads_runs_is_ended_sooner(trial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.trials.trial._IDLE_PATIENCE", 2.0)
    one = trial("if step == 5: time.sleep(1000)")
    assert exit_reason_of(one)[0] == "hang"
    one.stop()


@pytest.mark.parametrize(("framework", "ends"), [("keras", False), ("torch", True)])
def test_keras_programs_may_sleep_for_longer(
    framework: str, ends: bool, trial: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overdrive.trials.trial._IDLE_PATIENCE", 1.0)
    one = trial("if step == 5: time.sleep(5)")
    one.first_step()
    told = replace(one.facts(), framework=framework)
    with monkeypatch.context() as patch:
        patch.setattr(one, "_ask", lambda *_: told)
        one.facts()
    one._silence = 0.0  # of its start, which is made allowance for
    if ends:
        with pytest.raises(TrialOver, match="no step for"):
            one.run(10)
    else:
        assert one.run(10).steps == 10
    one.stop()


def test_one_that_computes_for_long_is_no_hang(trial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.trials.trial._IDLE_PATIENCE", 1.0)
    one = trial("began = time.monotonic()\n    while step == 5 and time.monotonic() - began < 4: pass")
    one.first_step()
    assert one.run(10).steps == 10
    one.stop()


def test_steps_that_take_as_long_as_the_first_one_did_are_no_hang(trial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.trials.trial._LEAST_PATIENCE", 0.3)
    one = trial("time.sleep(1.0)")  # it fetches no batch, and gives no other sign of life
    one.first_step()
    assert one.run(2).steps == 2


EVALUATES = """
    if step == 5:
        began = time.monotonic()
        while time.monotonic() - began < 6:  # it fetches no batch
            with torch.no_grad():
                model(torch.randn(8, 4))
            time.sleep(0.01)
"""


def test_an_evaluation_by_hand_that_takes_long_is_no_hang(trial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of meta-learning, reinforcement learning or of what generates."""
    monkeypatch.setattr("overdrive.trials.trial._LEAST_PATIENCE", 2.0)
    one = trial(EVALUATES)
    one.first_step()
    assert one.run(20).steps == 20


def test_one_whose_calls_are_not_looked_at_is_waited_for_longer(trial: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.trials.trial._LEAST_PATIENCE", 2.0)
    one = trial(EVALUATES, profiling="plain")
    one.first_step()
    assert one.run(20).steps == 20


HOLDS_THE_LOCK = (  # a lock of C, taken twice, by calls that do not let go of Python's
    "import ctypes; libc, lock = ctypes.PyDLL(None), (ctypes.c_byte * 64)(); "
    "step == 5 and [libc.pthread_mutex_lock(lock) for _ in range(2)]"
)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("if step == 5: os.kill(os.getpid(), signal.SIGSTOP)", marks=pytest.mark.fault(4)),
        pytest.param(HOLDS_THE_LOCK, marks=[pytest.mark.fault(3), pytest.mark.long]),
        pytest.param("while step == 5: pass", marks=[pytest.mark.fault(3), pytest.mark.long]),
    ],
)
def test_one_that_is_stopped_spins_or_holds_pythons_lock_is_ended_too(
    fault: str, trial: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overdrive.trials.trial._LEAST_PATIENCE", 2.0)
    one = trial(fault)
    assert exit_reason_of(one)[0] == "hang"
    one.stop()
    assert not psutil.pid_exists(one.group.pids[0])


class Evaluating:
    """A program that gives a sign of life for ever, and makes no step."""

    size, pids, reports, over = 1, (), (), False

    def start(self, environment: Mapping[str, str], output: BinaryIO) -> Evaluating:
        return self

    def read(self, seconds: float) -> list[tuple[int, bytes]]:
        time.sleep(0.02)
        return [(0, messages.write(messages.Beat()))]

    def exit_code(self) -> int | None:
        return 0 if self.over else None

    def stop(self, grace: float) -> None:
        self.over = True

    def wait(self, seconds: float) -> bool:
        return self.over

    def send(self, line: bytes) -> None: ...
    def resume(self) -> None: ...
    def pause(self) -> None: ...


@pytest.mark.fault(3)
@pytest.mark.parametrize("of", ["pool", "order"])
def test_what_lives_and_makes_no_step_is_waited_for_until_the_budget_is_used_up(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last evaluation that takes an hour, or a service that answers for ever."""
    monkeypatch.setattr("overdrive.trials.trial._LEAST_PATIENCE", 0.1)
    with TrialPool(launcher=Evaluating()) as pool:
        one, until = Trial(pool, TrialSpec(Program("train.py"))), time.monotonic() + 0.4
        if of == "pool":
            pool.until = until
        with pytest.raises(TrialOver) as over:
            one.run(100, **({"until": until} if of == "order" else {}))
        assert over.value.exit_reason.kind == "late" and time.monotonic() >= until
        with pytest.raises(TrialOver) as over:  # once it is used up, as long as what gives no sign
            one.run(100, **({"until": until} if of == "order" else {}))
        assert over.value.exit_reason.kind == "late"
        one.stop()


def test_of_what_a_program_printed_the_end_alone_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be more than fits into the memory."""
    with TrialPool(launcher=Evaluating()) as pool:
        one = Trial(pool, TrialSpec(Program("train.py")))
        one._log.write(b"x" * 5000 + b"\xff the end")
        monkeypatch.delattr(Path, "read_bytes")
        assert one.output_tail(9) == "\ufffd the end" and len(one.output_tail(1 << 20)) == 5009
        one.stop()


@pytest.mark.fault(3, "unruly")
def test_a_program_that_ignores_signals_is_ended_all_the_same(trial: Make) -> None:
    one = trial("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    one.first_step()
    one.stop()
    assert not psutil.pid_exists(one.group.pids[0])


@pytest.mark.fault(8)
def test_between_blocks_the_whole_group_stands_still(trial: Make) -> None:
    child = "step or subprocess.Popen([sys.executable, '-c', 'while True: pass'])"
    one = trial(f"import subprocess; {child}")
    one.first_step()
    time.sleep(0.2)
    group = [each for each in psutil.process_iter(["pid"]) if _group(each.pid) == one.group.pids[0]]
    assert len(group) == 2
    assert all(each.status() == psutil.STATUS_STOPPED for each in group)
    one.stop()
    limit = time.monotonic() + 30  # the kernel ends a process of others when it comes to it, on a busy machine late
    while any(_alive(each) for each in group):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_the_programs_output_stays_out_of_the_tuners(trial: Make, capfd: pytest.CaptureFixture[str]) -> None:
    one = trial()
    one.first_step()
    assert "training" in one.output_tail() or one.output_tail() == ""
    assert "training" not in capfd.readouterr().out


@pytest.mark.fault(8, 9)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_tuner_leaves_no_trial_behind(workers: int, script: Callable[[str], Path]) -> None:
    path = script(TRAIN.replace("FAULT", FETCHING.replace("shuffle=True", f"num_workers={workers}")))
    tuner = (
        "import sys, time\n"
        "from overdrive.core.program import Program\n"
        "from overdrive.trials.pool import TrialPool\n"
        "from overdrive.trials.trial import Trial\n"
        "from overdrive.core.trial_spec import TrialSpec\n"
        "pool = TrialPool()\n"
        f"trial = Trial(pool, TrialSpec(Program({str(path)!r})))\n"
        "trial.first_step()\n"
        "print(trial.group.pids[0], flush=True)\n"
        "time.sleep(100)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", tuner], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    family = [child, *child.children(recursive=True)]
    assert len(family) > workers
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        if not any(map(_alive, family)):
            break
        time.sleep(0.1)
    assert not any(map(_alive, family))


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


SHARING = """
from multiprocessing import shared_memory
if not step:
    table = shared_memory.SharedMemory("NAME", create=True, size=1 << 20)
    if not os.fork():
        time.sleep(1000)  # a worker that has what its parent had open
""".strip().replace("\n", "\n    ")


def test_memory_that_a_program_shares_by_name_does_not_outlive_its_trial(trial: Make) -> None:
    """What removes it was killed with the others, and /dev/shm filled up."""
    name = f"overdrive-test-{os.getpid()}-{time.monotonic_ns()}"
    shared = Path("/dev/shm") / name
    one = trial(SHARING.replace("NAME", name))
    one.first_step()
    assert shared.exists()
    try:
        one.stop()
        assert not shared.exists()
    finally:
        shared.unlink(missing_ok=True)


@pytest.mark.parametrize("stopped", [True, False])
def test_a_process_of_a_session_of_its_own_is_ended_with_its_trial(stopped: bool, trial: Make) -> None:
    apart = "subprocess.Popen([sys.executable, '-c', 'while True: pass'], start_new_session=True)"
    one = trial(f"import subprocess; step or {apart}; 0 if {stopped} or step < 3 else time.sleep(1000)")
    one.first_step()
    (child,) = psutil.Process(one.group.pids[0]).children()
    try:
        if not stopped:  # in the midst of a step it reads no order, and is killed
            one.group.resume()
            one._send(messages.Run(5))
        one.stop()
        limit = time.monotonic() + 30
        while _alive(child):
            assert time.monotonic() < limit
            time.sleep(0.05)
    finally:
        if _alive(child):  # else it would take a core for good
            child.kill()


UNSEEDED = """
import multiprocessing, os, random, uuid
IMPORT_TORCH
import numpy as np
print("first", random.random(), np.random.rand())
print("made", random.Random().random(), np.random.default_rng().random(), np.random.RandomState().rand())
print("system", uuid.uuid4().hex, os.urandom(4).hex())
print("two", *(np.random.default_rng().random() for _ in range(2)))

def draw(answers):
    answers.put(np.random.default_rng().random())

answers = multiprocessing.get_context("fork").SimpleQueue()
children = [multiprocessing.get_context("fork").Process(target=draw, args=(answers,)) for _ in range(2)]
for each in children:
    each.start()
    each.join()
    print("child", answers.get())
weight = torch.nn.Parameter(torch.rand(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    weight.sum().backward()
    optimizer.step()
""".replace("IMPORT_TORCH", IMPORT_TORCH)


def test_what_a_program_draws_without_a_seed_is_the_same_in_all_trials(script: Callable[[str], Path]) -> None:
    """Environments of reinforcement learning and generators of NumPy's are rarely given one."""
    one_more = UNSEEDED.replace("import multi", "import numpy; numpy.random.default_rng(); import multi")
    said = []
    with WarmPool() as pool:
        for text, seed in ((UNSEEDED, 0), (UNSEEDED, 0), (one_more, 0), (UNSEEDED, 1)):
            trial = Trial(pool, TrialSpec(Program(str(script(text))), seed=seed))
            trial.first_step()
            said.append(trial.output_tail(5000).splitlines())
            trial.stop()
    assert said[0] == said[1]
    assert said[0] == said[2], "what is drawn at another place, as a library may under a technique, shifts nothing"
    assert all(one != other for one, other in zip(said[0], said[3], strict=True))
    children = [line for line in said[0] if line.startswith("child")]
    assert len({*children}) == 2, "each process draws its own"
    assert len({*said[0][3].split()}) == 3
