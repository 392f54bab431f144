"""A small GPT that predicts the next token: attention written out, as in many tutorials."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = 256


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.tril(torch.ones(context, context)).bool())

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).split(c, dim=2))
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        weights = weights.masked_fill(~self.mask[:t, :t], float("-inf")).softmax(dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, layers, width, context):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, max(1, width // 64), context) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.ln(self.blocks(self.tokens(tokens) + self.places(places))))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def make_data(args):
    """Text of a made-up language: each token follows from the one before, with some noise."""
    successor = torch.randperm(VOCABULARY)
    rows = [torch.randint(VOCABULARY, (2048,))]
    for _ in range(args.context):
        noise = torch.rand(2048) < 0.2
        rows.append(torch.where(noise, torch.randint(VOCABULARY, (2048,)), successor[rows[-1]]))
    text = torch.stack(rows, dim=1)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def make_model(args):
    return GPT(args.layers, args.width, args.context)


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4)


def loss_of(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def main():
    args = arguments().parse_args()
    torch.manual_seed(0)
    inputs, targets = (tensor.to(args.device) for tensor in make_data(args))
    model = make_model(args).to(args.device)
    optimizer = make_optimizer(model)
    for epoch in range(args.epochs):
        total = 0.0
        order = torch.randperm(len(inputs), device=args.device)
        for i in range(0, len(inputs), args.batch_size):
            batch = order[i : i + args.batch_size]
            loss = loss_of(model(inputs[batch]), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total * args.batch_size / len(inputs):.4f}")


if __name__ == "__main__":
    main()
