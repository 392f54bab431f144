"""The parts of a step, its bottleneck, operators under the roof, and advice: from plain data."""

from __future__ import annotations

import random
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from overdrive.core.facts import Facts, LoaderFacts
from overdrive.insight.profile.blocks import BlockPair, ratio, standard_error, undisturbed
from overdrive.insight.profile.bottleneck import bottleneck
from overdrive.insight.profile.edits import edits
from overdrive.insight.profile.measure import _sum_up, enough
from overdrive.insight.profile.measured import Measured
from overdrive.insight.profile.operators import ModuleRow, OperatorRow, Roof, by_module, by_operator, cells, library_of
from overdrive.insight.profile.record import Overhead, Profile
from overdrive.insight.profile.split import data_parts, on_gpu, parts, phases_of, python_by_phase
from overdrive.insight.profile.terminal import shortened, table
from overdrive.insight.profile.wording import module_head, module_rows, notes, rate, size
from overdrive.techniques.catalogue import catalogue

RECORDED = {
    "forward": {"operators": 3.0, "reads": 0.0, "gap": 1.0},
    "between": {"operators": 1.0, "reads": 1.0, "gap": 2.0},
    "backward": {"operators": 4.0, "reads": 0.0, "gap": 0.0},
}


def test_parts_add_up_to_the_phases() -> None:
    phases = {"data": 5.0, "forward": 8.0, "backward": 4.0, "optimizer": 2.0, "between": 4.0}
    found = parts(phases, RECORDED)
    assert sum(found.values()) == pytest.approx(sum(phases.values()))
    assert found["forward"] == 6.0 and found["python"] == 2.0 + 2.0
    assert found["operators"] == 1.0 and found["synchronisation"] == 1.0
    assert found["optimizer"] == 2.0  # it was not recorded: all operators


def test_gradients_that_pass_no_seam_are_taken_from_the_recording() -> None:
    found = parts({"backward": 0.0, "between": 8.0}, RECORDED)
    assert found["backward"] == 4.0 and sum(found.values()) == pytest.approx(8.0)


def test_a_graph_is_told_apart_by_its_recording() -> None:
    recorded = {
        "graph": {"data": 1.0, "forward": 2.0, "backward": 4.0, "optimizer": 1.0, "watching": 1.0, "gap": 1.0},
        "between": {"operators": 0.0, "gap": 3.0},
    }
    phases = {"graph": 20.0, "watching": 2.0, "between": 6.0}
    found = parts(phases, recorded)
    assert sum(found.values()) == pytest.approx(28.0)
    assert (found["data"], found["backward"], found["python"], found["watching"]) == (2.0, 8.0, 2.0 + 6.0, 2.0 + 2.0)
    assert parts({"graph": 3.0}, {})["graph"] == 3.0  # not recorded: not told apart
    assert sum(phases_of(found).values()) == pytest.approx(28.0)


def test_the_bottleneck_of_a_keras_program_names_keras_techniques() -> None:
    facts = Facts(framework="keras", backend="tensorflow", fits=True, cores=2, threads=2)
    told = {"forward": 2.0, "backward": 3.0, "data": 0.5, "between": 4.0, "watching": 5.0}
    found = bottleneck(told, 4.0, facts, {})
    assert found.part == "python" and found.techniques[0] == "steps_per_execution"
    assert found.share == pytest.approx(4.0 / 14.5)
    data = bottleneck({"data": 6.0, "forward": 1.0}, 0.5, facts, {})
    assert "data_pipeline" in data.techniques
    assert all("keras" in catalogue()[name].frameworks for name in (*found.techniques, *data.techniques))
    ours = bottleneck({"forward": 3.0}, 4.0, Facts(), {})
    assert all("torch" in catalogue()[name].frameworks for name in ours.techniques)


def test_parts_on_a_gpu_are_scaled_to_the_step() -> None:
    found = on_gpu({"forward": 1.0, "between": 1.0, "python": 2.0}, 2.0)
    assert found["forward"] == 0.5 and found["operators"] == 0.5 and found["python"] == 1.0


def loader(**more: object) -> LoaderFacts:
    made = {"read": 1e-4, "decode": 2e-4, "transform": 0.0, "collate": 1e-4, "wait": 8e-4}
    return replace(LoaderFacts(8, 0, True, 100, 1.0, seconds_per_item=made), **more)  # type: ignore[arg-type]


def test_the_wait_for_data_by_what_making_it_consists_of() -> None:
    alone = data_parts(8.0, Facts(loaders=(loader(),)))
    assert alone == pytest.approx({"read": 1.0, "decode": 2.0, "transform": 0.0, "collate": 1.0, "loader": 4.0})
    shared = data_parts(8.0, Facts(loaders=(loader(workers=2),)))
    assert shared == pytest.approx({"read": 2.0, "decode": 4.0, "transform": 0.0, "collate": 2.0})
    assert data_parts(8.0, None) == {}


def test_the_bottleneck_names_techniques_that_relieve_it_and_apply() -> None:
    facts = Facts(loaders=(loader(),), step_seconds=1.0, cores=8)
    found = bottleneck({"data": 6.0, "forward": 2.0, "between": 2.0}, 1.0, facts, {"decode": 4.0, "read": 2.0})
    assert found.part == "data" and found.share == 0.6
    assert "Waiting for data is the bottleneck: 60% of a step, most of it decode." in found.sentence
    assert found.techniques and all("data" in catalogue()[name].targets for name in found.techniques)
    assert bottleneck({"forward": 3.0, "between": 2.0}, 4.0, facts, {}).part == "python"


def test_disturbed_pairs_do_not_move_the_ratio() -> None:
    blocks = [BlockPair(1, plain, timed, {}, {}) for plain, timed in ((1.0, 1.02), (1.0, 9.0), (1.0, 1.01), (5.0, 1.0))]
    kept = undisturbed(blocks)
    assert [block.timed for block in kept] == [1.02, 1.01]
    assert ratio(kept) == pytest.approx(1.015)
    assert standard_error(kept) == pytest.approx(0.005, rel=0.02) and standard_error(kept[:1]) == 1.0


def test_what_differs_between_two_processes_is_neither_a_disturbance_nor_an_overhead() -> None:
    """One takes 1.3 times the other's time, and timing the parts costs 2 %; steps differ, too."""
    chance = random.Random(3)
    blocks = []
    for number in range(40):
        which, work = number % 2, 1.0 + number // 2 % 3
        slow, fast = (work * factor * chance.gauss(1, 0.01) for factor in (1.3, 1.0))
        plain, timed = (fast, slow) if which == 0 else (slow, fast)
        blocks.append(BlockPair(1, plain, 1.02 * timed, {}, {}, number // 20, which))
    blocks[7] = replace(blocks[7], timed=blocks[7].timed * 3)
    kept = undisturbed(blocks)
    assert len(kept) == 39
    assert ratio(kept) == pytest.approx(1.02, abs=3 * standard_error(kept))
    assert standard_error(kept) == pytest.approx(0.01 * 2**0.5 / 40**0.5, rel=0.5)


def test_pairs_of_processes_that_disagree_make_the_ratio_less_sure() -> None:
    def blocks(costs: tuple[float, ...]) -> list[BlockPair]:
        every = [(number, which) for number in range(len(costs)) for which in (0, 1, 0, 1)]
        return [BlockPair(1, 1.0, costs[number], {}, {}, number, which) for number, which in every]

    assert standard_error(blocks((1.02,) * 4)) == pytest.approx(0.0, abs=1e-9)
    assert standard_error(blocks((1.00, 1.02, 1.04, 1.06))) == pytest.approx(0.0126, abs=0.001)
    assert ratio(blocks((1.00, 1.02, 1.04, 1.06))) == pytest.approx(1.03, abs=0.001)


def test_a_program_that_ends_soon_is_measured_in_several_processes() -> None:
    sure = [BlockPair(30, 1.0, 1.0, {}, {}, 0, which) for which in (0, 1) * 10]
    assert not enough(sure, 40, 1) and not enough(sure, 40, 3) and enough(sure, 40, 4)
    assert enough(sure, None, 1) and enough([], 40, 8) and not enough([], 40, 7)


def test_a_pair_seen_one_way_round_counts_only_where_there_is_no_other() -> None:
    one_way = [BlockPair(1, 1.0, 1.3, {}, {}, 1, 0) for _ in range(2)]
    both = [BlockPair(1, 1.0, 1.1, {}, {}, 0, which) for which in (0, 1)]
    assert ratio(one_way) == pytest.approx(1.3) and ratio([*one_way, *both]) == pytest.approx(1.1)


def summed_up(phases: tuple[float, float], looks: int) -> Measured:
    """Of steps of 1 ms, in which these two phases were timed; the second of them with as many looks at the clock."""
    blocks = []
    for which in (0, 1, 0, 1):
        timed = {"forward": 2 * phases[0], "between": 2 * phases[1], "copy": 0.0}
        counted = {"forward": 4, "between": 2 * looks, "copy": 0}
        blocks.append(BlockPair(2, 2e-3, sum(timed.values()), timed, counted, 0, which))
    found = Measured()
    _sum_up(found, blocks)
    assert (found.step, found.steps) == (1e-3, 8) and found.timed == pytest.approx(sum(phases))
    return found


def test_what_looking_at_the_clock_costs_is_taken_off_the_parts_by_how_often_it_was_done() -> None:
    found = summed_up((0.7e-3, 0.324e-3), looks=6)
    assert found.phases == pytest.approx({"forward": 0.694e-3, "between": 0.306e-3, "copy": 0.0})


def test_the_sum_of_the_parts_is_not_made_to_fit_beyond_that() -> None:
    found = summed_up((0.8e-3, 0.3e-3), looks=2)  # 5 us a look at the most
    assert found.phases == pytest.approx({"forward": 0.79e-3, "between": 0.29e-3, "copy": 0.0})
    found = summed_up((0.7e-3, 0.28e-3), looks=2)  # the timed side is quicker: by chance
    assert found.phases == pytest.approx({"forward": 0.7e-3, "between": 0.28e-3, "copy": 0.0})


DETAILS = {
    "operators": {
        "blas": "MKL",
        "cells": [
            {
                "phase": phase,
                "module": "Net.fc",
                "operator": "aten::addmm",
                "calls": 2.0,
                "shapes": "8x8",
                "kernel": "aten::addmm",
                "seconds": 2e-3,
                "device_seconds": 1e-3,
            }
            for phase in ("forward", "backward")
        ],
    },
    "counts": {
        "cells": [
            {"phase": "forward", "module": "Net.fc", "operator": "aten::addmm", "calls": 1, "flops": 1e6, "bytes": 1e5}
        ]
    },
}


@pytest.mark.parametrize(
    ("off", "told"),
    [
        (-0.127, "their sum is 12.7% less than the step's time."),
        (0.031, "their sum is 3.1% more than the step's time."),
        (0.0, "their sum is the step's time."),
    ],
)
def test_how_far_the_sum_of_the_parts_is_off_is_told_as_more_or_less(off: float, told: str) -> None:
    assert notes(Profile(parts_off=off))[0].endswith(told)


def test_operators_stand_under_the_roof_by_what_a_call_was_counted_to_do() -> None:
    roof = Roof(flops=4e9, bytes=1e9, cache_bytes=0.0, format="fp32", device="cpu")
    found = cells(DETAILS, "cpu")
    row = next(each for each in by_operator(found, roof) if each.phase == "forward")
    assert row.flops == 2e6 and row.intensity == 10.0 and row.library == "MKL"
    assert row.of_roof == pytest.approx(0.25) and row.bound == "arithmetic"
    backward = next(each for each in by_operator(found, roof) if each.phase == "backward")
    assert backward.of_roof is None  # not counted is not guessed
    (module,) = by_module(found, None)
    assert module.module == "Net.fc" and module.forward == 2e-3 and module.of_roof is None
    assert cells(DETAILS, "cuda")[0]["seconds"] == 1e-3


def test_convolutions_of_a_gpu_stand_under_the_roof_of_tf32() -> None:
    cell = {"phase": "forward", "module": "", "calls": 1, "seconds": 1e-3, "shapes": "", "kernel": "", "library": ""}
    cell |= {"flops": 2e11, "bytes": 1e6, "uncounted": False}
    operators = ("aten::cudnn_convolution", "aten::mm")
    roof = Roof(50e12, 3e12, 0.0, "fp32", "cuda", tf32_flops=400e12)
    rows = by_operator([{**cell, "operator": each} for each in operators], roof)
    assert {row.operator: row.of_roof for row in rows} == {
        operators[0]: pytest.approx(0.5),
        operators[1]: pytest.approx(4.0),  # a program may allow it for products of matrices
    }
    assert not any("too low" in each for each in notes(Profile(roof=roof, operators=tuple(rows))))
    (beyond,) = by_operator([{**cell, "operator": "aten::mm", "seconds": 1e-4}], roof)
    assert any("too low" in each for each in notes(Profile(roof=roof, operators=(beyond,))))


def test_libraries_by_kernel() -> None:
    assert library_of("aten::mkldnn_convolution", "MKL") == "oneDNN"
    assert library_of("sm90_xmma_gemm_bf16", "") == "cuBLAS"
    assert library_of("aten::convolution_backward", "MKL") == ""  # it does not tell


def test_advice_only_of_what_costs_something(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one\n    total += loss.item()\n")
    place = {"file": str(script), "line": 2, "function": "f"}
    reads = [{**place, "call": "item", "calls": 4, "seconds": 4e-3, "on_gpu": 0}]
    (found,) = edits({"steps": 2, "reads": reads}, 0.1, None)
    assert (found.line, found.source, found.seconds) == (2, "total += loss.item()", 2e-3)
    assert not edits({"steps": 2, "reads": reads}, 1.0, None)  # 0.2 % of a step
    gpu = [{**reads[0], "on_gpu": 4}]
    assert "waits until the GPU" in edits({"steps": 2, "reads": gpu}, 1.0, None)[0].seen
    doubles = {"doubles": [{**place, "calls": 2, "call": "from_numpy"}]}
    assert edits(doubles, 1.0, None)[0].kind == "64-bit numbers"
    assert not edits(doubles, 1.0, Facts(parameter_dtypes=("torch.float64",)))
    widths = [{**place, "layer": "Linear(10, 300)", "sizes": "10 to 300", "dtype": "torch.bfloat16"}]
    assert edits({"widths": widths}, 1.0, None)[0].kind == "width that tensor cores pad"
    assert not edits({"widths": [{**widths[0], "dtype": "torch.float32"}]}, 1.0, None)


def test_times_of_a_second_and_more_are_told_in_seconds() -> None:
    evaluations = [{"file": "train.py", "line": 2, "function": "f", "calls": 2, "amount": 3.2}]
    assert edits({"evaluations": evaluations}, 0.1, None)[0].seen.endswith("never used; 1.6 s a call.")


@pytest.mark.parametrize(
    ("call", "said"),
    [("item", "loss.detach()"), ("nonzero", "Keep the shape"), ("equal", "read those of many calls at once")],
)
def test_what_to_do_instead_of_reading_a_tensor_back_is_said_by_what_was_called(call: str, said: str) -> None:
    reads = [{"file": "train.py", "line": 2, "call": call, "calls": 1, "seconds": 1e-3, "on_gpu": 1}]
    assert said in edits({"reads": reads}, 0.1, None)[0].edit


def test_an_operator_whose_arithmetic_nobody_counted_is_under_no_roof() -> None:
    cell = {"phase": "forward", "module": "Net.rnn", "operator": "aten::lstm_cell", "calls": 1, "flops": 0.0}
    details = {
        "operators": {"cells": [{**cell, "seconds": 1e-3, "shapes": "", "kernel": "aten::lstm_cell"}]},
        "counts": {"cells": [{**cell, "bytes": 1e6}], "unknown": ["aten::lstm_cell"]},
    }
    roof = Roof(1e11, 1e10, 0.0, "fp32", "cpu")
    row = by_operator(cells(details, "cpu"), roof)[0]
    assert (row.bound, row.of_roof) == ("", None)
    details["counts"]["unknown"] = []
    assert by_operator(cells(details, "cpu"), roof)[0].bound == "memory"


def test_python_outside_the_model_is_told_with_the_rest() -> None:
    recorded = {"between": {"operators": 1.0, "reads": 0.0, "gap": 3.0}, "forward": {"operators": 3.0, "gap": 1.0}}
    phases = {"forward": 4.0, "backward": 2.0, "between": 8.0}
    within = python_by_phase(phases, recorded)
    assert within == {"forward": 1.0, "backward": 0.0, "between": 6.0}
    assert sum(within.values()) == pytest.approx(parts(phases, recorded)["python"])


def test_the_bottleneck_is_told_as_the_table_has_it() -> None:
    facts = Facts(step_seconds=1.0, convolutions=1)
    phases = {"forward": 2.0, "backward": 6.0, "between": 2.0}
    said = bottleneck(phases, 1.0, facts, {}, {"backward": 1.0})
    assert "60% of a step (50% operators, 10% Python between them)." in said.sentence
    assert "fast_max_pool" in said.techniques
    assert "fast_max_pool" not in bottleneck(phases, 1.0, facts, {}, {}, {"aten::lstm"}).techniques
    assert "fast_max_pool" in bottleneck(phases, 1.0, facts, {}, {}, {"aten::max_pool2d"}).techniques


def test_the_autograd_engines_own_time_is_of_no_library() -> None:
    from overdrive.worker.profiling.torch.spans import ENGINE

    kernel = "autograd::engine::evaluate_function: MkldnnRnnLayerBackward0"
    cell = {"phase": "backward", "module": "", "operator": ENGINE, "calls": 1, "seconds": 1.0, "shapes": ""}
    assert cells({"operators": {"cells": [{**cell, "kernel": kernel}]}}, "cpu")[0]["library"] == ""
    assert library_of("mkldnn_rnn_layer", "") == "oneDNN"


def test_layers_of_one_line_are_one_finding(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("out = net(x)\nmore = other(x)\n")
    place = {"file": str(script), "line": 1, "norm": "BatchNorm2d"}
    lines = [{**place, "layer": "Conv2d(1, 8)"}, {**place, "layer": "Conv2d(8, 8)"}]
    lines.append({**place, "line": 2, "layer": "Linear(4, 4)", "norm": "BatchNorm1d"})
    found = edits({"steps": 3, "norms": lines}, 1.0, None)
    assert [each.line for each in found] == [1, 2]
    assert found[0].seen == "Conv2d(1, 8), Conv2d(8, 8) add a bias, and their results go into BatchNorm2d."
    assert found[1].seen == "Linear(4, 4) adds a bias, and its result goes into BatchNorm1d."


def test_what_was_counted_in_another_module_is_that_operators_all_the_same() -> None:
    place = {"phase": "backward", "operator": "aten::add_"}
    cell = {**place, "seconds": 1e-3, "shapes": "", "kernel": "aten::add_"}
    details = {
        "operators": {"cells": [{**cell, "module": "Net.a", "calls": 6}, {**cell, "module": "Net.b", "calls": 2}]},
        "counts": {"cells": [{**place, "module": "", "calls": 4, "flops": 400.0, "bytes": 4000.0}]},
    }
    rows = by_module(cells(details, "cpu"), None)
    assert {row.module: row.flops for row in rows} == {"Net.a": 600.0, "Net.b": 200.0}
    details["counts"]["cells"].append({**place, "module": "Net.b", "calls": 2, "flops": 2.0, "bytes": 2.0})
    rows = by_module(cells(details, "cpu"), None)
    assert {row.module: row.flops for row in rows} == {"Net.a": 600.0, "Net.b": 2.0}


@pytest.mark.parametrize(
    ("busy", "share", "bound", "said"),
    [
        (0.0, 1.3, "arithmetic", "measured too low, as operators above its arithmetic show"),
        (0.4, 0.9, "memory", "measured too low while others used 40% of the cores:"),
        (0.0, 1.3, "memory", ""),
        (0.02, 1.05, "arithmetic", ""),
    ],
)
def test_a_roof_that_cannot_be_one_is_said_to_be_too_low(busy: float, share: float, bound: str, said: str) -> None:
    result = Profile(roof=Roof(busy_share=busy), operators=(OperatorRow(of_roof=share, bound=bound),))
    text = " ".join(notes(result))
    assert ("measured too low" in text) is bool(said) and said in text


def test_long_names_of_modules_lose_their_first_parts_as_far_as_they_stay_apart() -> None:
    inside = "Wrapped.base_model.model.transformer.h"
    names = [f"{inside}.1.mlp.act", f"{inside}.3.mlp.act", f"{inside}.1", "Sequential.0"]
    assert shortened(names, 20) == ["…h.1.mlp.act", "…h.3.mlp.act", "…transformer.h.1", "Sequential.0"]
    assert shortened(["Some.long.name.of.one.act", "Other.long.name.of.one.act"], 8) == [
        "Some.long.name.of.one.act",
        "Other.long.name.of.one.act",
    ]


def test_a_narrow_terminal_has_room_for_the_names() -> None:
    name = "DLRM_Net.embeddings.12"
    row = OperatorRow(operator="aten::_embedding_bag_backward", phase="backward", seconds=1.0)
    result = Profile(operators=(row,), modules=(ModuleRow(module=name, operator="aten::_embedding_bag", seconds=1.0),))
    for width, says in ((80, False), (120, True)):
        page = StringIO()
        table(result, Console(file=page, width=width))
        assert name in page.getvalue() and "_embedding_bag_backward" in page.getvalue()
        assert ("library" in page.getvalue()) is says


def test_modules_that_are_called_to_evaluate_have_their_time_told() -> None:
    """Of a public PPO: "forward 0 µs, backward 0 µs, of step 2 %", for a policy that acts without gradients."""
    measured = [
        {"phase": phase, "module": "Policy", "operator": "aten::addmm", "calls": 1, "seconds": seconds, "flops": 1.0}
        | {"bytes": 1.0, "shapes": "", "kernel": "", "library": "", "uncounted": False}
        for phase, seconds in (("evaluation", 3e-3), ("forward", 1e-3))
    ]
    result = Profile(modules=tuple(by_module(measured, None)))
    assert module_head(result, 8)[:4] == ("module", "forward", "backward", "evaluation")
    assert module_rows(result, 8)[0][1:4] == ("1 ms", "0 µs", "3 ms")
    assert "evaluation" not in module_head(Profile(modules=(ModuleRow(module="Policy"),)), 8)


def test_recorded_steps_are_not_called_slower_where_they_were_not() -> None:
    told = [notes(Profile(overhead=Overhead(recorded={"operators": 0.3, "lines": each})))[1] for each in (0.2, -0.7)]
    assert "were slower" in told[0] and "slower" not in told[1] and "-70%" in told[1]


def test_no_number_is_told_with_an_exponent() -> None:
    """Memory of 1,010 MiB was "1.01e+03 MiB", and the peak of a B200 "2.25e+03 TFLOP/s"."""
    sizes = [size(amount * 2**20) for amount in (1, 999, 1010, 1023.9, 1024, 1536)]
    assert sizes == ["1 MiB", "999 MiB", "1,010 MiB", "1,024 MiB", "1 GiB", "1.5 GiB"]
    assert [rate(each) for each in (2.25e15, 9.999e11, None)] == ["2.25 PFLOP/s", "1 TFLOP/s", "–"]
