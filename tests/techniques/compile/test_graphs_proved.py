"""`cuda_graphs` under those who prove it, on the stand-in for a GPU: digest logs see each call once, as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.core.records import StepRecord
from overdrive.seams.hub import Seams
from overdrive.techniques.compile.cuda_graphs import calls, step_graph
from overdrive.worker.session import Session
from overdrive.worker.torch.digests import DigestLog
from tests.fakes.cuda import fake_cuda
from tests.fakes.gpu import FakeGpu
from tests.techniques.compile.test_cuda_graphs import Net, Reading

STEPS = 12


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    with fake_cuda() as gpu:
        yield gpu
        assert not gpu.order.found


def logged(
    techniques: list[Any], kind: str = "bits", make: Any = Net, watch: Any = None, between: Any = lambda *_: None
) -> tuple[list[StepRecord], dict[str, str]]:
    torch.manual_seed(0)
    log = DigestLog(kind)
    observers = [log, *([watch] if watch else [])]
    with Session(techniques, observers) as session:
        model = make().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
        for step in range(STEPS):
            between(session, step)
            loss = model(torch.randn(6, 8, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 4 == 3:
                model.eval()
                with torch.no_grad():
                    model(torch.randn(6, 8, device="cuda"))
                model.train()
            log.stepped()
    return log.entries, session.seams.left_out


@pytest.mark.parametrize(("parts", "captures"), [("all", 3), ("step", 1)])
@pytest.mark.parametrize("kind", ["inputs", "bits"])
def test_digests_of_replayed_steps_are_those_of_the_program(gpu: FakeGpu, kind: str, parts: str, captures: int) -> None:
    plain, _ = logged([], kind)
    entries, left_out = logged([("cuda_graphs", {"parts": parts})], kind)
    assert not left_out and gpu.captures == captures and gpu.replays
    assert entries == plain


def test_a_call_that_is_undone_and_made_again_counts_once(gpu: FakeGpu) -> None:
    plain, _ = logged([], make=Reading)
    entries, left_out = logged([("cuda_graphs", {"parts": "all"})], make=Reading)  # the optimizer's part stays
    assert not left_out and gpu.captures == 1
    assert [each.calls for each in entries] == [each.calls for each in plain]
    assert entries == plain


@pytest.mark.parametrize(
    ("parts", "of", "name"),
    [("all", calls.RecordedCall, "_copy_in"), ("step", step_graph.StepGraph, "copy_inputs")],
)
def test_an_input_that_was_not_copied_in_is_seen(
    parts: str, of: Any, name: str, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seeded stale read: only what the replay truly reads tells it."""
    plain, _ = logged([], "inputs")
    copy_in = getattr(of, name)
    copied: list[int] = []

    def now_and_then(self: Any, inputs: Any) -> None:
        copied.append(1)
        if len(copied) != 7:
            copy_in(self, inputs)

    monkeypatch.setattr(of, name, now_and_then)
    entries, left_out = logged([("cuda_graphs", {"parts": parts})], "inputs")
    assert not left_out
    assert parts == "all" or gpu.captures == 1
    assert [each.inputs for each in entries] != [each.inputs for each in plain]


def test_observers_that_come_and_go_have_nothing_recorded_anew(gpu: FakeGpu) -> None:
    def passing(model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    seams: list[Seams] = []

    def coming_and_going(session: Any, step: int) -> None:
        if step >= 7:
            session.seams.model_called.unsubscribe(passing)
        if step == 8:
            with session.seams.owned_by("observer"):
                session.seams.model_called.subscribe(passing)

    def watch(hub: Seams) -> None:
        seams.append(hub)
        hub.model_called.subscribe(passing)

    techniques = [("cuda_graphs", {"parts": "model"})]
    logged(techniques)
    captures, replays = gpu.captures, gpu.replays
    _, left_out = logged(techniques, watch=watch, between=coming_and_going)
    assert not left_out and gpu.captures == 2 * captures and gpu.replays == 2 * replays


def test_another_precision_has_kernels_recorded_anew(gpu: FakeGpu) -> None:
    from overdrive.seams.torch.control import product_precision, set_product_precision

    before = product_precision("cuda", "conv")

    def changed(session: Any, step: int) -> None:
        if step == 6:
            set_product_precision("cuda", "conv", "ieee")

    try:
        logged([("cuda_graphs", {"parts": "model"})], between=changed)
    finally:
        set_product_precision("cuda", "conv", before)
    assert gpu.captures == 4


def test_what_is_not_recorded_is_said(gpu: FakeGpu, caplog: pytest.LogCaptureFixture) -> None:
    from overdrive.core.progress import log

    log.addHandler(caplog.handler)
    try:
        with caplog.at_level("INFO", logger="overdrive"):
            _, left_out = logged([("cuda_graphs", {"parts": "all"})], make=Reading)
    finally:
        log.removeHandler(caplog.handler)
    assert not left_out
    assert [each for each in caplog.messages if "not recorded as a CUDA graph: a value is read" in each]


@pytest.mark.parametrize(("parts", "captures"), [("all", 3), ("step", 1)])
def test_no_observer_is_called_inside_a_recording(gpu: FakeGpu, parts: str, captures: int) -> None:
    inside: list[bool] = []

    def looking(model: nn.Module, call: Any, *args: Any, **kwargs: Any) -> Any:
        inside.append(gpu.tape is not None)
        return call(*args, **kwargs)

    _, left_out = logged(
        [("cuda_graphs", {"parts": parts})], watch=lambda hub: hub.model_called.subscribe_innermost(looking)
    )
    assert not left_out and gpu.captures == captures
    assert inside == [False] * (STEPS + STEPS // 4)


def test_the_memory_of_graphs_counts_at_the_peak(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.seams.keras import control as of_keras
    from overdrive.seams.torch.control import peak_memory

    def between(session: Any, step: int) -> None:
        if step == 10:
            torch.empty(5000, device="cuda")

    logged([], "inputs", between=between)
    plain = gpu.peak_held
    logged([("cuda_graphs", {"parts": "model"})], "inputs", between=between)
    assert sum(gpu.pools.values()) > 1000
    assert peak_memory() == gpu.peak_held >= plain + sum(gpu.pools.values())
    assert gpu.peak < gpu.peak_held  # what tensors use tells less
    monkeypatch.setattr(of_keras, "backend", lambda: "torch")
    assert of_keras.peak_memory() == gpu.peak_held


def test_what_lies_in_main_memory_is_no_memory_of_the_gpu(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    from overdrive.seams.torch import control

    monkeypatch.setattr(control, "_set_aside", {})
    peaks = [1000]
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda *_: peaks[0])
    assert control.peak_memory() == 1000
    control.set_aside(0, 8000)
    peaks[0] = 9000
    assert control.peak_memory() == 1000
    peaks[0] = 9500
    assert control.peak_memory() == 1500


def test_a_step_that_is_carried_out_takes_no_second_copy_of_the_state(gpu: FakeGpu) -> None:
    def peak(on: bool) -> int:
        gpu.sweep()
        gpu.peak = gpu.allocated
        with Session([("cuda_graphs", {"parts": "optimizer"})] if on else []):
            model = nn.Linear(200, 200, bias=False).cuda()
            optimizer = torch.optim.Adam(model.parameters(), fused=True)
            for _ in range(5):
                model(torch.ones(1, 200, device="cuda")).sum().backward()
                optimizer.step()
        return gpu.peak

    size = 4 * 200 * 200
    peak(False)
    plain = peak(False)
    assert peak(True) - plain < 2.5 * size  # gradients, copied; not three more copies of all


@pytest.mark.parametrize("parts", ["optimizer", "all"])
def test_counts_of_a_refused_optimizer_are_back_on_the_cpu(gpu: FakeGpu, parts: str) -> None:
    """Where the model's part stays, so does the technique, whose end would bring them back."""
    with Session([("cuda_graphs", {"parts": parts})]) as session:
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(14):
            optimizer.param_groups[0]["betas"] = (0.9, 0.9 + step / 1000)
            model(torch.ones(1, 4, device="cuda")).sum().backward()
            if step == 5:
                assert all(each["step"].is_cuda for each in optimizer.state.values())
            gpu.synced.clear()
            optimizer.step()
        left_out = session.seams.left_out.get("cuda_graphs", "")
        assert not any(each["step"].is_cuda for each in optimizer.state.values()) and not gpu.synced
    assert "again and again" in left_out if parts == "optimizer" else not left_out and gpu.replays
