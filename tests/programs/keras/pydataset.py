import math

import keras
import numpy as np


class Waves(keras.utils.PyDataset):
    """Makes its samples as they are asked for, in a new order each epoch."""

    def __init__(self, count, batch_size, seed, **kwargs):
        super().__init__(**kwargs)
        self.count, self.batch_size = count, batch_size
        self.rng = np.random.RandomState(seed)
        self.order = np.arange(count)

    def __len__(self):
        return math.ceil(self.count / self.batch_size)

    def __getitem__(self, index):
        chosen = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        time = np.linspace(0, 1, 32)
        series = np.sin(2 * np.pi * (1 + chosen[:, None] % 4) * time + chosen[:, None])
        return series[..., None].astype("float32"), (chosen % 4).astype("int32")

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


keras.utils.set_random_seed(1)
model = keras.Sequential([
    keras.layers.Conv1D(8, 5, activation="relu"),
    keras.layers.LSTM(8),
    keras.layers.Dense(4, activation="softmax"),
])
model.compile("nadam", "sparse_categorical_crossentropy")
history = model.fit(Waves(330, 30, seed=4), validation_data=Waves(60, 30, seed=5), epochs=3, verbose=0)
print("loss", [round(v, 4) for v in history.history["loss"]])
print("val", [round(v, 4) for v in history.history["val_loss"]])
