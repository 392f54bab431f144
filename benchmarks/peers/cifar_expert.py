"""The program of examples/cifar_cnn.py as somebody who knows PyTorch's performance guide writes it by hand:
worker processes kept between epochs, channels_last, bf16 autocast, no waiting for the loss at every step; on a GPU
also pinned memory and torch.compile (which makes this network slower on a CPU)."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from cifar_cnn import ImageFolder, SimpleCNN, evaluate, prepare_data


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--data", help="folder with train/ and test/, or the train zip (test zip beside it)")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"

    root = prepare_data(args.data)
    train_set, test_set = ImageFolder(root / "train"), ImageFolder(root / "test")
    loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=min(8, len(os.sched_getaffinity(0))),
        persistent_workers=True,
        pin_memory=cuda,
    )

    model = SimpleCNN().to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    if cuda:
        model.compile()
    start = time.perf_counter()
    model.train()
    for epoch in range(args.epochs):
        running_loss = torch.zeros((), device=device)
        for images, labels in loader:
            images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.detach()
        print(f"Epoch {epoch + 1}/{args.epochs}  loss {running_loss.item() / len(loader):.4f}")
    train_seconds = time.perf_counter() - start  # the last .item() has waited for the device

    print(f"Accuracy: {evaluate(model, DataLoader(test_set, batch_size=args.batch_size), device):.2f}")
    steps, samples = args.epochs * len(loader), args.epochs * len(train_set)
    print(json.dumps({"steps": steps, "samples": samples, "train_seconds": round(train_seconds, 3)}))


if __name__ == "__main__":
    main()
