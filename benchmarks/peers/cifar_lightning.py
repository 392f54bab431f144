"""The program of examples/cifar_cnn.py for Lightning (bf16-mixed, 2 workers, no logger)."""

import argparse
import json
import sys
import time
from pathlib import Path

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from cifar_cnn import ImageFolder, SimpleCNN, evaluate, prepare_data


class LitCNN(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.model = SimpleCNN()
        self.criterion = nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return self.criterion(self.model(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Stopwatch(L.Callback):
    """From on_fit_start, because Lightning starts the workers before on_train_start."""

    def on_fit_start(self, trainer, module):
        self.start = time.perf_counter()

    def on_train_end(self, trainer, module):
        if module.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--data", help="folder with train/ and test/, or the train zip (test zip beside it)")
    args = parser.parse_args()

    torch.manual_seed(0)

    root = prepare_data(args.data)
    train_set, test_set = ImageFolder(root / "train"), ImageFolder(root / "test")
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)

    module = LitCNN(args.lr)
    stopwatch = Stopwatch()
    trainer = L.Trainer(
        max_epochs=args.epochs,
        devices=1,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[stopwatch],
    )
    trainer.fit(module, loader)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    test_loader = DataLoader(test_set, batch_size=args.batch_size)
    print(f"Accuracy: {evaluate(module.model.to(device), test_loader, device):.2f}")
    steps, samples = trainer.global_step, args.epochs * len(train_set)
    print(json.dumps({"steps": steps, "samples": samples, "train_seconds": round(stopwatch.seconds, 3)}))


if __name__ == "__main__":
    main()
