"""Small programs on a GPU, for real trials of them; each brings the stand-in itself: `programs.py images`.

At each step a run leaves a line of what its device did in the file that `STAND_IN_TELLS` names: by these is told
whether a technique acted, which an exact one cannot show by its results.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fakes.cuda import fake_cuda
from tests.fakes.gpu import FakeGpu

EPOCHS = 3


class Images(Dataset):
    """Made one by one."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.images = torch.rand(64, 3, 8, 8, dtype=dtype)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        return image * 2 - 1, int(image.mean() * 1000) % 4


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 9, 4)
    )


def _train_images(model: nn.Module, device: str, dtype: torch.dtype = torch.float32) -> None:
    data = Images(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        for images, labels in DataLoader(data, 8, shuffle=True):
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            stepped()
        model.eval()
        with torch.no_grad():
            model(data.images[:8].to(device)).sum().item()
        model.train()


def images() -> None:
    """A CNN with batch normalisation and a loader; copies that hold up the host."""
    _train_images(convolutions().to("cuda"), "cuda")


def doubles() -> None:
    """The same in 64 bits."""
    _train_images(convolutions().to("cuda", torch.float64), "cuda", torch.float64)


def on_the_cpu() -> None:
    """The same, by somebody who has no GPU."""
    _train_images(convolutions(), "cpu")


class Wide(nn.Module):
    """A convolution as large as its image."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(4, 4, 31, padding=15, groups=4)
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.mix(x)).mean((2, 3)))  # type: ignore[no-any-return]


def wide() -> None:
    """Deterministic: a transform is then chosen by what it computes, and not by its time, of which there is none."""
    torch.use_deterministic_algorithms(True)
    model = Wide().to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(8):
        x = torch.randn(2, 4, 40, 40)
        loss = F.cross_entropy(model(x.to("cuda")), torch.randint(4, (2,)).to("cuda"))
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        loss.item()
        stepped()


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (each.view(split).transpose(1, 2) for each in self.queries(self.first(x)).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)))))


class Gpt(nn.Module):
    def __init__(self, words: int = 24, length: int = 12, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, 2) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("order", torch.arange(length), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(self.order)
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def gpt() -> None:
    """A small GPT: batches pinned and copied without waiting, gradients of two batches together, clipping, a
    schedule."""
    text = (torch.arange(600) * 7 + torch.arange(600) // 5) % 24
    model = Gpt().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def batch() -> list[torch.Tensor]:
        starts = torch.randint(len(text) - 13, (4,)).tolist()
        both = [torch.stack([text[at + more : at + more + 12] for at in starts]) for more in (0, 1)]
        return [each.pin_memory().to("cuda", non_blocking=True) for each in both]

    for step in range(10):
        for _ in range(2):
            tokens, following = batch()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), following.flatten()) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 3 == 2:
            loss.item()
        stepped()


def scaled() -> None:
    """An MLP under autocast of its own to 16 bits, with a GradScaler, whose first steps overflow and are skipped."""
    x = torch.randn(56, 16)
    data = TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3)).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20)
    for _ in range(EPOCHS):
        for batch, labels in DataLoader(data, 8, shuffle=True, pin_memory=True):
            there, wanted = batch.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = F.cross_entropy(model(there), wanted)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
            loss.item()
            stepped()


def answers() -> None:
    """It trains nothing, and forgot to say so: each call keeps what a backward pass would need, which is told."""
    model = convolutions().to("cuda").eval()
    data = Images()
    for number, (images_, labels) in enumerate(batch for _ in range(3) for batch in DataLoader(data, 8)):
        there = images_.to("cuda")
        before = _allocated()
        answer = model(there)
        kept = _allocated() - before if number else 0  # in the first call Overdrive begins to keep copies of buffers
        (answer.argmax(1) == labels.to("cuda")).sum().item()
        del answer
        stepped(kept)


PROGRAMS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (images, gpt, scaled, doubles, wide, answers, on_the_cpu)
}
_stand_in: list[FakeGpu] = []
_steps = itertools.count(1)


def _allocated() -> int:
    _stand_in[0].sweep()
    return _stand_in[0].allocated


def stepped(kept: int = 0) -> None:
    """
    Args:
        kept: bytes on the device that the model's call has left there.

    Raises:
        RuntimeError: there was a race, also where somebody caught that error, a technique that falls back, perhaps.
    """
    gpu = _stand_in[0]
    if gpu.order.found:
        raise RuntimeError(f"a race: {gpu.order.found[0]}")
    if path := os.environ.get("STAND_IN_TELLS"):
        with open(path, "a") as file:
            file.write(json.dumps({**_told(gpu), "kept": kept}) + "\n")


def _told(gpu: FakeGpu) -> dict[str, Any]:
    from overdrive.seams.torch.control import product_precision

    return {
        "step": next(_steps),
        **{name: getattr(gpu, name) for name in ("launches", "captures", "replays", "copies")},
        "waits": len(gpu.synced),
        "streams": len(gpu.order.actors()),
        "operations": dict(sorted(gpu.kinds.items())),
        "libraries": [torch.backends.cudnn.benchmark, product_precision("cuda", "matmul")],
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF", ""),
    }


def main(name: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with fake_cuda() as gpu:
        _stand_in[:] = [gpu]
        PROGRAMS[name]()
        if gpu.order.found:
            raise RuntimeError(f"a race: {gpu.order.found[0]}")


if __name__ == "__main__":
    main(sys.argv[1])
