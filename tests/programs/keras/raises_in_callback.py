import keras
import numpy as np

keras.utils.set_random_seed(0)


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:
            raise RuntimeError("the disk is full")


model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
print("starting", flush=True)
model.fit(np.ones((320, 4), "float32"), np.ones((320, 1), "float32"), verbose=0, callbacks=[Stop()])
print("never printed")
