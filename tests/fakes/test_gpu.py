"""The stand-in for a GPU forbids what a GPU forbids, and finds races and stale reads that were put there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.fakes.cuda import fake_cuda
from tests.fakes.gpu import FakeGpu
from tests.fakes.races import Race


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    with fake_cuda() as gpu:
        yield gpu


def recorded(work: Any) -> Any:
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        try:
            made = work()
        finally:
            graph.capture_end()
    return graph, made


def test_tensors_say_where_they_are(gpu: FakeGpu) -> None:
    x = torch.ones(3).cuda()
    assert x.device.type == "cuda" and x.is_cuda and not x.is_cpu and (x * 2).is_cuda and x[1:].is_cuda
    assert x.cpu().device.type == "cpu" and torch.zeros(2, device="cuda").is_cuda and torch.zeros_like(x).is_cuda
    model = nn.Linear(3, 2).cuda()
    model(x).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.is_cuda and model.weight.is_cuda
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)
    with pytest.raises(TypeError, match="to numpy"):
        x.numpy()


def test_function_modes_are_told_what_pytorch_tells_them(gpu: FakeGpu) -> None:
    """A copy is one call. What carries it out here is none, or `device` would send that to the GPU as well."""
    told: list[str] = []

    class Listening(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            told.append(func.__name__)
            return func(*args, **(kwargs or {}))

    here = torch.ones(3)
    with Listening():
        there = here.to("cuda")
        back = there.cpu()
        here.copy_(there)
        made = torch.zeros(3, device="cuda")
        seen = there.tolist()
    assert told == ["to", "cpu", "copy_", "zeros", "tolist"]
    assert there.is_cuda and made.is_cuda and seen == back.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: float(x.sum()),
        lambda x: bool(x.sum() > 0),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x),
        lambda x: torch.ones(4).cuda(),
        lambda x: x.copy_(torch.ones(4)),
        lambda x: torch.optim.SGD([x], lr=1.0).step,
    ],
)
def test_what_needs_a_value_on_the_host_waits(gpu: FakeGpu, read: Any) -> None:
    x = torch.ones(4, device="cuda")
    gpu.synced.clear()
    found = read(x)
    assert bool(gpu.synced) is not callable(found)


def test_a_replay_calls_no_python(gpu: FakeGpu) -> None:
    calls: list[int] = []
    x, y = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")

    def work() -> torch.Tensor:
        calls.append(1)
        y.add_(x)
        return x * 2

    graph, made = recorded(work)
    assert y.tolist() == [0.0] * 3 and made.tolist() != [2.0] * 3  # nothing was carried out, and nothing is there
    graph.replay()
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [6.0] * 3 and made.tolist() == [10.0] * 3 and calls == [1]


def test_a_replay_draws_anew_and_a_recording_draws_nothing(gpu: FakeGpu) -> None:
    host, there = torch.get_rng_state(), torch.cuda.get_rng_state()
    x = torch.ones(50, device="cuda")
    graph, made = recorded(lambda: nn.functional.dropout(x))
    assert torch.equal(torch.cuda.get_rng_state(), there)
    graph.replay()
    first = made.tolist()
    graph.replay()
    assert made.tolist() != first and torch.equal(torch.get_rng_state(), host)


def test_a_replayed_backward_pass_is_the_programs(gpu: FakeGpu) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda(), torch.randn(5, 4).cuda()
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    means = model[1].running_mean.clone()
    graph, made = recorded(lambda: torch.autograd.grad(model(x).square().sum(), list(model.parameters())))
    model[1].running_mean.zero_()
    graph.replay()
    assert all(torch.allclose(one.cpu(), other.cpu()) for one, other in zip(made, expected, strict=True))
    assert torch.allclose(model[1].running_mean.cpu(), means.cpu())


# -- seeded defects, each of which it must catch ------------------------------------------------------


def _work_on_two_streams(gpu: FakeGpu) -> None:
    x = torch.ones(3, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        x.mul_(2)


def _read_of_what_another_stream_writes(gpu: FakeGpu) -> None:
    x, stream = torch.ones(3, device="cuda"), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x.mul_(2)
    x.sum()


def _event_recorded_too_early(gpu: FakeGpu) -> None:
    x, stream = torch.ones(3, device="cuda"), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    event = stream.record_event()
    with torch.cuda.stream(stream):
        x.mul_(2)
    torch.cuda.current_stream().wait_event(event)
    x.sum()


def _other_event(gpu: FakeGpu) -> None:
    x, one, other = torch.ones(3, device="cuda"), torch.cuda.Stream(), torch.cuda.Stream()
    one.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(one):
        x.mul_(2)
    torch.cuda.current_stream().wait_event(other.record_event())
    x.sum()


def _batch_overwritten_while_it_is_copied(gpu: FakeGpu) -> None:
    batch = torch.ones(3).pin_memory()
    batch.cuda(non_blocking=True)
    batch.fill_(2)


def _result_read_before_it_arrived(gpu: FakeGpu) -> None:
    here = torch.empty(3, pin_memory=True)
    here.copy_(torch.ones(3, device="cuda"), non_blocking=True)
    here.tolist() and here.sum()


def _result_read_after_an_event_that_was_not_waited_for(gpu: FakeGpu) -> None:
    here = torch.empty(3, pin_memory=True)
    here.copy_(torch.ones(3, device="cuda"), non_blocking=True)
    event = torch.cuda.current_stream().record_event()
    event.query()
    here.sum()


def _copy_not_waited_for(gpu: FakeGpu) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        there = torch.ones(3).pin_memory().cuda(non_blocking=True)
    there.sum()


def _memory_of_another_stream_freed(gpu: FakeGpu) -> None:
    stream = torch.cuda.Stream()
    x = torch.ones(3, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x.sum()
    del x
    gpu.sweep()


def _replay_beside_its_input(gpu: FakeGpu) -> None:
    x = torch.ones(3, device="cuda")
    graph, _ = recorded(lambda: x * 2)
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.replay()


def _input_overwritten_beside_a_replay(gpu: FakeGpu) -> None:
    x, stream = torch.ones(3, device="cuda"), torch.cuda.Stream()
    graph, _ = recorded(lambda: x * 2)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.replay()
    x.fill_(3)


def _overwritten_while_another_stream_reads(gpu: FakeGpu) -> None:
    x, stream = torch.ones(3, device="cuda"), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x.sum()
    x.mul_(2)


def _gradient_used_beside_what_makes_it(gpu: FakeGpu) -> None:
    weight, stream = torch.ones(3, device="cuda").requires_grad_(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    (weight * 2).sum().backward()
    with torch.cuda.stream(stream), torch.no_grad():
        weight.grad.mul_(0.5)  # type: ignore[union-attr]


def _place_in_a_ring_taken_twice(gpu: FakeGpu) -> None:
    place, one, other = torch.empty(1, pin_memory=True), torch.cuda.Stream(), torch.cuda.Stream()
    losses = [torch.ones(1, device="cuda") for _ in range(2)]
    for stream, loss in zip((one, other), losses, strict=True):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            place.copy_(loss, non_blocking=True)


def _list_of_what_has_not_arrived(gpu: FakeGpu) -> None:
    here = torch.empty(3, pin_memory=True)
    here.copy_(torch.ones(3, device="cuda"), non_blocking=True)
    here.tolist()


def _array_of_what_has_not_arrived(gpu: FakeGpu) -> None:
    here = torch.empty(3, pin_memory=True)
    here.copy_(torch.ones(3, device="cuda"), non_blocking=True)
    here.numpy()


def _result_of_a_replay_read_elsewhere(gpu: FakeGpu) -> None:
    x = torch.ones(3, device="cuda")
    graph, made = recorded(lambda: x * 2)
    graph.replay()
    with torch.cuda.stream(torch.cuda.Stream()):
        made.sum()


def _next_replay_while_the_last_ones_result_is_read(gpu: FakeGpu) -> None:
    x, stream = torch.ones(3, device="cuda"), torch.cuda.Stream()
    graph, made = recorded(lambda: x * 2)
    graph.replay()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        made.sum()
    graph.replay()


RACES = [
    _work_on_two_streams,
    _read_of_what_another_stream_writes,
    _event_recorded_too_early,
    _other_event,
    _batch_overwritten_while_it_is_copied,
    _result_read_before_it_arrived,
    _result_read_after_an_event_that_was_not_waited_for,
    _copy_not_waited_for,
    _memory_of_another_stream_freed,
    _replay_beside_its_input,
    _input_overwritten_beside_a_replay,
    _overwritten_while_another_stream_reads,
    _gradient_used_beside_what_makes_it,
    _place_in_a_ring_taken_twice,
    _list_of_what_has_not_arrived,
    _array_of_what_has_not_arrived,
    _result_of_a_replay_read_elsewhere,
    _next_replay_while_the_last_ones_result_is_read,
]


@pytest.mark.parametrize("defect", RACES, ids=lambda each: each.__name__.strip("_"))
def test_races_are_found(gpu: FakeGpu, defect: Any) -> None:
    with pytest.raises(Race):
        defect(gpu)
    assert gpu.order.found


def test_what_is_kept_in_order_is_no_race(gpu: FakeGpu) -> None:
    stream, batch = torch.cuda.Stream(), torch.ones(3).pin_memory()
    for _ in range(3):
        with torch.cuda.stream(stream):
            there = batch.cuda(non_blocking=True)
            arrived = stream.record_event()
        torch.cuda.current_stream().wait_event(arrived)
        there.record_stream(torch.cuda.current_stream())
        there.sum().item()
        del there
        arrived.synchronize()
        batch.add_(1)
    assert not gpu.order.found


def _reads(gpu: FakeGpu) -> Any:
    return recorded(lambda: torch.ones(1, device="cuda") * torch.ones(2, device="cuda").sum().item())


def _synchronizes(gpu: FakeGpu) -> Any:
    return recorded(torch.cuda.synchronize)


def _copies_from_pageable_memory(gpu: FakeGpu) -> Any:
    x = torch.ones(3, device="cuda")
    return recorded(lambda: x.copy_(torch.ones(3), non_blocking=True))


def _counts(gpu: FakeGpu) -> Any:
    x = torch.ones(3, device="cuda")
    return recorded(lambda: x[x > 0])


def _on_the_default_stream(gpu: FakeGpu) -> Any:
    torch.cuda.CUDAGraph().capture_begin()  # type: ignore[no-untyped-call]


def _waits_for_what_is_not_captured(gpu: FakeGpu) -> Any:
    event = torch.cuda.current_stream().record_event()
    return recorded(lambda: torch.cuda.current_stream().wait_event(event))


def _stale_node(gpu: FakeGpu) -> Any:
    weight = torch.ones(3, device="cuda").requires_grad_()
    kept = weight * 2  # its graph keeps the leaf's node, which was made on the default stream
    torch.autograd.grad(kept.sum(), [weight], retain_graph=True)
    return recorded(lambda: torch.autograd.grad((weight * 3).sum(), [weight]))


def _reads_the_generator(gpu: FakeGpu) -> Any:
    return recorded(torch.cuda.get_rng_state)


@pytest.mark.parametrize(
    "work",
    [
        _reads,
        _synchronizes,
        _copies_from_pageable_memory,
        _counts,
        _on_the_default_stream,
        _waits_for_what_is_not_captured,
        _stale_node,
        _reads_the_generator,
    ],
    ids=lambda each: each.__name__.strip("_"),
)
def test_a_recording_forbids(gpu: FakeGpu, work: Any) -> None:
    with pytest.raises(RuntimeError):
        work(gpu)


def test_a_graph_that_reads_memory_that_is_gone_is_found(gpu: FakeGpu) -> None:
    held = [torch.ones(3, device="cuda")]
    graph, _ = recorded(lambda: held[0] * 2)
    held.clear()
    with pytest.raises(RuntimeError, match="freed"):
        graph.replay()


def test_a_failed_recording_breaks_the_generator_until_it_is_given_a_state(gpu: FakeGpu) -> None:
    x, spare = torch.ones(3, device="cuda"), torch.cuda.default_generators[0].clone_state()
    with pytest.raises(RuntimeError):
        recorded(lambda: x.sum().item())
    with pytest.raises(RuntimeError, match="Offset"):
        nn.functional.dropout(x)
    torch.cuda.default_generators[0].graphsafe_set_state(spare)
    nn.functional.dropout(x)


@pytest.mark.fault(6)
def test_memory_runs_out_and_one_process_may_have_it_alone() -> None:
    with fake_cuda(memory=1000) as gpu:
        kept = torch.ones(200, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            kept.clone()
        del kept
        torch.ones(200, device="cuda")
        assert gpu.peak == 800
        gpu.busy = True
        with pytest.raises(RuntimeError, match="busy or unavailable"):
            torch.ones(1, device="cuda")
