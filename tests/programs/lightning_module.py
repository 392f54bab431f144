import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", ".*does not have many workers.*")


class LitClassifier(L.LightningModule):
    def __init__(self, n_in=10, hidden=32, n_classes=3, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(n_in, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Dropout(0.1), nn.Linear(hidden, n_classes))
        self.history = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def on_validation_epoch_end(self):
        self.history.append(self.trainer.callback_metrics["val_loss"].item())

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10)
        return {"optimizer": opt, "lr_scheduler": sched}


class BlobData(L.LightningDataModule):
    def setup(self, stage=None):
        centers = torch.randn(3, 10)
        y = torch.randint(0, 3, (400,))
        full = TensorDataset(centers[y] + torch.randn(400, 10), y)
        self.train_set, self.val_set = random_split(full, [320, 80])

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=40)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    L.seed_everything(5, verbose=False)
    model = LitClassifier()
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
    )
    trainer.fit(model, datamodule=BlobData())
    for i, v in enumerate(model.history):
        print(f"epoch {i} val_loss {v:.8f}")
    print(f"final loss {trainer.callback_metrics['train_loss'].item():.8f}")
