"""Programs whose layers are divided, run by name: an MLP, a small GPT, and what is not to be divided.

Each prints its losses in fp64, the norms that it clips by, and what its states have come to: all as in one process.
"""

from __future__ import annotations

import copy
import io
import sys

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.ModuleDict({"up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        q, k, v = self.attention(self.first_norm(x)).view(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, c)
        x = x + F.dropout(self.projection(mixed), 0.1, self.training)
        return x + F.dropout(self.mlp["down"](F.gelu(self.mlp["up"](self.second_norm(x)))), 0.1, self.training)


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 16), nn.Embedding(8, 16)
        self.blocks, self.norm = nn.ModuleList(Block(16) for _ in range(2)), nn.LayerNorm(16)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for each in self.blocks:
            x = each(x)
        return self.head(self.norm(x))


class Softmaxed(nn.Module):
    """What lies between looks at all outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x).softmax(-1))


class Dropped(Softmaxed):
    """What lies between draws random numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(F.dropout(self.one(x), 0.5, self.training))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 8, bias=False), nn.Linear(8, 3)
    )


def digest(state: object) -> float:
    if isinstance(state, torch.Tensor):
        places = torch.arange(1, state.numel() + 1, dtype=torch.float64)
        return float((state.double().flatten() * places.sin()).sum())
    values = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return sum(map(digest, values))


def train(name: str, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple], steps: int) -> None:
    for step, (x, y) in enumerate(batches[:steps]):
        optimizer.zero_grad()
        made = model(x)
        loss = F.cross_entropy(made.flatten(0, -2), y.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5, float("inf") if step % 3 == 2 else 2.0)
        optimizer.step()
        print(name, step, repr(loss.item()), repr(norm.item()))


def main(name: str) -> None:
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    kinds = {"gpt": GPT, "softmaxed": Softmaxed, "dropped": Dropped, "mlp": mlp}
    model = kinds[name]()
    if name == "gpt":
        batches = [(torch.randint(11, (4, 8)), torch.randint(11, (4, 8))) for _ in range(8)]
    else:
        batches = [(torch.randn(5, 6), torch.randint(3, (5,))) for _ in range(8)]
    optimizer = (
        torch.optim.AdamW(model.parameters(), lr=0.01)
        if name != "mlp"
        else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    train(name, model, optimizer, batches, 5)
    kept = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "whole": model}, kept)
    kept.seek(0)
    loaded = torch.load(kept, weights_only=False)
    print(name, "shapes", [list(each.shape) for each in loaded["model"].values()])
    print(name, "states", repr(digest(loaded["model"])), repr(digest(loaded["optimizer"]["state"])))
    whole, average = loaded["whole"].eval(), copy.deepcopy(model)
    print(name, "kinds", sorted({type(each).__name__ for each in whole.modules()}))
    model.eval()
    with torch.no_grad():
        print(name, "made", *(repr(float(each(batches[0][0]).sum())) for each in (model, whole, average.eval())))
    model.train()
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1.0)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    train(f"{name} again", model, optimizer, batches[5:], 3)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        main(each)
