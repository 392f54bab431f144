import argparse
from typing import Dict, List

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD = 0


class ReviewDataset(Dataset):
    """Fake product reviews: the label says whether good words outnumber bad ones."""

    def __init__(self, n: int, vocab: int = 60, seed: int = 0):
        rng = np.random.RandomState(seed)
        self.items = []
        for i in range(n):
            length = rng.randint(4, 20)
            tokens = rng.randint(1, vocab, size=length)
            score = (tokens < 20).sum() - (tokens >= 40).sum()
            self.items.append({"id": i, "tokens": tokens.tolist(), "label": int(score > 0)})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, idx):
        return self.items[idx]


def collate_fn(batch: List[dict]) -> Dict[str, object]:
    batch = sorted(batch, key=lambda b: len(b["tokens"]), reverse=True)
    return {
        "ids": [b["id"] for b in batch],
        "tokens": pad_sequence([torch.tensor(b["tokens"]) for b in batch],
                               batch_first=True, padding_value=PAD),
        "lengths": torch.tensor([len(b["tokens"]) for b in batch]),
        "labels": torch.tensor([b["label"] for b in batch]),
    }


class GRUClassifier(nn.Module):
    def __init__(self, vocab: int = 60, dim: int = 16, hidden: int = 24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.gru = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.emb(tokens), lengths, batch_first=True)
        _, h = self.gru(packed)
        return self.out(torch.cat([h[0], h[1]], dim=-1))


def to_device(batch, device):
    return {k: (v.to(device) if torch.is_tensor(v) and k != "lengths" else v) for k, v in batch.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--batch_size", default=16, type=int)
    args = parser.parse_args()

    torch.manual_seed(42)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader = DataLoader(ReviewDataset(256, seed=1), batch_size=args.batch_size,
                              shuffle=True, collate_fn=collate_fn)
    test_loader = DataLoader(ReviewDataset(96, seed=2), batch_size=32, collate_fn=collate_fn)

    model = GRUClassifier().to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        longest = 0
        for batch in train_loader:
            batch = to_device(batch, device)
            optimizer.zero_grad()
            loss = loss_fn(model(batch["tokens"], batch["lengths"]), batch["labels"])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch["ids"])
            longest = max(longest, batch["tokens"].shape[1])

        model.eval()
        wrong = []
        with torch.no_grad():
            for batch in test_loader:
                batch = to_device(batch, device)
                pred = model(batch["tokens"], batch["lengths"]).argmax(-1)
                wrong += [i for i, p, l in zip(batch["ids"], pred.tolist(), batch["labels"].tolist()) if p != l]
        print("epoch %d: loss %.7f, longest %d, test errors %d %s"
              % (epoch, total / 256, longest, len(wrong), sorted(wrong)[:5]))
