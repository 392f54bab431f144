import keras
import numpy as np
from keras import layers

np.random.seed(0)
keras.utils.set_random_seed(0)

X = np.random.rand(1024, 20).astype(np.float32)
w = np.random.randn(20, 1).astype(np.float32)
Y = X @ w + 0.05 * np.random.randn(1024, 1).astype(np.float32)

inputs = keras.Input((20,))
h = layers.Dense(32, activation="tanh")(inputs)
outputs = layers.Dense(1)(h)
model = keras.Model(inputs, outputs)
model.compile("rmsprop", "mse", metrics=["mae"])

for step in range(40):
    idx = np.random.randint(0, len(X), 64)
    loss, mae = model.train_on_batch(X[idx], Y[idx])
    if step % 10 == 0:
        val = model.test_on_batch(X[:128], Y[:128])
        model.reset_metrics()
        print("step %d loss %.5f mae %.5f val %.5f" % (step, loss, mae, val[0]))

print("prediction", model.predict_on_batch(X[:2]).ravel().round(4).tolist())
