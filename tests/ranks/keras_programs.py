"""Programs of Keras on PyTorch, one after the other in one process: `python keras_programs.py [NAME...]` prints their
numbers, in fp64 as far as Keras does so. The names are followed by `:` and numbers."""

import sys

import keras
import numpy as np
import torch
from keras import layers

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def data(*shape, rows=37, classes=3):
    x = np.random.randn(rows, *shape)
    return x, (x.reshape(rows, -1)[:, :classes].argmax(1)).astype("int32")


def dense(*between, width=6, out=3):
    return keras.Sequential([keras.Input((width,)), layers.Dense(16, activation="tanh"), *between, layers.Dense(out)])


def scores():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model, optimizer="adam", **how):
    model.compile(optimizer, scores(), metrics=["accuracy"], **how)
    return model


def fitted(model, x, y, epochs=2, batch_size=8, **how):
    """Losses and metrics of each epoch, then the size of each weight, running means and all."""
    history = model.fit(x, y, epochs=epochs, batch_size=batch_size, verbose=0, **how)
    return history.history, size(model)


def size(model):
    return [float(np.square(each).sum()) for each in model.get_weights()]


@program
def uneven_last_batch():
    return fitted(compiled(dense()), *data(6))


@program
def dropout_and_class_weights():
    return fitted(compiled(dense(layers.Dropout(0.4))), *data(6), class_weight={0: 1.0, 1: 2.0, 2: 0.5})


@program
def dropout_with_seeds_of_its_own():
    between = layers.Dropout(0.4, seed=3), layers.GaussianNoise(0.1), layers.SpatialDropout1D(0.3)
    model = keras.Sequential([keras.Input((5, 4)), layers.Dense(8), *between, layers.Flatten(), layers.Dense(3)])
    return fitted(compiled(model), *data(5, 4))


@program
def batch_norm():
    blocks = layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Activation("relu"), layers.MaxPooling2D()
    model = keras.Sequential([keras.Input((8, 8, 1)), *blocks, layers.Flatten(), layers.Dropout(0.2), layers.Dense(3)])
    x, y = data(8, 8, 1)
    return fitted(compiled(model, keras.optimizers.SGD(0.05, momentum=0.9)), x, y, validation_data=(x[:11], y[:11]))


@program
def batch_norm_of_channels_first():
    blocks = layers.Conv1D(4, 3), layers.BatchNormalization(axis=1, scale=False), layers.Flatten()
    return fitted(compiled(keras.Sequential([keras.Input((9, 2)), *blocks, layers.Dense(3)])), *data(9, 2))


@program
def renormalised():
    norm = layers.BatchNormalization(renorm=True, renorm_clipping={"rmax": 2.0, "rmin": 0.5, "dmax": 1.0})
    return fitted(compiled(dense(norm)), *data(6))


@program
def frozen_batch_norm():
    model = dense(layers.BatchNormalization(), layers.Dense(5))
    model.layers[1].trainable = False
    return fitted(compiled(model), *data(6))


@program
def train_on_batch_and_predict():
    model = compiled(dense(layers.Dropout(0.2)), "rmsprop")
    x, y = data(6)
    told = [model.train_on_batch(x[i : i + 9], y[i : i + 9]) for i in range(0, 36, 9)]
    return told, model.test_on_batch(x, y), model.predict(x, batch_size=16, verbose=0).tolist(), size(model)


@program
def a_loop_of_its_own():
    x, y = data(6, rows=40)
    model, optimizer, loss_of = dense(layers.Dropout(0.3)), keras.optimizers.Adam(0.01), scores()
    losses = []
    for first in range(0, 40, 7):
        loss = loss_of(torch.tensor(y[first : first + 7]), model(torch.tensor(x[first : first + 7]), training=True))
        model.zero_grad()
        loss.backward()
        trained = list(model.trainable_weights)
        with torch.no_grad():
            optimizer.apply([each.value.grad for each in trained], trained)
        losses.append(loss.item())
    return losses, size(model)


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = (
            layers.Dense(12, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(3),
        )
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x, training=False):
        return self.last(self.norm(self.first(x), training=training))

    def train_step(self, batch):
        x, y = batch
        self.zero_grad()
        loss = scores()(y, self(x, training=True)) + 0.01 * sum(
            each.value.square().sum() for each in self.trainable_weights
        )
        loss.backward()
        trained = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([each.value.grad for each in trained], trained)
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}


@program
def a_train_step_of_its_own():
    model = Own()
    model.compile(keras.optimizers.SGD(0.1))
    return fitted(model, *data(6))


@program
def penalties_and_clipping():
    penalised = layers.Dense(8, kernel_regularizer="l2")
    return fitted(compiled(dense(penalised), keras.optimizers.Adam(0.01, global_clipnorm=0.5)), *data(6))


@program
def penalty_on_activations():
    return fitted(compiled(dense(layers.Dense(8, activity_regularizer="l2"))), *data(6))


class Later(layers.Layer):
    """From its twenty-first call on it draws in another way, which no trial of a call before shows. It counts where
    nobody looks: in a setting of Keras's."""

    def call(self, x):
        keras.config.set_epsilon(keras.config.epsilon() + 1e-9)
        late = keras.config.epsilon() > 1e-7 + 20.5e-9
        return (torch.nn.functional.alpha_dropout if late else torch.nn.functional.dropout)(x, 0.2, training=True)


@program
def divided_at_first():
    """The call that turns out otherwise is undone and made whole: running means are not moved twice."""
    keras.config.set_epsilon(1e-7)
    return fitted(compiled(dense(layers.BatchNormalization(), Later())), *data(6), epochs=6)


@program
def frozen_and_thawed():
    model = dense(layers.BatchNormalization(), layers.Dense(5, activation="relu"))
    x, y = data(6)
    told = []
    for trainable in (False, True):
        model.layers[0].trainable = model.layers[1].trainable = trainable
        told.append(fitted(compiled(model), x, y))
    return told


@program
def steps_with_masks():
    """The mask travels with the model's answer, and into loss and metric."""
    words = np.random.randint(0, 9, (37, 7)).astype("int32")
    deep = layers.Embedding(9, 6, mask_zero=True), layers.Dense(5, activation="relu"), layers.Dense(3)
    model = keras.Sequential([keras.Input((7,), dtype="int32"), *deep])
    return fitted(compiled(model), words, (words % 3).astype("int32"))


@program
def several_inputs_and_outputs():
    a, b = keras.Input((6,), name="a"), keras.Input((4,), name="b")
    h = layers.Concatenate()([layers.Dense(5)(a), layers.Dense(5)(b)])
    model = keras.Model(
        {"a": a, "b": b}, {"kind": layers.Dense(3, name="kind")(h), "size": layers.Dense(1, name="size")(h)}
    )
    model.compile("adam", {"kind": scores(), "size": "mse"}, loss_weights={"kind": 1.0, "size": 0.3})
    x, y = data(6)
    return fitted(model, {"a": x, "b": x[:, :4]}, {"kind": y, "size": x.sum(1)})


@program
def lstm_with_masks():
    words = np.random.randint(0, 9, (37, 7)).astype("int32")
    deep = layers.Embedding(9, 6, mask_zero=True), layers.LSTM(5, return_sequences=True), layers.Dense(3)
    model = keras.Sequential([keras.Input((7,), dtype="int32"), *deep])
    return fitted(compiled(model), words, (words % 3).astype("int32"))


@program
def attention_with_dropout():
    x = keras.Input((6, 8))
    h = layers.MultiHeadAttention(2, 4, dropout=0.2)(x, x)
    h = layers.LayerNormalization()(layers.Add()([x, h]))
    model = keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(h)))
    return fitted(compiled(model), *data(6, 8))


@program
def accumulated_gradients_and_averaged_weights():
    optimizer = keras.optimizers.AdamW(0.01, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=3)
    return fitted(compiled(dense(layers.Dropout(0.2)), optimizer), *data(6))


@program
def decided_by_what_it_has_learnt():
    callbacks = [
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1),
    ]
    return fitted(compiled(dense()), *data(6), epochs=5, validation_split=0.2, callbacks=callbacks)


@program
def two_networks():
    """A generator and its judge, each with an optimizer of its own."""
    maker, judge = dense(layers.BatchNormalization(), width=4, out=6), dense(layers.Dropout(0.2), out=1)
    ways = [(maker, keras.optimizers.Adam(0.01)), (judge, keras.optimizers.SGD(0.05))]
    x, _ = data(6, rows=32)
    told = []
    for first in range(0, 32, 8):
        real, made = torch.tensor(x[first : first + 8]), maker(torch.randn(8, 4), training=True)
        right = torch.nn.functional.softplus
        losses = {
            judge: right(judge(made.detach(), training=True)).mean() + right(-judge(real, training=True)).mean(),
            maker: right(-judge(made, training=True)).mean(),
        }
        for model, optimizer in reversed(ways):
            maker.zero_grad(), judge.zero_grad()
            losses[model].backward(retain_graph=True)
            trained = list(model.trainable_weights)
            with torch.no_grad():
                optimizer.apply([each.value.grad for each in trained], trained)
            if model is judge:
                losses[maker] = right(-judge(made, training=True)).mean()
        told += [each.item() for each in losses.values()]
    return told, size(maker), size(judge)


@program
def coupled_samples():
    """A mean over the batch, which is that of all ranks."""

    class AgainstTheBatch(layers.Layer):
        def call(self, x):
            return x - keras.ops.mean(x, axis=0, keepdims=True)

    return fitted(compiled(dense(AgainstTheBatch())), *data(6))


class Keeping(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = layers.Dense(8, activation="relu"), layers.Dense(3)

    def call(self, x):
        self.inner = self.first(x)
        return self.last(self.inner)


@program
def keeps_something_of_its_batch():
    model = compiled(Keeping())
    told = fitted(model, *data(6))
    return told, model.inner.sum().item(), tuple(model.inner.shape)


@program
def compiled_by_torch():
    return fitted(compiled(dense(), jit_compile=True), *data(6, rows=32))


def main(names):
    keras.config.set_floatx("float64")
    torch.set_default_dtype(torch.float64)
    for name in names or PROGRAMS:
        keras.utils.set_random_seed(7)
        try:
            print(f"{name}: {PROGRAMS[name]()}", flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__} {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
