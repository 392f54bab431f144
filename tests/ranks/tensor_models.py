"""Models as people write them, small, to be divided over ranks: attention in four ways, tables, convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

WORDS = 13  # of a vocabulary that two ranks cannot share evenly


class OneMatrix(nn.Module):
    """A layer of a transformer whose queries, keys and values are one more dimension."""

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
        self.blocks, self.norm = nn.ModuleList(OneMatrix(16) for _ in range(2)), nn.LayerNorm(16)
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


class FusedAttention(nn.Module):
    """Queries, keys and values in one matrix, one after the other; as in nanoGPT."""

    def __init__(self, width: int, heads: int, by_hand: bool) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.width, self.by_hand = heads, width, by_hand
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.width, dim=2)
        q = q.view(n, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(n, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(n, t, self.heads, c // self.heads).transpose(1, 2)
        if self.by_hand:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
            y = F.dropout(F.softmax(scores, dim=-1), 0.1, self.training) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        return F.dropout(self.c_proj(y.transpose(1, 2).contiguous().view(n, t, c)), 0.1, self.training)


class GroupedAttention(nn.Module):
    """Heads of queries that share keys and values, with rotary places; as in Llama."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        self.size, self.repeats = width // heads, heads // shared
        self.q_proj = nn.Linear(width, heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, shared * self.size, bias=False)
        self.v_proj = nn.Linear(width, shared * self.size, bias=False)
        self.o_proj = nn.Linear(heads * self.size, width, bias=False)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[2])[:, None] / 10 ** torch.arange(0, 1, 2 / self.size).repeat(2)
        one, other = x[..., : self.size // 2], x[..., self.size // 2 :]
        return x * angles.cos() + torch.cat((-other, one), dim=-1) * angles.sin()

    def repeated(self, x: torch.Tensor) -> torch.Tensor:
        n, heads, t, size = x.shape
        x = x[:, :, None, :, :].expand(n, heads, self.repeats, t, size)
        return x.reshape(n, heads * self.repeats, t, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = (*x.shape[:-1], -1, self.size)
        q = self.turned(self.q_proj(x).view(seen).transpose(1, 2))
        k = self.turned(self.k_proj(x).view(seen).transpose(1, 2))
        v = self.v_proj(x).view(seen).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, self.repeated(k), self.repeated(v), is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(*x.shape[:-1], -1))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    """With a head that has the table's weights, unless it is grouped; gives logits and, with targets, a loss."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 16), nn.Embedding(16, 16)
        attention: Callable[[], nn.Module] = {
            "fused": lambda: FusedAttention(16, 4, by_hand=False),
            "no optimizer": lambda: FusedAttention(16, 4, by_hand=True),
            "grouped": lambda: GroupedAttention(16, 4, 2),
        }[kind]
        between: Callable[[], nn.Module] = (
            (lambda: Gated(16))
            if kind == "grouped"
            else lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(0.1))
        )
        self.attention = nn.ModuleList(attention() for _ in range(2))
        self.between = nn.ModuleList(between() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(5))
        self.head = nn.Linear(16, WORDS, bias=False)
        if kind != "grouped":
            self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = F.dropout(self.words(x) + self.places(torch.arange(x.shape[1])), 0.1, self.training)
        for place in range(2):
            x = x + self.attention[place](self.norms[2 * place](x))
            x = x + self.between[place](self.norms[2 * place + 1](x))
        logits = self.head(self.norms[4](x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class Encoder(nn.Module):
    """PyTorch's own layers, with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16, padding_idx=0)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True), 2)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(x), src_key_padding_mask=x == 0)[:, 0])


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.first, self.places = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 5, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.layers(x)[:, 0])


class Residual(nn.Module):
    """Two convolutions (of a ResNet-18), or three (of a ResNet-50), and a way around them."""

    def __init__(self, given: int, width: int, stride: int = 1, three: bool = False) -> None:
        super().__init__()
        out = 4 * width if three else width
        first = nn.Conv2d(given, width, 1 if three else 3, 1 if three else stride, 0 if three else 1, bias=False)
        self.conv1, self.bn1 = first, nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride if three else 1, 1, bias=False), nn.BatchNorm2d(width)
        third = nn.Conv2d(width, out, 1, bias=False)
        self.rest = nn.Sequential(nn.ReLU(), third, nn.BatchNorm2d(out)) if three else None
        self.relu, self.around = nn.ReLU(inplace=True), None
        if stride != 1 or given != out:
            self.around = nn.Sequential(nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.rest is not None:
            out = self.rest(out)
        out += x if self.around is None else self.around(x)
        return self.relu(out)


def resnet(three: bool = False) -> nn.Module:
    times = 4 if three else 1
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
        *(Residual(8, 8, 1, three), Residual(8 * times, 8, 1, three), Residual(8 * times, 16, 2, three)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(16 * times, 10)),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def twice(given: int, out: int) -> nn.Module:
            return nn.Sequential(
                *(nn.Conv2d(given, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)),
                *(nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(4, out), nn.ReLU(inplace=True)),
            )

        self.down, self.deep, self.bottom = twice(3, 8), twice(8, 16), twice(16, 32)
        self.up1, self.join1 = nn.ConvTranspose2d(32, 16, 2, 2), twice(32, 16)
        self.up2, self.join2 = nn.ConvTranspose2d(16, 8, 2, 2), twice(16, 8)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down(x)
        b = self.deep(F.max_pool2d(a, 2))
        y = self.up1(self.bottom(F.max_pool2d(b, 2)))
        y = self.up2(self.join1(torch.cat([b, y], 1)))
        return self.head(self.join2(torch.cat([a, y], 1)))


def mobile() -> nn.Module:
    """With a convolution of each channel by itself."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8)),
        *(nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(16, 4)),
    )


def words() -> torch.Tensor:
    return torch.randint(1, WORDS, (4, 8))


def pictures() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8)


# By name: what makes the model, and what it is called with.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "fused": (lambda: Decoder("fused"), lambda: (words(), words())),
    "no optimizer": (lambda: Decoder("no optimizer"), lambda: (words(), words())),
    "grouped": (lambda: Decoder("grouped"), lambda: (words(), words())),
    "encoder": (Encoder, lambda: (words() * (torch.arange(8) < 6),)),
    "vit": (ViT, lambda: (pictures(),)),
    "resnet": (resnet, lambda: (pictures(),)),
    "resnet of three": (lambda: resnet(three=True), lambda: (pictures(),)),
    "unet": (UNet, lambda: (pictures(),)),
    "mobile": (mobile, lambda: (pictures(),)),
}
