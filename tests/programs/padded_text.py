import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

WORDS = ["the", "a", "dog", "cat", "runs", "sleeps", "over", "under", "quick", "lazy", "red", "old"]
VOCAB = {c: i + 1 for i, c in enumerate("abcdefghijklmnopqrstuvwxyz ")}


class TextDataset(Dataset):
    """Made-up sentences, tokenized on the fly."""

    def __init__(self, n, seed=0):
        rng = random.Random(seed)
        self.texts = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 15))) for _ in range(n)]
        self.labels = [int(t.count("dog") > t.count("cat")) for t in self.texts]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, idx):
        ids = [VOCAB[c] for c in self.texts[idx].lower()]
        bigrams = [27 + (a * 31 + b) % 400 for a, b in zip(ids, ids[1:])]
        return torch.tensor(ids + bigrams), self.labels[idx]


def collate(batch, p_mask=0.1):
    tokens, labels = zip(*batch)
    padded = pad_sequence(tokens, batch_first=True)
    if p_mask:
        padded[torch.rand(padded.shape) < p_mask] = 0
    return padded, torch.tensor([len(t) for t in tokens]), torch.tensor(labels)


class BagClassifier(nn.Module):
    def __init__(self, vocab=430, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.fc = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x, lengths):
        return self.fc(self.emb(x).sum(1) / lengths[:, None])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--n", type=int, default=300)
    args = parser.parse_args()
    torch.manual_seed(0)

    train = DataLoader(TextDataset(args.n, seed=1), batch_size=24, shuffle=True, drop_last=True, collate_fn=collate)
    test = DataLoader(TextDataset(80, seed=2), batch_size=40, collate_fn=lambda b: collate(b, p_mask=0))

    model = BagClassifier()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for x, lengths, y in train:
            loss = F.cross_entropy(model(x, lengths), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            right = sum((model(x, n).argmax(1) == y).sum().item() for x, n, y in test)
        print(f"epoch {epoch} loss {total / len(train):.7f} right {right}/80")
