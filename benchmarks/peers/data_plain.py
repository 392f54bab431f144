"""Fetches CIFAR-10 as JPEG files and does nothing else: a data set and a DataLoader as people write them.

What the other `data_*.py` have in common with it is imported from here.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from cifar_cnn import MEAN, STD, ImageFolder, build_once, prepare_data


class Images(ImageFolder):
    """`count` of the images, evenly spread over the classes."""

    def __init__(self, root, count):
        super().__init__(root)
        count = min(count, len(self.samples))
        self.samples = [self.samples[number * len(self.samples) // count] for number in range(count)]


class AugmentedImages(Images):
    def __getitem__(self, index):
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB")
        image = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        image = F.pad(image, (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        if torch.rand(1) < 0.5:
            image = image.flip(2)
        return (image.float() / 255 - MEAN) / STD, label


def transform(image):
    """What the data set above does to an opened image, for the peers that open it themselves."""
    image = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255
    return (image - MEAN) / STD


def augment(image):
    image = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    image = F.pad(image, (4, 4, 4, 4))
    top, left = torch.randint(0, 9, (2,)).tolist()
    image = image[:, top : top + 32, left : left + 32]
    if torch.rand(1) < 0.5:
        image = image.flip(2)
    return (image.float() / 255 - MEAN) / STD


def options(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", help="folder with train/ and test/, or the train zip (test zip beside it)")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--augment", action="store_true", help="random crop and flip")
    parser.add_argument("--rows", action="store_true", help="decoded and normalised beforehand, held in memory")
    parser.add_argument("--bare", action="store_true", help="no DataLoader: rows copied into one piece of memory")
    parser.add_argument("--prepare", action="store_true", help="only write the peer's own format")
    return parser


def prepared(args, peer, build):
    """The folder in which the peer keeps the samples in its own format; `build(folder, samples)` makes it."""
    samples = Images(prepare_data(args.data) / "train", args.samples).samples

    def make(folder):
        folder.mkdir()
        build(folder, samples)

    folder = build_once(f"data-{peer}-{len(samples)}", make)
    if args.prepare:
        print(json.dumps({"prepared": str(folder)}))
        sys.exit()
    return folder


def measure(loader, epochs):
    """Seconds of each epoch; and what was seen, so that all arms can be held against each other."""
    seconds = []
    for _ in range(epochs):
        start = time.perf_counter()
        samples = label_sum = 0
        for batch in loader:
            images, labels = batch.values() if isinstance(batch, dict) else batch
            assert images.shape[1:] == (3, 32, 32) and images.dtype is torch.float32
            samples += len(images)
            label_sum += int(labels.sum())
        seconds.append(round(time.perf_counter() - start, 4))
    last = float(images.double().sum())
    print(json.dumps({"seconds": seconds, "samples": samples, "label_sum": label_sum, "last_batch": last}))


def rows_of(dataset):
    images, labels = zip(*DataLoader(dataset, 500), strict=True)
    return TensorDataset(torch.cat(images), torch.cat(labels))


class Bare:
    """What is left when nothing but the copying is done: the limit for all others."""

    def __init__(self, rows, size):
        self.images, self.labels = rows.tensors
        self.size = size
        self.batch = torch.empty(size, *self.images.shape[1:])

    def __iter__(self):
        source, target = self.images.flatten(1).numpy(), self.batch.flatten(1).numpy()
        order = torch.randperm(len(source))
        for numbers in order.split(self.size):
            np.take(source, numbers.numpy(), axis=0, out=target[: len(numbers)], mode="clip")
            yield self.batch[: len(numbers)], self.labels[numbers]


def main():
    args = options(__doc__).parse_args()
    root = prepare_data(args.data) / "train"
    if args.prepare:
        return
    torch.manual_seed(0)
    dataset = (AugmentedImages if args.augment else Images)(root, args.samples)
    if args.rows:
        dataset = rows_of(dataset)
    if args.bare:
        return measure(Bare(dataset, args.batch_size), args.epochs)
    measure(DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers), args.epochs)


if __name__ == "__main__":
    main()
