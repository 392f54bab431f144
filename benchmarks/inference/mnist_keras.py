"""Keras's MNIST example, answering: python mnist_keras.py [--ask predict|call] [--model model.keras].

With no file of a trained model its weights are drawn.
"""

import argparse

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--requests", type=int, default=20000)
parser.add_argument("--pictures", type=int, default=1, help="in a request")
parser.add_argument("--ask", choices=("predict", "call"), default="predict")
parser.add_argument("--model", help="a .keras file")
args = parser.parse_args()

keras.utils.set_random_seed(0)
if args.model:
    model = keras.models.load_model(args.model)
else:
    model = keras.Sequential(
        [
            keras.Input(shape=(28, 28, 1)),
            keras.layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
            keras.layers.MaxPooling2D(pool_size=(2, 2)),
            keras.layers.Conv2D(64, kernel_size=(3, 3), activation="relu"),
            keras.layers.MaxPooling2D(pool_size=(2, 2)),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )

pictures = np.random.default_rng(0).integers(0, 256, (1024, 28, 28, 1)).astype("float32") / 255
counts = np.zeros(10, dtype=int)
for number in range(args.requests):
    places = np.arange(number * args.pictures, (number + 1) * args.pictures) % len(pictures)
    asked = pictures[places]
    found = model.predict(asked, verbose=0) if args.ask == "predict" else model(asked).numpy()
    counts += np.bincount(found.argmax(axis=1), minlength=10)
print(counts.tolist())
