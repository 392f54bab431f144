"""The usual Keras MNIST example: a small CNN, Adam, five epochs."""

import argparse
import gzip
from pathlib import Path

import keras
import numpy as np


def read_idx(path, header):
    with gzip.open(path) as f:
        return np.frombuffer(f.read(), dtype=np.uint8, offset=header)


def load_data(folder):
    """MNIST from its four .gz files, or as Keras loads it, or scikit-learn's digits where there is neither."""
    if folder:
        return tuple(
            (
                read_idx(Path(folder) / f"{name}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28),
                read_idx(Path(folder) / f"{name}-labels-idx1-ubyte.gz", 8),
            )
            for name in ("train", "t10k")
        )
    try:
        return keras.datasets.mnist.load_data()
    except Exception as error:  # neither in ~/.keras/datasets nor on the network
        print(f"MNIST could not be loaded ({str(error)[:60]}); taking scikit-learn's digits")

    from sklearn.datasets import load_digits

    digits = load_digits()
    large = np.pad(np.kron(digits.images, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))
    images = (large * 255 / 16).astype(np.uint8)
    train = np.arange(len(images)) % 6 != 0
    return (images[train], digits.target[train]), (images[~train], digits.target[~train])


def main():
    parser = argparse.ArgumentParser(description="Keras MNIST example")
    parser.add_argument("--data", help="folder with the four MNIST .gz files (default: keras.datasets.mnist)")
    parser.add_argument("--epochs", type=int, default=5, help="number of epochs (default: 5)")
    parser.add_argument("--batch-size", type=int, default=64, help="batch size for training (default: 64)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    args = parser.parse_args()

    keras.utils.set_random_seed(args.seed)
    (x_train, y_train), (x_test, y_test) = load_data(args.data)
    x_train = x_train.reshape(-1, 28, 28, 1).astype("float32")
    x_test = x_test.reshape(-1, 28, 28, 1).astype("float32")

    model = keras.Sequential(
        [
            keras.Input(shape=(28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x_train, y_train, epochs=args.epochs, batch_size=args.batch_size)
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"Test loss: {loss:.4f}, accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
