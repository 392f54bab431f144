"""What each rank would hold, from what one process needs."""

from __future__ import annotations

import pytest

from overdrive.insight.requirements.layouts import layouts
from overdrive.insight.requirements.needs import Needs

MEMORY = {"parameters": 1000, "gradients": 800, "optimizer states": 1600, "activations": 501, "workspace": 100}


def needs(*divided: tuple[int, int]) -> Needs:
    return Needs("cpu", 1, MEMORY, program=0, operators=(), divided=divided, units=(300, 300, 400))


def test_a_batch_divided_leaves_weights_and_their_states_whole() -> None:
    data = layouts(needs(), 2)[1]
    assert data.parts == {**MEMORY, "activations": 251, "workspace": 50}


def test_shares_of_the_state_and_of_all() -> None:
    _, data, zero1, shard, *_ = layouts(needs(), 4)
    assert zero1.parts == {**data.parts, "optimizer states": 400}
    # A quarter of each, and of the largest unit the rest of the parameters, and its gradients.
    assert shard.parts == {
        "parameters": 250 + 300,
        "gradients": 200 + 400,
        "optimizer states": 400,
        "activations": 126,
        "workspace": 25,
    }
    assert "largest of 3 units" in shard.said


def test_layers_divided_leave_activations_whole() -> None:
    alone, _, _, _, tensor, *_ = layouts(needs((8, 600), (6, 100)), 4)
    assert alone.parts == MEMORY
    divided = {"parameters": 550, "gradients": 440, "optimizer states": 880, "workspace": 55}
    assert tensor.parts == {**MEMORY, **divided}
    assert "1 of 2 weights" in tensor.said and "tried with 2 ranks" in tensor.said


def test_where_nothing_is_divided_nothing_is_saved() -> None:
    tensor = layouts(needs(), 2)[4]
    assert tensor.parts == MEMORY and "no layers" in tensor.said


def test_stages_are_of_whole_layers() -> None:
    pipeline = layouts(Needs("cpu", 1, MEMORY, program=0, operators=(), layers=(300, 100, 300, 300)), 2)[5]
    assert pipeline.layout == "pipeline=2"
    assert pipeline.parts == {**{name: round(each * 0.6) for name, each in MEMORY.items()}, "workspace": 100}
    fewer = layouts(Needs("cpu", 1, MEMORY, program=0, operators=(), layers=(300,)), 2)[5]
    assert fewer.parts == MEMORY and "fewer layers" in fewer.said


def test_replicas_of_stages_divide_samples_too() -> None:
    found = layouts(Needs("cpu", 1, MEMORY, program=0, operators=(), layers=6 * (100,)), 6)
    assert [each.layout for each in found[6:]] == ["data=2,pipeline=3", "data=3,pipeline=2"]
    samples = {**MEMORY, "activations": 251}
    assert found[6].parts == {**{name: round(each / 3) for name, each in samples.items()}, "workspace": 100}
    fewer = layouts(Needs("cpu", 1, MEMORY, program=0, operators=(), layers=(300,)), 4)[-1]
    assert fewer.layout == "data=2,pipeline=2" and fewer.parts == MEMORY


# Within a step the batch is nearly gone, and what the optimizer makes for a moment is of weights.
STEP = {"parameters": 1000, "gradients": 1000, "optimizer states": 1600, "activations": 1, "workspace": 300}


def test_what_a_pass_and_what_a_step_needs_are_divided_each_in_its_way() -> None:
    """Of a GPT in four stages 233 MB were foretold, and 262 held: what AdamW's step needs for a moment was taken for
    activations, and divided by the stages."""
    found = {
        each.layout: each
        for each in layouts(Needs("cpu", 1, MEMORY, 0, (), layers=4 * (100,), units=(100,), step=STEP), 4)
    }
    assert found["one process"].parts == MEMORY and found["one process"].bytes == 4001  # in a pass: a step has 3901
    assert found["data=4"].parts == STEP | {"activations": 1}  # a pass has 3551
    quarter = {name: round(each / 4) for name, each in STEP.items()}
    assert found["pipeline=4"].parts == quarter | {"workspace": 300}
    assert found["data=2,pipeline=2"].parts == {name: round(each / 2) for name, each in STEP.items()} | {
        "workspace": 300
    }
    assert found["zero1=4"].parts == STEP | {"optimizer states": 400, "workspace": 75}
    assert found["shard=4"].parts["workspace"] == 25  # in a pass, where a unit is whole


def test_gradients_of_micro_batches_and_of_what_is_summed_come_on_top() -> None:
    made = Needs("cpu", 1, MEMORY, program=0, operators=(), layers=4 * (100,), units=(100,), largest=80)
    _, _, _, shard, _, pipeline, _ = layouts(made, 4)
    assert shard.parts["gradients"] == 200 + 2 * 80 and pipeline.parts["workspace"] == 100 + 2 * 80


def test_the_peak_is_that_of_a_pass_or_of_a_step() -> None:
    larger = {**STEP, "workspace": 401}
    assert Needs("cpu", 1, MEMORY, 0, (), step=STEP).tensors == 4001
    made = Needs("cpu", 1, MEMORY, 0, (), samples=601.0, step=larger)
    assert made.tensors == 4002 and made.at_peak == larger
    assert made.largest_batch(4002) == 601 and made.largest_batch(4001) == 0


def test_what_of_a_pass_is_alive_in_a_step_is_less_with_a_smaller_batch() -> None:
    """The batch and what the loss is made of: a limit below a step of all samples holds one of fewer."""
    memory = {"parameters": 100, "gradients": 100, "optimizer states": 200, "activations": 600, "workspace": 200}
    step = {"parameters": 100, "gradients": 100, "optimizer states": 200, "activations": 400, "workspace": 300}
    made = Needs("cpu", 1, memory, 0, (), samples=100.0, step=step)
    assert made.tensors == 1200 and made.largest_batch(1200) == 100
    assert made.largest_batch(900) == 50, "of 700 in a step, 4 a sample; of 400 in a pass, 8 a sample"
    assert made.largest_batch(704) == 1 and made.largest_batch(699) == 0


@pytest.mark.parametrize(("limit", "fits"), [(4001, True), (4000, False), (None, None)])
def test_what_fits(limit: int | None, fits: bool | None) -> None:
    told = layouts(needs(), 2, limit)[0]
    assert told.bytes == 4001 and told.fits is fits
