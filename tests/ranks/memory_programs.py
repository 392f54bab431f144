"""Programs that tell what they hold at their peak: an MLP and a GPT, run by name. Printed are bytes, in a steady step.

With the word `warm` a small model is trained before, so that what is loaded on the way does not count. With `at=NAME`
each rank sends its bytes to that abstract socket. With `limit=BYTES` the process may have so many more than it has then
(0: as many as it likes), and losses are printed in place of bytes. With the word `hooked` the model carries a hook.
"""

from __future__ import annotations

import ctypes
import resource
import socket
import sys

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 2048


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        q, k, v = self.attention(self.norms[0](x)).view(n, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, c)
        x = x + self.projection(mixed)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    def __init__(self, width: int = 768, layers: int = 6) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(512, width), nn.Embedding(16, width)
        self.blocks, self.head = nn.ModuleList(Block(width) for _ in range(layers)), nn.Linear(width, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x) + self.places(torch.arange(x.shape[1]))
        for each in self.blocks:
            x = each(x)
        return self.head(x)


def mlp(width: int = WIDTH, layers: int = 8) -> nn.Module:
    between = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), *between, nn.Linear(width, 10))


def held(name: str) -> int:
    """Bytes, of a line of this process's status."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def train(model: nn.Module, words: bool, steps: int, losses: bool = False) -> int:
    """The peak of the last steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        if step == steps // 2:
            ctypes.CDLL(None).malloc_trim(0)
            with open("/proc/self/clear_refs", "w") as peak:
                peak.write("5")
        if words:
            x, y = torch.randint(512, (4, 16)), torch.randint(512, (4, 16))
        else:
            x, y = torch.randn(8, 16), torch.randint(10, (8,))
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if losses:
            print("loss", step, repr(loss.item()), flush=True)
    return held("VmHWM")


def main(name: str, warm: bool, hooked: bool, limit: int | None, at: str) -> None:
    torch.manual_seed(0)
    words = name == "gpt"
    if warm:
        train(GPT(16, 2) if words else mlp(16, 2), words, 4)
    before = held("VmRSS")
    if limit:
        most = held("VmData") + limit
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    model = GPT() if words else mlp()
    if hooked:
        model.register_forward_hook(lambda *_: None)
    peak = train(model, words, 10 if warm else 80, limit is not None) - before
    if at:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.sendto(str(peak).encode(), f"\0{at}")
    if limit is None:
        print(peak)


if __name__ == "__main__":
    words = sys.argv[1:]
    given = dict(each.split("=") for each in words if "=" in each)
    limit = int(given["limit"]) if "limit" in given else None
    main(words[0], "warm" in words, "hooked" in words, limit, given.get("at", ""))
