"""The program of examples/cifar_cnn.py moved to Hugging Face Accelerate (bf16, 2 workers)."""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
from accelerate import Accelerator
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
    accelerator = Accelerator(mixed_precision="bf16")

    root = prepare_data(args.data)
    train_set, test_set = ImageFolder(root / "train"), ImageFolder(root / "test")
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)

    model = SimpleCNN()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    start = time.perf_counter()
    model.train()
    for epoch in range(args.epochs):
        running_loss = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            running_loss += loss.item()
        print(f"Epoch {epoch + 1}/{args.epochs}  loss {running_loss / len(loader):.4f}")
    train_seconds = time.perf_counter() - start

    model = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    test_loader = DataLoader(test_set, batch_size=args.batch_size)
    print(f"Accuracy: {evaluate(model, test_loader, accelerator.device):.2f}")
    steps, samples = args.epochs * len(loader), args.epochs * len(train_set)
    print(json.dumps({"steps": steps, "samples": samples, "train_seconds": round(train_seconds, 3)}))


if __name__ == "__main__":
    main()
