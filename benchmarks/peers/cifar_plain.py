"""examples/cifar_cnn.py as it is, with a stopwatch around its training."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import cifar_cnn

original_train = cifar_cnn.train
result = {}


def timed_train(model, loader, criterion, optimizer, device, epochs):
    start = time.perf_counter()
    original_train(model, loader, criterion, optimizer, device, epochs)
    result["steps"] = epochs * len(loader)
    result["samples"] = epochs * len(loader.dataset)
    result["train_seconds"] = round(time.perf_counter() - start, 3)


if __name__ == "__main__":
    cifar_cnn.train = timed_train
    cifar_cnn.main()
    print(json.dumps(result))
