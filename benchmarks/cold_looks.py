"""What a look at a data set takes before a batch, in a loop of looks and between the steps of a small network.

    python benchmarks/cold_looks.py [--repetitions 60] [KIND...]   KIND: example, tensors, files, objects

One line of JSON for each kind: the least and the median of microseconds, for looks in a row (`hot`), after a step of a
CNN (`step`), and after 96 MB and 10,000 objects of Python's were read (`cold`). To compare two revisions, run them in
turns: what else the machine does counts for more than what differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from overdrive.changes.fingerprint import fingerprint
from overdrive.datacache.source import Source
from overdrive.datacache.unchanged import Unchanged

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import cifar_cnn


class Tensors(Dataset):
    """As torchvision's MNIST, with its transforms."""

    def __init__(self) -> None:
        self.data = torch.randint(0, 255, (60_000, 28, 28), dtype=torch.uint8)
        self.targets = torch.randint(0, 10, (60_000,))
        self.transforms = [Scale(255.0), Normalise((0.1307,), (0.3081,))]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        image = self.data[index]
        for transform in self.transforms:
            image = transform(image)
        return image, int(self.targets[index])


class Scale:
    def __init__(self, most: float) -> None:
        self.most = most

    def __call__(self, image: Any) -> Any:
        return image[None].float() / self.most


class Normalise:
    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = torch.tensor(mean), torch.tensor(std)

    def __call__(self, image: Any) -> Any:
        return (image - self.mean[:, None, None]) / self.std[:, None, None]


class Files(Dataset):
    def __init__(self, folder: str) -> None:
        for number in range(300):
            np.save(f"{folder}/{number}.npy", np.zeros(100, np.float32))
        self.paths = sorted(map(str, Path(folder).iterdir()))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.load(self.paths[index]))


class Entry:
    def __init__(self, number: int) -> None:
        self.label, self.box = number % 7, [number, number + 1, number + 2]


class Objects(Dataset):
    def __init__(self) -> None:
        self.entries = [Entry(number) for number in range(40)]
        self.settings = {"scale": 2.0, "names": ["a", "b"]}

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Any:
        entry = self.entries[index]
        return np.array(entry.box, np.float32) * self.settings["scale"], entry.label


KINDS: dict[str, Callable[[str], Any]] = {
    "example": lambda _: cifar_cnn.ImageFolder(cifar_cnn.prepare_data(None) / "train"),
    "tensors": lambda _: Tensors(),
    "files": Files,
    "objects": lambda _: Objects(),
}


def step() -> Callable[[], None]:
    model = cifar_cnn.SimpleCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))

    def call() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return call


def sweep() -> Callable[[], object]:
    memory, objects = np.ones(96 << 20, np.uint8), [{"number": each, "names": [str(each)]} for each in range(30_000)]
    return lambda: memory[::64].sum() + sum(each["number"] + len(each["names"]) for each in objects[::3])


def measured(look: Callable[[], object], before: dict[str, Callable[[], object]], repetitions: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {name: [] for name in before}
    for _ in range(repetitions):
        for name, work in before.items():
            work()
            began = time.perf_counter()
            look()
            found[name].append(1e6 * (time.perf_counter() - began))
    return {name: [round(min(each), 1), round(float(np.median(each)), 1)] for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--repetitions", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    works = {"step": step(), "cold": sweep()}
    for name in options.kinds or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            source = Source.of(DataLoader(KINDS[name](folder), batch_size=16))
            unchanged = Unchanged(source.roots, fingerprint(*source.roots))
            look = unchanged.changed
            assert look() is None
            print(json.dumps({"kind": name, **measured(look, {"hot": look, **works}, options.repetitions)}), flush=True)


if __name__ == "__main__":
    main()
