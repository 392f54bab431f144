"""Technique `xla_clusters`: it is tried where there are graphs."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.own_facts import OwnFacts
from overdrive.worker.recording import Recorder
from tests.seams.keras.programs import run

_EAGER = """
import keras, tensorflow as tf
weight, optimizer = tf.Variable([1.0]), keras.optimizers.SGD(0.1)
DECORATOR
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight**2)
    optimizer.apply([tape.gradient(loss, weight)], [weight])
for _ in range(3):
    step()
"""


@pytest.mark.parametrize(("decorator", "applies"), [("@tf.function", True), ("", False)])
def test_clusters_are_tried_where_there_are_graphs(decorator: str, applies: bool) -> None:
    """A public eager loop's profile named `xla_clusters` for its time in Python."""
    own = OwnFacts()
    run(_EAGER.replace("DECORATOR", decorator), Recorder(), own)
    reason = catalogue()["xla_clusters"].applies(
        Facts(framework="keras", backend="tensorflow", own=own.gathered("keras"))
    )
    assert (reason is None) is applies
