"""A small GPT that goes on from a few tokens, 64 more, as people write it: python gpt.py [--requests 200]."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (
            each.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for each in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, words=5000, width=256, heads=8, layers=6, length=128):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x))[:, -1])


@torch.no_grad()
def generate(model, tokens, count):
    for _ in range(count):
        tokens = torch.cat([tokens, model(tokens).argmax(dim=-1, keepdim=True)], dim=1)
    return tokens


parser = argparse.ArgumentParser()
parser.add_argument("--requests", type=int, default=200)
parser.add_argument("--tokens", type=int, default=64)
args = parser.parse_args()

torch.manual_seed(0)
model = GPT()
model.eval()
total = 0
for _ in range(args.requests):
    total += generate(model, torch.randint(5000, (1, 16)), args.tokens)[0, 16:].sum().item()
print("sum of the tokens:", total)
