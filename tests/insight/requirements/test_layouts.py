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


@pytest.mark.parametrize(("limit", "fits"), [(4001, True), (4000, False), (None, None)])
def test_what_fits(limit: int | None, fits: bool | None) -> None:
    told = layouts(needs(), 2, limit)[0]
    assert told.bytes == 4001 and told.fits is fits
