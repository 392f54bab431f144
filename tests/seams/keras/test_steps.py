"""Every way to train with Keras is followed step by step, and left as it was."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

from overdrive.seams.hub import Seams
from overdrive.worker.recording import Recorder
from tests.seams.keras.programs import FIT, HEAD, ON_BATCH, TAPE, TWO, run


def recorded(text: str) -> tuple[Recorder, dict[str, Any]]:
    recorder = Recorder(losses=True)
    return recorder, run(text, recorder)


def test_steps_of_one_call_are_told_as_they_were_made_one_by_one() -> None:
    single, _ = recorded(FIT.replace("STEPS", "1"))
    many, _ = recorded(FIT.replace("STEPS", "3"))
    for recorder in (single, many):
        assert recorder.clock.steps == 12 and recorder.samples == 300  # 32, 32, 32 and 4 an epoch
        assert [len(step) for step in recorder.losses()] == [1] * 12
        assert recorder.rates == pytest.approx([0.01] * 12)
    assert single.losses() == many.losses() and single.state_hash() == many.state_hash()
    assert len(set(map(tuple, single.losses()))) == 12


def test_a_trial_can_stand_still_between_calls_only() -> None:
    rests: list[int] = []
    recorder = Recorder()

    def observe(seams: Seams) -> None:
        recorder(seams)
        seams.between_steps.subscribe(lambda: rests.append(recorder.clock.steps))

    run(FIT.replace("STEPS", "3"), observe)
    assert rests == [3, 4, 7, 8, 11, 12]


@pytest.mark.parametrize("decorator", ["@tf.function", "@tf.function(jit_compile=True)", ""])
def test_a_loop_of_its_own(decorator: str) -> None:
    recorder, found = recorded(TAPE.replace("DECORATOR", decorator))
    assert [step[0] for step in recorder.losses()] == pytest.approx(found["seen"], rel=1e-6)
    assert recorder.clock.steps == 4 and recorder.samples == 100
    assert recorder.trained() == "4 tensors, 74 scalars"


def test_train_on_batch() -> None:
    recorder, found = recorded(ON_BATCH)
    assert recorder.clock.steps == 5 and recorder.samples == 100
    assert recorder.losses()[0][0] == pytest.approx(float(found["seen"][0]), rel=1e-6)


_OWN_METRIC = (
    HEAD
    + """
readers = []
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.total = model, keras.metrics.Mean()
    def train_step(self, data):
        with tf.GradientTape() as tape:
            value = loss(data[1], self.inner(data[0])) + 0.5
        self.optimizer.apply(tape.gradient(value, self.trainable_variables), self.trainable_variables)
        self.total.update_state(value)
        readers[:] = [each.name for each in value.consumers()]
        return {"total": self.total.result()}
own = Own()
own.compile("sgd")
own.fit(x, y, verbose=0)
"""
)


def test_nothing_more_reads_a_loss_in_a_graph_where_nobody_asks_for_losses() -> None:
    """TensorFlow's optimizer of graphs adds in another order where a sum has one reader more: of a public VAE the
    metric that its loss goes into differed in the last digit."""
    read = {asked: run(_OWN_METRIC, Recorder(losses=asked))["readers"] for asked in (False, True)}
    ours = {asked: [name for name in names if name.startswith("overdrive/")] for asked, names in read.items()}
    assert read[False] and not ours[False] and ours[True]


_SAVES = (
    HEAD
    + """
class Trained(tf.Module):
    def __init__(self):
        self.model, self.optimizer = model, keras.optimizers.SGD(0.1)
        self.optimizer.build(self.model.trainable_variables)

    @tf.function
    def apply(self, gradients):
        self.optimizer.apply(gradients, self.model.trainable_variables)

    @tf.function(input_signature=[tf.TensorSpec([None, 6]), tf.TensorSpec([None], tf.int32)])
    def train(self, images, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, self.model(images, training=True))
        self.apply(tape.gradient(value, self.model.trainable_variables))
        return {"loss": value}

model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])
trained = Trained()
signature = trained.train.get_concrete_function() if FIRST else None
seen = [float(trained.train(tf.constant(x), tf.constant(y))["loss"]) for _ in range(3)]
tf.saved_model.save(trained, FOLDER, signatures={"train": signature or trained.train.get_concrete_function()})
variables = [name for name, _ in tf.train.list_variables(FOLDER + "/variables/variables")]
again = tf.saved_model.load(FOLDER)
seen += [float(again.signatures["train"](images=tf.constant(x), labels=tf.constant(y))["loss"])]
seen += [float(trained.train(tf.constant(x), tf.constant(y))["loss"])]
"""
)


@pytest.mark.parametrize("first", [False, True])
def test_a_step_that_the_program_saves_is_its_own_alone(first: bool, tmp_path: Path) -> None:
    """`tf.saved_model.save` refuses a function that writes to a variable which is not saved."""
    texts = [_SAVES.replace("FIRST", str(first)).replace("FOLDER", repr(str(tmp_path / each))) for each in ("a", "b")]
    plain: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(texts[0], "program", "exec"), plain)
    recorder, found = recorded(texts[1])
    assert found["variables"] == plain["variables"]
    assert found["seen"] == plain["seen"]
    assert recorder.clock.steps == 4  # but what was made from the folder


_LOOKS = (
    HEAD
    + """
import gc, weakref
alive = weakref.WeakSet()

def look():
    made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    alive.add(made)
    judge = tf.function(lambda images: loss(y, made(images, training=False)), autograph=False)
    judge(tf.constant(x))

for _ in range(4):
    look()
    keras.backend.clear_session()
    gc.collect()
seen = len(alive)
"""
)


def test_models_that_are_looked_at_and_given_up_do_not_pile_up() -> None:
    assert run(_LOOKS, Recorder())["seen"] <= 1  # the last one may still be stepped


def test_two_optimizers_make_one_step() -> None:
    recorder, found = recorded(TWO)
    assert recorder.clock.steps == 6
    assert recorder.optimizers == [found["one"], found["other"]]


def test_nothing_is_left_behind() -> None:
    import keras
    import tensorflow as tf
    from keras.src.losses.loss import Loss
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    holders = (keras.Model, BaseOptimizer, tf.GradientTape, Function, Loss)
    before = [dict(vars(holder)) for holder in holders]
    inside: list[bool] = []

    def observe(seams: Seams) -> None:
        Recorder()(seams)
        seams.step_ends.subscribe(lambda _: inside.append(vars(Function) != before[3]))

    run(ON_BATCH, observe)
    assert inside == [True] * 5
    assert [dict(vars(holder)) for holder in holders] == before


def test_compile_and_fit_can_be_altered_and_other_seeds_set() -> None:
    seen: list[str] = []

    def observe(seams: Seams) -> None:
        def compiled(model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append("compiled")
            return call(*args, **{**kwargs, "steps_per_execution": 2})

        def fit(model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append("fit")
            return call(*args, **{**kwargs, "epochs": 1})

        seams.model_compiled.subscribe(compiled)
        seams.fit_called.subscribe(fit)
        seams.data_opened.subscribe(lambda data: seen.append("opened"))
        seams.train_function_made.subscribe(lambda model: seen.append(f"made {model.steps_per_execution}"))
        seams.seed_set.subscribe(lambda value: value + 1)

    # PyTorch may be there too, and its seams reach Python's and NumPy's generators before Keras's.
    text = FIT.replace("STEPS", "1")
    both = "import torch\n" + text if find_spec("torch") else text
    recorder = Recorder(losses=True)
    run(both, observe, recorder)
    assert seen == ["compiled", "fit", "opened", "made 2", "opened"]  # the last: validation data
    other, own = (recorded(text.replace("seed(1)", f"seed({seed})"))[0] for seed in (2, 1))
    assert recorder.losses() == other.losses()[:4] != own.losses()[:4]


def test_a_step_that_finds_no_more_data_is_none() -> None:
    """Keras runs its function once more where the length of the data is not known, and TensorFlow begins with it."""
    data = "tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(32)"
    text = FIT.replace("STEPS", "1").replace("x, y, batch_size=32", data)
    recorder, _ = recorded(text)
    assert recorder.clock.steps == 12 and recorder.samples == 300
    assert [len(step) for step in recorder.losses()] == [1] * 12


_SEVERAL = (
    HEAD
    + """
class Several(keras.Model):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def compile(self, one, other):
        super().compile()
        self.one, self.other = one, other

    def train_step(self, data):
        for part, optimizer in ((self.first, self.one), (self.second, self.other)):
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(self.second(tf.concat([self.first(data), self.first(-data)], 0)) ** 2)
            optimizer.apply(tape.gradient(value, part.trainable_variables), part.trainable_variables)
        return {"loss": value}

parts = [keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)]) for _ in range(2)]
made = Several(*parts)
made.compile(keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1))
batches = tf.data.Dataset.from_tensor_slices(x[:96]).batch(32)
"""
)


@pytest.mark.parametrize(
    "steps", ["made.fit(batches, epochs=2, verbose=0)", "[made.train_step(each) for each in batches.repeat(2)]"]
)
def test_a_batch_that_several_optimizers_are_applied_to_is_counted_once(steps: str) -> None:
    """In a loop of the program's own, what is known of it is what a model was given."""
    recorder, _ = recorded(_SEVERAL + steps)
    assert recorder.clock.steps == 6
    assert recorder.samples == 2 * 96 * (1 if "fit" in steps else 2)


def test_arrays_of_numpy_that_a_program_gives_eagerly_are_its_samples() -> None:
    text = TAPE.replace("DECORATOR", "").replace("(step(images, labels))", "(step(images.numpy(), labels.numpy()))")
    recorder, found = recorded(text)
    assert recorder.clock.steps == 4 and recorder.samples == 100
    assert found["seen"] == recorded(TAPE.replace("DECORATOR", ""))[1]["seen"]


_CALLS_ANOTHER = """
step(tf.constant(x[:25]), tf.constant(y[:25]))
step(tf.constant(x[:25]), tf.constant(y[:25]))
many = tf.function(lambda images, labels: [step(images, labels) for _ in range(3)], autograph=False)
many(tf.constant(x[:25]), tf.constant(y[:25]))
"""


def test_steps_of_a_function_that_calls_one_which_was_called_before_are_told() -> None:
    text = TAPE.replace("DECORATOR", "@tf.function")
    recorder, _ = recorded(text[: text.index("for images")] + _CALLS_ANOTHER)
    assert recorder.clock.steps == 5


def test_a_function_that_calls_one_which_was_called_before_can_be_saved(tmp_path: Path) -> None:
    outer = """
trained.train(tf.constant(x), tf.constant(y))
trained.outer = tf.function(lambda images, labels: trained.train(images, labels), autograph=False)
signature = trained.outer.get_concrete_function(tf.TensorSpec([None, 6], name="images"),
                                                tf.TensorSpec([None], tf.int32, name="labels"))
tf.saved_model.save(trained, FOLDER, signatures={"train": signature})
"""
    text = _SAVES[: _SAVES.index("signature =")] + outer
    recorder, _ = recorded(text.replace("FOLDER", repr(str(tmp_path))))
    assert recorder.clock.steps == 1 and (tmp_path / "saved_model.pb").exists()


@pytest.mark.parametrize("decorator", ["@tf.function", ""])
def test_a_learning_rate_that_is_a_function_is_called_as_often_as_without_us(decorator: str) -> None:
    counting = "calls = []\noptimizer = keras.optimizers.SGD(lambda: calls.append(0) or 0.1 * len(calls))"
    text = TAPE.replace("DECORATOR", decorator).replace("optimizer = keras.optimizers.SGD(0.1)", counting)
    plain: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "program", "exec"), plain)
    recorder, found = recorded(text)
    assert len(found["calls"]) == len(plain["calls"])
    assert recorder.rates == pytest.approx([recorder.rates[0]] * 4 if decorator else [0.1, 0.2, 0.3, 0.4])
    assert recorder.rates[0] > 0
