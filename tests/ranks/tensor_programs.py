"""Programs whose layers are divided, run by name: an MLP, a small GPT, and what is not to be divided.

Each prints its losses in fp64, the norms that it clips by, and what its states have come to: all as in one process.
"""

from __future__ import annotations

import copy
import io
import sys

import torch
import torch.nn.functional as F
from tensor_models import GPT, Dropped, Encoder, Softmaxed, UNet, ViT, mlp, resnet
from torch import nn


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
    kinds = {"gpt": GPT, "softmaxed": Softmaxed, "dropped": Dropped, "mlp": mlp, "encoder": Encoder, "resnet": resnet}
    model = {**kinds, "vit": ViT, "unet": UNet}[name]()
    if name == "gpt":
        batches = [(torch.randint(11, (4, 8)), torch.randint(11, (4, 8))) for _ in range(8)]
    elif name == "encoder":
        batches = [(torch.randint(20, (4, 8)), torch.randint(4, (4,))) for _ in range(8)]
    elif name in ("resnet", "vit"):
        batches = [(torch.randn(3, 3, 8, 8), torch.randint(10, (3,))) for _ in range(8)]
    elif name == "unet":  # rows of its pictures are the classes
        batches = [(torch.randn(3, 3, 8, 8), torch.randint(8, (3, 2, 8))) for _ in range(8)]
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
