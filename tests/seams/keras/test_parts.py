"""The parts of a step are told as they run or are traced, and nothing of the seam stays."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

from overdrive.seams.hub import Seams
from overdrive.worker.recording import Recorder
from tests.seams.keras.programs import FIT, TAPE, run


def kinds(text: str) -> tuple[Counter[str], Counter[str]]:
    """How often each kind ran eagerly, and how often it was traced."""
    import tensorflow as tf

    ran: Counter[str] = Counter()
    traced: Counter[str] = Counter()

    def part(kind: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        (ran if tf.executing_eagerly() else traced)[kind] += 1
        return call(*args, **kwargs)

    def observe(seams: Seams) -> None:
        Recorder()(seams)
        seams.part_run.subscribe(part)

    run(text, observe)
    return ran, traced


def test_a_fit_is_calls_of_a_graph_whose_parts_are_traced() -> None:
    ran, traced = kinds(FIT.replace("STEPS", "1"))
    assert ran["graph"] >= 10  # of 12 steps; the first, in which it shows that it trains, is none yet
    assert not {"backward", "optimizer"} & ran.keys()
    assert traced["backward"] and traced["optimizer"] and set(traced) <= {"backward", "optimizer"}


def test_an_eager_loop_has_each_part_by_itself() -> None:
    ran, traced = kinds(TAPE.replace("DECORATOR", ""))
    assert ran["backward"] == ran["optimizer"] == 4 and ran["forward"] >= 4 and not traced


def test_nothing_of_it_is_left_behind() -> None:
    import keras
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    before = dict(vars(keras.Model)), dict(vars(OwnedIterator))
    kinds(TAPE.replace("DECORATOR", "@tf.function"))
    assert (dict(vars(keras.Model)), dict(vars(OwnedIterator))) == before
