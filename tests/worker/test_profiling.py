"""What a recording comes to, on recordings made by hand; and the seams' timeline under a clock of our own."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from overdrive.seams.hub import Seams
from overdrive.worker.profiling import timeline as timelines
from overdrive.worker.profiling.exposed import Work, exposed
from overdrive.worker.profiling.flame import flame_tree
from overdrive.worker.profiling.keras import events
from overdrive.worker.profiling.keras import moments as keras_moments
from overdrive.worker.profiling.keras.on_jax import counting as hlo_counting
from overdrive.worker.profiling.keras.on_jax import hlo
from overdrive.worker.profiling.keras.on_jax.purposes import purposes
from overdrive.worker.profiling.keras.on_tensorflow import counting
from overdrive.worker.profiling.memory import categories, over_the_step
from overdrive.worker.profiling.timeline import PHASE, Timeline
from overdrive.worker.profiling.torch.blocks import TimedBlocks
from overdrive.worker.profiling.torch.phases import Phases
from overdrive.worker.profiling.torch.spans import ENGINE, GAP, MODULE, Analysis, Span
from overdrive.worker.session import Session


def mark(name: str, start: int, end: int) -> Span:
    return Span(name, start, end, operator=False)


def test_every_moment_belongs_to_one_operator_or_gap_of_one_phase() -> None:
    second = 1_000_000_000
    spans = [
        mark(PHASE + "forward", 1 * second, 5 * second),
        mark(MODULE + "Net.conv", 1 * second, 4 * second),
        Span("aten::conv2d", 1 * second, 4 * second, sequence=7),
        Span("aten::convolution", 2 * second, 4 * second, sequence=7, shapes="1x3"),
        Span("aten::mkldnn_convolution", 2 * second, 3 * second),
        mark(PHASE + "backward", 6 * second, 9 * second),
        Span("autograd::engine::evaluate_function: C", 6 * second, 8 * second, sequence=7, backward=True),
        Span("aten::convolution_backward", 7 * second, 8 * second),
        Span("aten::item", 9 * second, 10 * second),
    ]
    found = Analysis(spans, {"aten::convolution", "aten::convolution_backward"}, (0, 11 * second))
    seconds = {key: cell.seconds for key, cell in found.cells.items()}
    assert seconds == {
        ("between", "", GAP): 3.0,  # 0-1, 5-6, 10-11
        ("forward", "Net.conv", "aten::conv2d"): 1.0,
        ("forward", "Net.conv", "aten::convolution"): 2.0,
        ("forward", "", GAP): 1.0,
        ("backward", "Net.conv", ENGINE): 1.0,
        ("backward", "Net.conv", "aten::convolution_backward"): 1.0,
        ("backward", "", GAP): 1.0,
        ("between", "", "aten::item"): 1.0,
    }
    convolution = found.cells[("forward", "Net.conv", "aten::convolution")]
    assert (convolution.calls, convolution.shapes) == (1, "1x3")
    assert convolution.kernels == {"aten::mkldnn_convolution": 1.0, "aten::convolution": 1.0}
    phases = found.phases()
    assert phases["between"] == {"operators": 0.0, "reads": 1.0, "gap": 3.0}
    assert sum(sum(each.values()) for each in phases.values()) == 11.0
    tree = flame_tree(found.flame, 1)
    assert tree["seconds"] == 11.0
    assert {each["name"]: each["seconds"] for each in tree["children"]} == {
        "between": 4.0,
        "forward": 4.0,
        "backward": 3.0,
    }


def test_gradients_asked_for_outside_the_backward_seam_are_backward() -> None:
    found = Analysis([Span("autograd::engine::x", 0, 10, backward=True)], (), (0, 20))
    assert {phase for phase, _, operator in found.cells if operator} == {"backward"}


def test_exposed_parts_add_up_and_work_hides_what_the_thread_does_meanwhile() -> None:
    host = [(0, 40, "data", False), (40, 60, "forward", True), (60, 100, "between", False)]
    work = [Work(50, 70, "forward"), Work(60, 80, "backward"), Work(90, 95, "copy")]
    parts, idle = exposed(work, host, (0, 100))
    nano = {part: round(seconds * 1e9) for part, seconds in parts.items()}
    # 40-50 forward launches; 80-90 and 95-100 nothing runs
    assert nano == {"data": 40, "python": 10 + 10 + 5, "forward": 20, "backward": 10, "copy": 5}
    assert round(idle * 1e9) == 65
    assert sum(nano.values()) == 100


def test_memory_by_when_it_was_made_and_how_long_it_lived() -> None:
    phases = [(0, 10, "data"), (10, 30, "forward"), (30, 50, "backward"), (50, 60, "optimizer")]
    allocations = [
        (5, 1, 100),  # a batch
        (12, 2, 5000),  # an activation, freed in backward
        (13, 3, 70),  # gone within forward
        (14, 3, -70),
        (35, 4, 3000),  # a gradient
        (40, 2, -5000),
        (55, 5, 2000),  # what the optimizer keeps
        (58, 9, -3000),  # an old gradient, known by its address
    ]
    changes = categories(allocations, phases, (0, 60), {9: "gradients"})
    assert changes["batches"] == [(5, 100)]
    assert changes["activations"] == [(12, 5000), (40, -5000)]
    assert changes["temporary"] == [(13, 70), (14, -70)]
    assert sorted(changes["gradients"]) == [(35, 3000), (58, -3000)]
    assert changes["optimizer state"] == [(55, 2000)]
    told = over_the_step(changes, {"parameters": 4000, "gradients": 3000}, (0, 60))
    assert told["peak"] == {"parameters": 4000, "gradients": 6000, "activations": 5000}
    assert told["peak_at"] == pytest.approx(35 / 60)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_phases_add_up_and_an_inner_one_takes_its_time_from_the_outer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seams = Clock(), Seams()
    monkeypatch.setattr(timelines, "time", clock)
    timeline = Timeline()
    Phases(timeline, inference=False)(seams)

    def passes(seconds: float) -> None:
        clock.now += seconds

    timeline.start()
    passes(1)
    seams.batch_awaited.run(None, passes, 2)
    with pytest.raises(StopIteration):
        seams.batch_awaited.run(None, lambda: next(iter(())))  # an epoch's end leaves no phase open
    seams.step_begins.publish(None)
    passes(1)

    def closure(*_: Any) -> None:
        seams.model_called.run(None, passes, 3)
        seams.loss_backward.apply(None)
        passes(4)  # a backward pass that raises never says that it is done

    closure()
    seams.step_ends.publish(None)
    passes(5)
    timeline.stop()
    seconds = {phase: amount for phase, amount in timeline.seconds.items() if amount}
    assert seconds == {"between": 6.0, "data": 2.0, "optimizer": 1.0, "forward": 3.0, "backward": 4.0}
    assert timeline.total == sum(seconds.values()) == 16.0
    looks = {phase: times for phase, times in timeline.looks.items() if times}
    assert looks == {"between": 4, "data": 2, "optimizer": 2, "forward": 1, "backward": 1}
    seams.batch_awaited.run(None, passes, 7)
    assert timeline.total == 16.0  # it no longer counts

    timeline.start()
    seams.step_begins.publish(None)
    passes(3)
    timeline.start_again()  # the first three seconds were for warming up; the optimizer goes on
    passes(2)
    timeline.stop()
    assert timeline.total == sum(timeline.seconds.values()) == 18.0 and timeline.seconds["optimizer"] == 3.0
    assert sum(timeline.looks.values()) == 11  # and the lead's are not among them


def test_parts_are_timed_in_some_blocks_and_nothing_is_in_the_way_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(timelines, "time", clock)

    def passes(seconds: float) -> None:
        clock.now += seconds

    class Transform(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            passes(1)
            return x

    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            passes(10)
            return super().forward(x)

    class Sgd(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            passes(1000)

    data = [torch.ones(3)] * 8
    loader = DataLoader(data, batch_size=2, collate_fn=lambda items: torch.stack([Transform()(each) for each in items]))
    made: list[TimedBlocks] = []
    plain = nn.Module.__call__, DataLoader.__iter__, torch.autograd.backward
    seen = []

    def observe(seams: Seams) -> None:
        steps = iter((made[0].start, made[0].stop, made[0].start, made[0].stop))

        def between() -> None:
            next(steps)()
            seen.append((nn.Module.__call__, DataLoader.__iter__, torch.autograd.backward) == plain)

        seams.between_steps.subscribe(between)

    timeline = Timeline()
    with Session((), [lambda seams: made.append(TimedBlocks(timeline, seams)), observe]):
        net = nn.Sequential(Layer(3, 3), Layer(3, 1))
        optimizer = Sgd(net.parameters(), lr=0.1)
        for batch in loader:
            loss = net(batch).sum()
            loss.register_hook(lambda gradient: passes(100))
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                net(batch)
    assert seen == [False, True, False, True]
    seconds = {phase: amount for phase, amount in timeline.seconds.items() if amount}
    # Of the second and the fourth step, from the end of the step before.
    assert seconds == {"data": 4.0, "forward": 40.0, "evaluation": 40.0, "backward": 200.0, "optimizer": 2000.0}
    assert timeline.total == sum(seconds.values())
    assert (nn.Module.__call__, DataLoader.__iter__, torch.autograd.backward) == plain


def test_operators_of_a_graph_that_run_at_once_share_the_moment() -> None:
    second = 1_000_000_000
    spans = [
        keras_moments.OperatorSpan(1 * second, 3 * second, 1, "Conv2D", "forward", "net.conv"),
        keras_moments.OperatorSpan(2 * second, 4 * second, 2, "MatMul", "backward", "net.fc"),
        keras_moments.OperatorSpan(0, 2 * second, 3, "IteratorGetNext", "data"),  # waits while others work
        keras_moments.OperatorSpan(6 * second, 7 * second, 1, "Cast", "graph"),
    ]
    found = keras_moments.moments(spans, [(0, 5 * second, "graph")], (0, 8 * second))
    assert found.phases == {
        "graph": {"data": 1.0, "forward": 1.5, "backward": 1.5, "gap": 1.0},
        "between": {"operators": 1.0, "gap": 2.0},
    }
    assert found.cells["forward", "net.conv", "Conv2D"].seconds == 1.5
    assert found.cells["forward", "net.conv", "Conv2D"].calls == 1
    assert flame_tree(found.flame, 1)["seconds"] == 8.0


def test_operations_of_tensorflows_operators_by_their_shapes() -> None:
    def flops(operator: str, *given: tuple[int, ...], made: tuple[int, ...] = (), flipped: bool = False) -> float:
        going_in = tuple(counting.Tensor("float32", shape) for shape in given)
        traced = counting.Traced(operator, going_in, (counting.Tensor("float32", made),), (flipped, False))
        counted = counting.counted(traced)
        return counted.flops if counted.known else -1.0

    assert counting.plain("_FusedMatMul") == counting.plain("_MklNativeFusedMatMul") == "MatMul"
    assert flops("MatMul", (64, 10), (10, 5)) == flops("MatMul", (10, 64), (10, 5), flipped=True) == 2 * 64 * 10 * 5
    assert flops("BatchMatMulV2", (4, 8, 16), (4, 16, 2)) == 2 * 4 * 8 * 16 * 2
    assert flops("Conv2D", (1, 7, 7, 2), (3, 3, 2, 8), made=(1, 5, 5, 8)) == 2 * 200 * 3 * 3 * 2
    assert flops("Conv2DBackpropInput", (4,), (3, 3, 2, 8), (1, 5, 5, 8)) == 2 * 200 * 3 * 3 * 2
    assert flops("Conv2DBackpropFilter", (1, 7, 7, 2), (4,), (1, 5, 5, 8), made=(3, 3, 2, 8)) == 2 * 200 * 3 * 3 * 2
    assert flops("Mul", (64, 10), ()) == 640
    assert flops("Einsum", (64, 10), (10, 5)) == -1.0  # not counted is not guessed
    assert flops("Reshape", (64, 10), (2,)) == 0
    assert counting.count("MatMul", None, 64) == counting.Count(known=False)
    assert counting.Tensor("float16", (2, 3), 2).bytes == 12 and counting.Tensor("resource", ()).bytes == 0


def test_a_call_that_compiled_anew_is_no_share_of_a_step() -> None:
    calls = [(at, at + 10, "graph") for at in range(0, 60, 20)]
    found = events.steady([*calls, (60, 160, "graph"), (170, 270, "data")])
    assert found == [*calls, (60, 160, events.INTERRUPTED), (170, 270, "data")]
    assert events.steady([(0, 9, "data")]) == [(0, 9, "data")]


COMPILED = """HloModule jit_train_step, is_scheduled=true

%fused (p.1: f32[4,8], p.2: f32[8,3]) -> f32[4,3] {
  %p.1 = f32[4,8]{1,0} parameter(0)
  %p.2 = f32[8,3]{1,0} parameter(1)
  %dot.1 = f32[4,3]{1,0} dot(%p.1, %p.2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %tanh.1 = f32[4,3]{1,0} tanh(%dot.1), metadata={op_name="jit(train_step)/jvp(dense_1)/tanh"}
}

ENTRY %main (x: f32[2,8,8,4], k: f32[3,3,2,6], w: f32[8,3]) -> (f32[8,3]) {
  %x = f32[2,8,8,4]{3,2,1,0} parameter(0), metadata={op_name="data[0]"}
  %k = f32[3,3,2,6]{3,2,1,0} parameter(1)
  %w = f32[8,3]{1,0} parameter(2)
  %copy.1 = f32[3,3,2,6]{3,2,1,0} copy(%k)
  %copy.2 = f32[3,3,2,6]{3,2,1,0} copy(%copy.1)
  %conv = bf16[2,4,4,6]{3,2,1,0:T(8,128)} convolution(%x, %copy.2), \
window={size=3x3 stride=2x2 pad=0_1x0_1}, dim_labels=b01f_01io->b01f, feature_group_count=2, \
metadata={op_name="jit(train_step)/jvp(net)/conv/conv_general_dilated"}
  %fusion.1 = f32[4,3]{1,0} fusion(%conv, %w), kind=kLoop, calls=%fused
  %loss = (f32[], f32[4,3]{1,0}) custom-call(%fusion.1), custom_call_target="__onednn$matmul", \
metadata={op_name="jit(train_step)/reduce"}
  %part = f32[4,3]{1,0} get-tuple-element(%loss), index=1
  %back = f32[8,3]{1,0} copy(%part), \
metadata={op_name="jit(train_step)/transpose(jvp(dense_1))/dot_general"}
  %turned = f32[8,3]{1,0} transpose(%back), dimensions={0,1}
  ROOT %step = f32[8,3]{1,0} subtract(%w, /*index=1*/%turned), metadata={op_name="jit(train_step)/adam/sub"}
}
"""


def test_what_xla_compiled_is_told_apart_by_the_names_it_kept() -> None:
    module = hlo.parse(COMPILED)
    assert module.instructions["conv"].made == (hlo.Shape("bf16", (2, 4, 4, 6)),)
    assert module.instructions["step"].operands == ("w", "turned")
    found = purposes(module, {"net", "conv", "dense"}, {"adam"})
    assert found["conv"] == ("forward", "net.conv") and found["back"] == ("backward", "dense")
    assert found["copy.1"] == found["copy.2"] == found["conv"]  # for what first uses it
    assert found["fusion.1"] == ("forward", "dense")  # by what it was made of
    assert found["turned"] == ("backward", "dense")  # by what it was computed from
    assert found["loss"] == ("forward", "") and found["step"] == ("optimizer", "")


def test_operations_of_what_xla_compiled() -> None:
    module = hlo.parse(COMPILED)
    counted = {name: hlo_counting.count(module, each) for name, each in module.instructions.items()}
    # 4 x 4 places, of which those at the end meet 2 of the kernel's 3 taps: 3 + 3 + 3 + 2 in each dimension.
    assert counted["conv"].flops == 2 * 2 * 6 * 2 * 11 * 11 and counted["conv"].format == "bfloat16"
    assert counted["conv"].bytes == 4 * (2 * 8 * 8 * 4 + 3 * 3 * 2 * 6) + 2 * (2 * 4 * 4 * 6)
    assert counted["fusion.1"].flops == 2 * 4 * 8 * 3 + 4 * 3
    assert counted["step"].flops == 24 and counted["turned"].flops == 0 and counted["turned"].bytes == 2 * 4 * 24
    assert not counted["loss"].known  # not counted is not guessed
    assert counted["part"].bytes == 0
    assert hlo_counting.product(module, module.instructions["fusion.1"]) == "dot"


def test_a_recurrent_layer_is_counted_as_its_products_are() -> None:
    from overdrive.worker.profiling.torch.counting import Counting

    def counted(model: torch.nn.Module, given: torch.Tensor) -> tuple[float, set[str]]:
        with Counting(lambda: ("forward", "")) as mode:
            model(given)[0].sum().backward()
        return sum(cell[1] for (_, _, name), cell in mode.cells.items() if "rnn" in name), mode.unknown

    torch.manual_seed(0)
    amount, unknown = counted(torch.nn.LSTM(5, 7, num_layers=2), torch.randn(3, 4, 5, requires_grad=True))
    forward = 2 * 3 * 4 * (4 * 7 * 5 + 3 * 4 * 7 * 7)  # the second layer's input is as wide as its output
    assert (amount, unknown) == (3 * forward, set())


def test_two_models_of_a_class_are_told_apart_and_alike_in_every_recording() -> None:
    from overdrive.worker.profiling.torch.modules import ModuleNames, ModuleTrack

    names, seen = ModuleNames(), []
    one, other = (torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2))
    for models in ((one, other), (other, one)):
        track = ModuleTrack(names, seen.append)
        track.enter()
        try:
            for model in models:
                torch.nn.MSELoss()(model(torch.zeros(1, 2)), torch.zeros(1, 2))
        finally:
            track.leave()
    first, second = ["Sequential", "Sequential.0", "MSELoss"], ["Sequential (2)", "Sequential (2).0", "MSELoss"]
    assert seen == [*first, *second, *second, *first]


def test_a_module_that_is_put_anew_around_the_same_model_in_each_step_is_one_model() -> None:
    """As torchdiffeq wraps the function that it integrates, in each call."""
    from overdrive.worker.profiling.torch.modules import ModuleNames, ModuleTrack

    seen: list[str] = []
    track, inner = ModuleTrack(ModuleNames(), seen.append), torch.nn.Linear(2, 2)
    track.enter()
    try:
        for _ in range(3):
            torch.nn.Sequential(inner)(torch.zeros(1, 2))
    finally:
        track.leave()
    assert seen == ["Sequential", "Sequential.0"] * 3


def test_checks_that_the_program_asked_for_are_seen_where_it_sends_its_loss_backward() -> None:
    from overdrive.insight.profile.edits import edits
    from overdrive.worker.profiling.timeline import Timeline
    from overdrive.worker.profiling.torch.observing import Observing

    observing = Observing(Timeline())
    loss = torch.ones(())
    observing._sent_backward(loss)
    assert observing.report()["checks"] == []
    with torch.autograd.set_detect_anomaly(True):
        observing._sent_backward(loss)
        observing._sent_backward(loss)
    found = edits(observing.report(), 1.0, None)
    assert [(each.kind, each.source) for each in found] == [
        ("checks every gradient", "observing._sent_backward(loss)"),
    ]
    torch.use_deterministic_algorithms(True)
    try:
        observing._sent_backward(loss)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [each["check"] for each in observing.report()["checks"]] == ["anomaly", "deterministic"]


def test_a_number_of_the_cuda_runtime_is_no_operators() -> None:
    """CUPTI numbers its own calls: one may have the number of an operator that launched something else."""
    from overdrive.worker.profiling.torch.kineto import _span

    class Event:
        def __init__(self, name: str, start: int, end: int, number: int, linked: int = 0) -> None:
            self._told = {"name": name, "start_ns": start, "end_ns": end, "correlation_id": number}
            self._told |= {"linked_correlation_id": linked, "scope": 0, "sequence_nr": -1, "shapes": []}

        def is_user_annotation(self) -> bool:
            return False

        def __getattr__(self, name: str) -> Any:
            return lambda: self._told[name]

    events = [
        Event("aten::mm", 0, 40, 3),
        Event("aten::relu", 50, 90, 7),
        Event("cudaLaunchKernel", 60, 70, 3, linked=7),  # relu's launch, numbered as the product is
    ]
    found = Analysis([_span(event) for event in events], {"aten::mm", "aten::relu"}, (0, 100))
    assert found.launched == {3: ("between", "", "aten::mm"), 7: ("between", "", "aten::relu")}


def test_a_name_that_is_no_text_costs_no_recording() -> None:
    """Of a public recommender, PyTorch 2.13 named four Python functions of 76,000 by bytes of something else."""
    from overdrive.worker.profiling.torch.kineto import Recording

    def garbage() -> str:
        return b"\xdb\x04".decode()

    broken = SimpleNamespace(name=garbage, is_python_function=lambda: True)
    marked = SimpleNamespace(name=lambda: PHASE + "forward", start_ns=lambda: 1, end_ns=lambda: 2)
    recording: Any = SimpleNamespace(_kineto=lambda: [broken, marked])
    assert Recording.phase_times(recording) == [(1, 2, "forward")]
    assert Recording(Timeline(), whole=True, modules=None)._profile.acc_events is False


def test_a_server_that_answers_in_a_thread_of_its_own_has_its_calls_timed() -> None:
    """FastAPI's handlers are called so: all of its model was told as what the program does outside of it."""
    model, timeline = nn.Sequential(nn.Linear(200, 800), nn.Linear(800, 200)).eval(), Timeline()
    rows = torch.ones(500, 200)
    with Session([], [Phases(timeline, inference=True)], inference=True):
        timeline.start()
        for _ in range(3):
            thread = threading.Thread(target=model, args=(rows,))
            thread.start()
            thread.join()
        timeline.stop()
    assert timeline.looks["forward"] == 3 and timeline.phase == "between"
