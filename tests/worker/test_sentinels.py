"""Steps of a run that are made again in forked processes: what is caught, what is not alarmed about, what is left."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from overdrive.core.contract import Contract  # noqa: E402
from overdrive.techniques.catalogue import also_in  # noqa: E402
from overdrive.worker.recording import Recorder  # noqa: E402
from overdrive.worker.sentinels.processes import CopyResult  # noqa: E402
from overdrive.worker.sentinels.replay import Picture, SentinelHistory, SentinelReplay  # noqa: E402
from overdrive.worker.sentinels.sentinels import Sentinels  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402

STEPS = 8
Each = Callable[[int], None]


class Eager(Sentinels):
    """Makes each step again that it can, and waits for what is told."""

    at_once = True

    def _is_paid(self) -> bool:
        return True

    def settle(self) -> None:
        limit = time.monotonic() + 60
        while self._replay is not None and self._replay.mine is not None and time.monotonic() < limit:
            self._look()
            time.sleep(0.001)
        if self.at_once and self._replay is None and self._disarm is None:
            self._look_on()  # the next step, too


@pytest.fixture(autouse=True)
def techniques() -> None:
    also_in(["tests.worker.late_faults"])


def make_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.2), nn.Flatten(), nn.Linear(4 * 36, 3))


def train(each: Each, workers: int = 0, steps: int = STEPS, batches: int = 1) -> dict[str, Any]:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(steps * 4, 2, 8, 8), torch.randint(0, 3, (steps * 4,)))
    loader = DataLoader(data, 4, shuffle=True, num_workers=workers)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for step, (x, y) in enumerate(loader):
        x.mul_(1.5)  # in the memory that workers share with us
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        x.add_(random.random())
        if step % batches == batches - 1:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        each(step)
    return {"losses": losses, "chance": random.random(), "batch": x.sum().item()}


def watched(
    names: list[str],
    program: Callable[..., Any] = train,
    level: Contract = Contract.EXACT,
    levels: dict[str, Contract] | None = None,
    kind: type[Eager] = Eager,
    **given: Any,
) -> tuple[Eager, Session, Any]:
    """The program under these techniques, each step of it made again."""
    said: list[tuple[str, str]] = []
    recorder = Recorder()
    sentinels = kind(lambda: recorder.clock.steps, levels or dict.fromkeys(names, level))
    session = Session([(name, {}) for name in names], [recorder, sentinels], lambda *left: said.append(left))
    sentinels.session = session
    try:
        with session:
            result = program(lambda step: sentinels.settle(), **given)
    finally:
        if sentinels.in_copy:
            os._exit(9)
    assert not [name for name in session.seams.left_out if name.startswith("observer")]
    return sentinels, session, result


@pytest.fixture
def plain() -> Iterator[Any]:
    yield train(lambda step: None)


def test_the_same_steps_are_the_same_and_leave_no_trace(plain: Any) -> None:
    sentinels, session, result = watched(["innocent"])
    assert (sentinels.same, sentinels.different, sentinels.off) == (STEPS - 1, 0, "")
    assert result == plain and not session.seams.left_out


@pytest.mark.parametrize("used", [False, True])
def test_tensorflow_beside_pytorch_ends_nothing_and_keras_does(used: bool) -> None:
    """TensorBoard imports it where it is installed."""

    class Beside(Eager):
        def _arrived(self) -> None:
            super()._arrived()
            self._seams.frameworks.append("keras")
            super()._arrived()
            self._seams.frameworks.pop()
            if used:
                self._seams.keras_used.publish()

    sentinels, session, _ = watched(["innocent"], kind=Beside)
    assert (sentinels.same, sentinels.off) == ((0, "it is a Keras program") if used else (STEPS - 1, ""))
    assert not session.seams.left_out


@pytest.mark.parametrize("name", ["late_output", "late_gradient", "late_rate", "late_draw"])
@pytest.mark.fault(19)
def test_an_exact_technique_that_turns_wrong_late_is_switched_off(name: str) -> None:
    sentinels, session, _ = watched(["innocent", name])
    assert sentinels.different == 1
    assert list(session.seams.left_out) == [name]
    said = session.seams.left_out[name]
    assert said.startswith("step 5, made again without it, came to another result (")
    assert said.endswith("what was computed since step 4 may have been affected")
    assert sentinels.same == STEPS - 2


@pytest.mark.parametrize("name", ["late_rate", "late_bias", "late_half", "late_bf16"])
def test_what_is_to_be_rounding_and_is_more_is_switched_off(name: str) -> None:
    sentinels, session, _ = watched(["innocent", name], level=Contract.ROUNDING, steps=14)
    assert sentinels.different == 1 and list(session.seams.left_out) == [name]


def test_what_is_wrong_on_average_is_switched_off() -> None:
    sentinels, session, _ = watched(["late_half"], level=Contract.STATISTICAL, steps=14)
    assert sentinels.different == 1
    assert "-50% off on average of 4" in session.seams.left_out["late_half"]


def test_what_is_not_finite_is_switched_off_at_once() -> None:
    sentinels, session, _ = watched(["late_nan"], level=Contract.STATISTICAL)
    assert sentinels.different == 1 and sentinels.same == 3
    assert "the size of the gradient is not finite" in session.seams.left_out["late_nan"]


def test_a_step_that_is_not_finite_in_either_way_is_not_counted_as_the_same() -> None:
    picture = Picture("stepped", (float("nan"),), "", values={"the gradient of w": np.full(3, np.nan, np.float32)})
    replay = SentinelReplay({"one": Contract.STATISTICAL}, SentinelHistory(), 3)
    replay.mine, told = picture, CopyResult(replay.first, picture.plain())
    replay.fork_server = cast(Any, SimpleNamespace(told=lambda: [told], order=None))
    assert replay.look() and replay.verdict is None and "nothing of it is finite" in replay.failed


@pytest.mark.parametrize(
    "name, level", [("late_rounding", Contract.ROUNDING), ("late_bf16", Contract.STATISTICAL)], ids=str
)
def test_what_a_level_allows_passes(name: str, level: Contract) -> None:
    sentinels, session, _ = watched([name], level=level, steps=14)
    assert (sentinels.same, sentinels.different) == (13, 0) and not session.seams.left_out


def test_an_exact_technique_is_held_to_it_beside_one_that_rounds() -> None:
    levels = {"late_rounding": Contract.ROUNDING, "late_output": Contract.EXACT}
    sentinels, session, _ = watched(list(levels), levels=levels)
    assert sentinels.different == 1 and list(session.seams.left_out) == ["late_output"]


def test_batches_in_memory_shared_with_workers_stay_as_they_are(plain: Any) -> None:
    sentinels, _, result = watched(["innocent"], workers=2)
    assert (sentinels.same, sentinels.different) == (STEPS - 1, 0)
    assert result["losses"] == train(lambda step: None, workers=2)["losses"]


def tiny(each: Each, within: Callable[[int], Any], batches: int = 1, lines: Any = None) -> list[float]:
    """A loop of its own, without a loader; `within`: done in the midst of each step."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for step in range(STEPS):
        for _ in range(batches):
            loss = (model(torch.ones(4, 3)) ** 2).mean()
            loss.backward()
        within(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        each(step)
    return losses


def test_what_a_step_reads_and_prints_is_read_and_printed_once(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "lines").write_text("".join(f"line {number}\n" for number in range(STEPS)))
    with open(tmp_path / "lines", buffering=1) as lines, open(tmp_path / "log", "w") as log:

        def within(step: int) -> None:
            read = os.pread(lines.fileno(), 0, 0) + os.read(lines.fileno(), 7)
            print("read", read.decode().strip())
            log.write(f"{step}\n")
            log.flush()

        sentinels, _, _ = watched(["innocent"], tiny, within=within)
    assert (sentinels.same, sentinels.different) == (STEPS - 1, 0)
    assert capfd.readouterr().out.splitlines() == [f"read line {number}" for number in range(STEPS)]
    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(STEPS)]


@pytest.mark.parametrize("act", ["truncate", "save", "remove", "start", "raise", "exit", "kill"])
def test_what_a_step_does_besides_is_done_once(act: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    process = os.getpid()

    def within(step: int) -> None:
        if os.getpid() == process:
            return
        if act == "truncate":
            kept.write_text("")
        elif act == "save":
            torch.save({"a": 1}, kept)
        elif act == "remove":
            kept.unlink()
        elif act == "start":
            os.system(f"rm {kept}")
        elif act == "raise":
            raise RuntimeError
        elif act == "exit":
            sys.exit(3)
        else:
            os.kill(os.getpid(), signal.SIGSEGV)

    sentinels, session, losses = watched(["innocent"], tiny, within=within)
    assert sentinels.same == sentinels.different == 0 and len(losses) == STEPS
    assert kept.read_text() == "as it was" and not session.seams.left_out


def test_several_batches_in_a_step_are_compared_together() -> None:
    sentinels, _, _ = watched(["innocent"], tiny, within=lambda step: None, batches=3)
    assert (sentinels.same, sentinels.different) == (STEPS - 1, 0)


def test_a_step_that_is_another_in_each_process_raises_no_alarm() -> None:
    def within(step: int) -> None:
        if step > 3:
            random.seed(os.getpid())

    sentinels, session, _ = watched(["innocent"], tiny, within=within)
    assert (sentinels.same, sentinels.different) == (3, 0) and not session.seams.left_out
    assert sentinels.off.startswith("its steps come out otherwise in forked processes")


def test_a_program_that_hears_of_its_children_has_none_of_ours() -> None:
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        sentinels, _, _ = watched(["innocent"], tiny, within=lambda step: None)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert sentinels.same == sentinels.different == 0


def test_a_program_that_waits_for_any_child_finds_its_own() -> None:
    process = os.getpid()

    def within(step: int) -> None:
        if os.getpid() != process:
            return
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.wait() == (child, 7 << 8)

    sentinels, _, _ = watched(["innocent"], tiny, within=within)
    assert sentinels.same == sentinels.different == 0


def test_no_process_is_left(plain: Any) -> None:
    before = set(psutil.Process().children(recursive=True))
    watched(["innocent"])
    until = time.monotonic() + 10  # it is killed, and on a busy machine not waited for to its end
    while _beside(before) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _beside(before)


def _beside(before: set[psutil.Process]) -> set[psutil.Process]:
    """Processes that are there since; another test's may have ended meanwhile."""
    return set(psutil.Process().children(recursive=True)) - before


def test_a_plan_in_which_nothing_can_be_switched_off_has_no_sentinels() -> None:
    sentinels, _, _ = watched(["allocator"], tiny, within=lambda step: None)
    assert sentinels.same == 0 and sentinels.off == "no technique of the plan can be switched off"


@pytest.mark.parametrize("name, count", [("innocent", STEPS - 1), ("late_rate", 0)])
def test_where_an_optimizer_calls_the_model_nothing_is_switched_off_in_its_midst(name: str, count: int) -> None:
    def closure_loop(each: Each) -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=1)
        for step in range(STEPS):

            def closure() -> Any:
                optimizer.zero_grad()
                loss = (model(torch.ones(4, 3)) ** 2).mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            each(step)

    sentinels, session, _ = watched([name], closure_loop)
    assert (sentinels.same, sentinels.different) == (count, 0) and not session.seams.left_out


def test_of_a_step_of_several_batches_each_is_looked_at_in_its_turn() -> None:
    places: list[str] = []

    class Noting(Eager):
        at_once = False  # `train` tells of each batch, not of each step

        def _conclude(self, replay: Any) -> None:
            places.append(replay.mine.where)
            super()._conclude(replay)

    sentinels, _, _ = watched(["innocent"], kind=Noting, batches=3, steps=24)
    batch, step = "it asks for the next batch", "its optimizer has stepped"
    assert places == [batch, batch, step, batch, batch] and sentinels.same == 5
