"""What a function of the program's is while TensorFlow traces it, and what an error of it tells, is as without us."""

from __future__ import annotations

import linecache
from collections.abc import Callable

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

from overdrive.core.whose import OURS
from overdrive.seams.hub import Seams
from overdrive.seams.keras.told_frames import cleaned
from overdrive.worker.keras.digests import DigestLog
from overdrive.worker.recording import Recorder
from tests.seams.keras.programs import HEAD, run

_STEP = (
    HEAD
    + """
optimizer = keras.optimizers.SGD(0.1)
traced = []
model(x)

@tf.function
def step(trains):
    traced.append(trains)
    with tf.GradientTape() as tape:
        value = loss(y, model(x))
    if trains:
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
    return value
"""
)


def _observers(digests: bool) -> list[Callable[[Seams], None]]:
    return [Recorder(), DigestLog("bits")] if digests else [Recorder()]


@pytest.mark.parametrize("digests", [False, True])
def test_a_function_is_traced_as_often_as_without_us(digests: bool) -> None:
    """TensorFlow traces one that makes variables twice, and ours were its."""
    assert run(_STEP + "step(True), step(True)", *_observers(digests))["traced"] == [True]


@pytest.mark.parametrize("digests", [False, True])
def test_a_function_that_was_called_before_may_train(digests: bool) -> None:
    """It may make no variables then, as TensorFlow says; ours made it fail."""
    text = _STEP + "optimizer.build(model.trainable_variables)\nstep(False), step(True)"
    assert run(text, *_observers(digests))["traced"] == [False, True]


_FAILS = (
    HEAD
    + """
class Own(keras.Model):
    def call(self, inputs):
        EACH

own, optimizer = Own(), keras.optimizers.SGD(0.1)
weight = tf.Variable([[1.0, 2.0]])

@tf.function
def step(inputs):
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(own(inputs))
    optimizer.apply([tape.gradient(value, weight)], [weight])

try:
    step(tf.constant([4]))
except Exception as error:
    told = str(error)
"""
)


@pytest.mark.parametrize(
    ("each", "within"),
    [
        ('raise ValueError("of its own")', "in user code"),
        ("return tf.gather(weight, inputs)", "defined at"),
    ],
)
def test_an_error_tells_of_no_frame_of_ours(each: str, within: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = _FAILS.replace("EACH", each)
    monkeypatch.setitem(linecache.cache, "program", (len(text), None, text.splitlines(True), "program"))
    told = run(text, Recorder())["told"]
    assert within in told and OURS not in told


def test_what_stood_at_a_frame_of_ours_stands_at_the_next() -> None:
    text = (
        '\n    File "train.py", line 9, in step  *\n        model(x)\n'
        f'    File "{OURS}seams/steps.py", line 1, in __call__  **\n        result = call()\n'
        f'    File "{OURS}seams/steps.py", line 2, in more\n        more()\n'
        '    File "keras/layer.py", line 3, in __call__\n        raise e\n\n    ValueError: no\n'
    )
    assert cleaned(text) == (
        '\n    File "train.py", line 9, in step  *\n        model(x)\n'
        '    File "keras/layer.py", line 3, in __call__  **\n        raise e\n\n    ValueError: no\n'
    )


def test_what_led_to_the_programs_start_is_not_told() -> None:
    text = (
        "Detected at node a defined at (most recent call last):\n"
        '  File "<frozen runpy>", line 198, in _run_module_as_main\n\n'
        f'  File "{OURS}__main__.py", line 8, in <module>\n\n'
        f'  File "{OURS}worker/launch.py", line 37, in execute\n\n'
        '  File "train.py", line 9, in <module>\n\nindices = 4'
    )
    assert cleaned(text) == (
        'Detected at node a defined at (most recent call last):\n  File "train.py", line 9, in <module>\n\nindices = 4'
    )
