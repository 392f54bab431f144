"""Keras on JAX and on PyTorch: every step is followed, as on TensorFlow, and the program is left as it was."""

from __future__ import annotations

from typing import Any

import pytest

from tests.keras_driver import told_by


@pytest.fixture(scope="module", params=["jax", "torch"])
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What one process on that backend came to."""
    return told_by("tests.seams.keras.backends_driver", request.param)


def test_fit_is_followed_step_by_step(seen: dict[str, Any]) -> None:
    found = seen["fit"]
    assert found["alike"], "the watched program trained otherwise"
    assert found["steps"] == 12 and found["samples"] == 300  # 32, 32, 32 and 4 an epoch
    assert [len(step) for step in found["losses"]] == [1] * 12
    assert len(set(map(tuple, found["losses"]))) == 12
    assert found["rates"] == pytest.approx([0.01] * 12)
    assert found["framework"] == "keras" and found["trained"] == "4 tensors, 74 scalars"
    assert len(found["hash"]) == 64


@pytest.mark.parametrize("program", ["on batch", "own step"])
def test_batches_and_steps_of_its_own(seen: dict[str, Any], program: str) -> None:
    found = seen[program]
    assert found["alike"] and found["steps"] == 5 and found["samples"] == 100
    assert [step[0] for step in found["losses"]] == pytest.approx(found["seen"], rel=1e-6)


def test_a_loop_of_its_own_or_many_steps_in_a_call(seen: dict[str, Any]) -> None:
    if seen["backend"] == "torch":
        found = seen["own loop"]
        assert found["alike"] and found["steps"] == 4 and found["samples"] == 100
        assert [step[0] for step in found["losses"]] == pytest.approx(found["seen"], rel=1e-6)
    else:
        found = seen["three in a call"]
        assert found["alike"] and found["losses"] == seen["fit"]["losses"] and found["hash"] == seen["fit"]["hash"]


def test_a_train_step_set_on_one_model_stays_there(seen: dict[str, Any]) -> None:
    if seen["backend"] == "torch":
        pytest.skip("nothing is set on the model there")
    found = seen["set step"]
    plain, watched = found["seen"]
    assert found["own"] and found["alike"] and plain == watched


def test_its_state_can_be_read_wherever_it_stands_still(seen: dict[str, Any]) -> None:
    found = seen["standing still"]
    assert found["alike"], "reading the state changed it"
    assert len(found["states"]) == len(set(found["states"])) == 12
    assert found["states"][-1] == found["last"]


def test_a_model_that_is_built_by_shapes_alone_can_be_tried(seen: dict[str, Any]) -> None:
    found = seen["as in a trial"]
    assert found["steps"] == 12
    assert found["facts"]["backend"] == seen["backend"] and found["facts"]["parameters"] == 74
    assert found["facts"]["fits"] and found["facts"]["loaders"][0]["batch_size"] == 32


def test_a_digests_tells_what_differs(seen: dict[str, Any]) -> None:
    found = seen["digests"]
    assert found["itself"] and found["entries"] == 12 and found["perturbed"]
    for name in ("batches", "evaluation data", "learning rates"):
        assert name in found[name]
    assert found["dropout"] != "the same"


def test_a_step_from_a_saved_state_against_fp64(seen: dict[str, Any]) -> None:
    found = seen["replays"]
    assert found["states"] == [[2, 3, 4]] * 2 and found["usable"] is None
    assert 0 < found["error"] < 1e-6  # dropout drew the same
    assert set(found["kinds"]) >= {"gradient", "update", "initial value"}
    assert found["own holds"] and not found["off holds"]


def test_nothing_is_left_behind_and_nothing_that_was_there_is_missed(seen: dict[str, Any]) -> None:
    assert seen["left behind"] is False
    assert seen["made before"] == 1


def test_the_parts_of_a_step_are_told_as_they_run(seen: dict[str, Any]) -> None:
    found = seen["parts"]
    assert found["alike"] and not found["left"]
    ran = found["ran"]
    assert ran["evaluation"] >= 3 and ran["data"] >= 12 and ran["watching"]
    if seen["backend"] == "jax":
        assert ran["graph"] == ran["compiled"] == 12 and not {"forward", "backward", "optimizer"} & ran.keys()
        return
    assert ran["backward"] == ran["optimizer"] == 12 and ran["forward"] >= 12 and not {"graph", "compiled"} & ran.keys()
    loop = seen["parts of a loop"]["ran"]
    assert (loop["backward"], loop["optimizer"], loop["evaluation"]) == (4, 4, 4) and loop["forward"] >= 4
