import keras
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(42)

digits = load_digits()
x = (digits.images / 16.0).astype("float32")[..., None]
y = digits.target

model = keras.Sequential([
    keras.Input(shape=(8, 8, 1)),
    keras.layers.Conv2D(16, 3, activation="relu"),
    keras.layers.MaxPooling2D(),
    keras.layers.Flatten(),
    keras.layers.Dense(10, activation="softmax"),
])
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x[:1500], y[:1500], epochs=2, batch_size=64, verbose=2)
loss, accuracy = model.evaluate(x[1500:], y[1500:], verbose=0)
print("test loss %.4f accuracy %.4f" % (loss, accuracy))
np.savetxt("predictions.txt", model.predict(x[:5], verbose=0), fmt="%.4f")
