"""Losses that are not finite, pauses that are too long, stacks in a file: the parts, in this process."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from overdrive.seams.torch.loss_values import LossValues  # noqa: E402
from overdrive.worker.recording import Recorder  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402
from overdrive.worker.watching.losses import LOST, LossLost, LossWatch  # noqa: E402
from overdrive.worker.watching.pauses import Pauses  # noqa: E402
from overdrive.worker.watching.spikes import Spikes  # noqa: E402
from overdrive.worker.watching.stacks import Stacks  # noqa: E402

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "kind", "lost"),
    [
        (1.0, torch.float32, False),
        (NAN, torch.float32, True),
        (-INF, torch.float32, True),
        (INF, torch.bfloat16, True),
        (INF, torch.float16, False),  # a scaled loss overflows, and its scaler expects that
        (NAN, torch.float16, True),
    ],
)
def test_a_loss_on_the_cpu_is_known_at_once(value: float, kind: Any, lost: bool) -> None:
    found = LossValues(1).noted(torch.tensor(value, dtype=kind), lambda: 2)
    assert (found is not None and found[0] == 3) is lost


def test_several_numbers_are_no_loss_and_what_is_transformed_is_left_alone() -> None:
    values = LossValues(1)
    assert values.noted(torch.tensor([NAN, NAN]), int) is None
    seen = []
    torch.func.vmap(lambda x: (seen.append(values.noted(x, int)), x)[1])(torch.tensor([NAN, NAN]))
    assert seen == [None]


def test_a_mode_of_the_programs_sees_nothing_of_it() -> None:
    calls: list[Any] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func)
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func)
            return func(*args, **(kwargs or {}))

    values, loss = LossValues(1), torch.tensor(NAN)
    with Functions():
        assert values.noted(loss, int) == (1, pytest.approx(NAN, nan_ok=True))
    with Operators():
        values.noted(loss, int)
    assert calls == []


def test_a_loss_on_a_gpu_is_known_when_its_copy_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for losses on a GPU: their copies come when the test says so."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **more: empty(*size, **more))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    under_way: list[Callable[[], object]] = []
    monkeypatch.setattr(
        torch.Tensor,
        "copy_",
        lambda place, loss, non_blocking=False: under_way.append(lambda: place.fill_(loss.item())),
    )
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        values = LossValues(1)
        sent = [values._noted_on_gpu(torch.tensor(each, dtype=kind), n) for n, each in enumerate([1.0, NAN, 2.0])]
        assert sent == [None] * 3  # nothing has come yet
        under_way.pop(0)()
        assert values._noted_on_gpu(torch.tensor(2.0, dtype=kind), 3) is None
        under_way.pop(0)()
        found = values._noted_on_gpu(torch.tensor(2.0, dtype=kind), 4)
        assert found is not None and found[0] == 1 and found[1] != found[1]
        under_way.clear()
    for step in range(200):  # none ever comes
        assert values._noted_on_gpu(torch.tensor(1.0, dtype=kind), step) is None
    assert len(under_way) < 100
    under_way.clear()
    few = LossValues(16)
    for step in range(64):
        few._noted_on_gpu(torch.tensor(1.0), step)
        while under_way:
            under_way.pop(0)()
    assert few._count == 64 and few._copies[torch.float32].place == 4


def _noise(count: int, seed: int = 0) -> list[float]:
    """Losses that fall from 4 to 2, with tails that are heavier than any loss has."""
    drawn = torch.distributions.StudentT(2.0).sample
    torch.manual_seed(seed)
    return [2.0 + 2.0 * 0.99**step + 0.05 * float(drawn()) for step in range(count)]


@pytest.mark.fault("spike")
def test_losses_that_leap_and_stay_are_told_with_their_first_step_and_again_when_they_were_usual_between() -> None:
    spikes = Spikes()
    losses = [*_noise(200), *(each + 5 for each in _noise(10, 1)), *_noise(100, 2), *(each + 9 for each in _noise(5))]
    told = [(number, spike) for number, loss in enumerate(losses) if (spike := spikes.look(number, loss))]
    assert [(number, spike.step) for number, spike in told] == [(202, 200), (312, 310)]
    assert 2 < told[0][1].usual < 3.5 and told[0][1].value == losses[200]


@pytest.mark.fault("false-alarm")
@pytest.mark.parametrize(
    "losses",
    [
        _noise(20_000),
        [2.0] * 100 + [9.0, 9.0] + [2.0] * 100,  # a batch or two that are odd
        [2.0] * 100 + [2.1] * 100,  # flat, and moves by less than anybody calls a leap
        [1e-3 * 1.02**step for step in range(400)],  # grows, step by step
        [0.0, 50.0] * 31,  # too few to know what is usual
        [-3.0 - step / 50 for step in range(400)],  # below zero: likelihoods, critics
    ],
    ids=["noise", "odd", "flat", "grows", "few", "negative"],
)
def test_what_is_no_leap_is_not_told(losses: list[float]) -> None:
    spikes = Spikes()
    assert not [step for step, loss in enumerate(losses) if spikes.look(step, loss)]


def _train(
    losses: list[float], action: str | None, scaled: bool = False, on_spike: str | None = None
) -> tuple[list[str], int, list[int]]:
    """What was told, how many steps were made, and after which loss a snapshot was asked for."""
    told: list[str] = []
    snapshots: list[int] = []
    recorder = Recorder()
    watch = LossWatch(action, lambda: recorder.clock.steps, told.append, on_spike)
    watch.take_snapshot = lambda: snapshots.append(recorder.clock.steps + 1)
    with Session([], [recorder, watch]):
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        try:
            for value in losses:
                (weight.sum() * value).backward()
                if value == value or not scaled:
                    optimizer.step()
        except LossLost as error:
            assert error.code == LOST
            told.append("ended")
    return told, recorder.clock.steps, snapshots


@pytest.mark.fault("nan")
def test_a_loss_that_is_not_finite_is_told_once_and_the_run_goes_on() -> None:
    for action in (None, "go-on"):
        told, steps, _ = _train([1.0, 1.0, NAN, NAN, INF], action)
        assert len(told) == 1 and "the loss of step 3 is nan; the run goes on" in told[0] and steps == 5


def test_it_ends_after_the_step_or_where_a_scaler_leaves_the_step_out() -> None:
    told, steps, _ = _train([1.0, NAN, 1.0], "stop")
    assert "the loss of step 2 is nan: the run ends here" in told[0] and told[1:] == ["ended"] and steps == 2
    told, steps, _ = _train([1.0, NAN, NAN, 1.0], "stop", scaled=True)
    assert told[1:] == ["ended"] and steps == 1


def test_a_snapshot_is_asked_for_once() -> None:
    told, steps, snapshots = _train([1.0, NAN, NAN], "snapshot")
    assert len(told) == 1 and snapshots == [2] and steps == 3


@pytest.mark.fault("spike")
def test_what_is_done_where_losses_leap() -> None:
    losses = [1.0] * 40 + [7.0] * 6
    assert _train(losses, None)[:2] == ([], 46)
    told, steps, _ = _train(losses, None, on_spike="go-on")
    assert told[0].startswith("the loss leaps from 1 to 7 at step 41, and stays there") and steps == 46
    told, steps, snapshots = _train(losses, None, on_spike="snapshot")
    assert len(told) == 1 and snapshots == [43] and steps == 46
    told, steps, _ = _train(losses, None, on_spike="stop")
    assert "the run ends here (--on-spike stop)" in told[0] and told[1:] == ["ended"] and steps == 43


def test_losses_of_a_step_have_each_its_own_usual_one_and_a_scale_is_none() -> None:
    """Two losses a step, of which one is scaled, and the scale doubles."""
    told: list[str] = []
    recorder = Recorder()
    with Session([], [recorder, LossWatch(None, lambda: recorder.clock.steps, told.append, "go-on")]):
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=40)
        for _ in range(120):
            (weight.sum() * 100).backward()
            scaler.scale(weight.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() > 2.0 and told == []


def test_a_leap_of_all_losses_that_a_step_accumulates_is_told_once() -> None:
    told: list[str] = []
    recorder = Recorder()
    with Session([], [recorder, LossWatch(None, lambda: recorder.clock.steps, told.append, "go-on")]):
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        for value in [1.0] * 40 + [7.0] * 6:
            for _ in range(4):
                (weight.sum() * value).backward()
            optimizer.step()
    assert len(told) == 1 and "from 1 to 7 at step 41" in told[0]


def test_losses_of_a_program_that_steps_by_hand_are_watched_in_bounded_memory() -> None:
    """Each was the only one of its place, and what is usual was kept of each."""
    told: list[str] = []
    watch = LossWatch(None, lambda: 0, told.append, "go-on")
    for value in [1.0] * 5000 + [7.0] * 500:
        watch._heard(1, value)
    assert len(watch._spikes) == 64 and len(told) == 1


@pytest.mark.fault("false-alarm")
def test_what_counts_as_a_hang_is_learned_from_the_run() -> None:
    pauses = Pauses(60)
    assert pauses.look(1000, 0, 5) == 0  # before the first step anything may take any time
    now = 1000.0
    for step in range(1, 50):
        now += 0.5
        assert pauses.look(now, step, step) == 0
    assert pauses.bound == 60 and pauses.look(now + 50, 49, 49) == 50
    assert pauses.look(now + 51, 49, 50) == 0  # an evaluation fetches batches
    assert pauses.bound == 3 * 51  # and may take three times as long
    slow = Pauses(60)
    for step in range(1, 10):
        slow.look(step * 100.0, step, step)
    assert slow.bound == 1000


@pytest.mark.fault("false-alarm")
def test_a_process_that_was_stopped_has_made_no_pause() -> None:
    pauses = Pauses(60)
    pauses.look(0, 1, 1)
    pauses.stood_still(3600)
    assert pauses.look(3605, 1, 1) == 5


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[Stacks]:
    made = Stacks(tmp_path / "stacks.txt")
    yield made
    faulthandler.unregister(made._signal)
    os.close(made._handle)


@pytest.mark.fault("false-alarm")
def test_stacks_of_all_threads_and_what_is_no_alarm_is_taken_back(stacks: Stacks) -> None:
    let_go = threading.Event()

    def stands_in_the_thread() -> None:
        let_go.wait()

    thread = threading.Thread(target=stands_in_the_thread)
    thread.start()
    path = stacks.path
    try:
        os.kill(os.getpid(), signal.SIGRTMAX - 3)  # as a timer of the kernel does
        while not path.stat().st_size:
            time.sleep(0.01)
        stacks.forget()
        assert path.stat().st_size == 0
        assert stacks.write("the head")
        stacks.forget()
        stacks.close()
    finally:
        let_go.set()
        thread.join()
    text = path.read_text()
    assert text.startswith("the head") and "stands_in_the_thread" in text and sys._getframe().f_code.co_name in text


def test_a_file_that_nothing_was_written_to_is_gone(stacks: Stacks) -> None:
    stacks.close()
    assert not stacks.path.exists()


def test_nothing_is_written_to_a_file_that_the_program_opened_in_our_place(stacks: Stacks, tmp_path: Path) -> None:
    own = os.open(tmp_path / "data", os.O_WRONLY | os.O_CREAT)
    os.dup2(own, stacks._handle)  # as where all descriptors were closed, and one opened
    os.close(own)
    assert not stacks.write("the head")
    stacks.forget()
    stacks.close()
    assert (tmp_path / "data").read_bytes() == b""
