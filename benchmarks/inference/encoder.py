"""A six-layer encoder that answers requests, as people write it: python encoder.py [--requests 20000] [--batch 1]."""

import argparse

import torch
import torch.nn as nn


class Classifier(nn.Module):
    def __init__(self, words=30000, width=256, heads=8, layers=6, length=512):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.encoder(x)[:, 0])


parser = argparse.ArgumentParser()
parser.add_argument("--requests", type=int, default=20000)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--tokens", type=int, default=64)
args = parser.parse_args()

torch.manual_seed(0)
model = Classifier()
model.eval()
positive = 0
for _ in range(args.requests):
    tokens = torch.randint(30000, (args.batch, args.tokens))
    with torch.inference_mode():
        logits = model(tokens)
    positive += (logits.softmax(dim=-1)[:, 1] > 0.5).sum().item()
print("positive:", positive)
