import torch
from torch import nn


class SEBlock(nn.Module):
    def __init__(self, c, r=2):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(c, c // r), nn.ReLU(inplace=True), nn.Linear(c // r, c), nn.Sigmoid())

    def forward(self, x):
        w = self.fc(x.mean(dim=(2, 3)))
        return x * w[:, :, None, None]


class TinyNet(nn.Module):
    def __init__(self, in_ch, width, n_classes, p_drop):
        super().__init__()
        self.block1 = nn.Sequential(
            nn.Conv2d(in_ch, width, 3, padding=1), nn.GroupNorm(2, width), nn.SiLU(), SEBlock(width))
        self.block2 = nn.Sequential(
            nn.Conv2d(width, width, 3, stride=2, padding=1, groups=width), nn.Conv2d(width, 2 * width, 1), nn.SiLU())
        self.drop = nn.Dropout(p_drop)
        self.head = nn.Linear(2 * width, n_classes)

    def forward(self, x):
        x = self.block2(self.block1(x))
        x = torch.amax(x, dim=(2, 3))
        return self.head(self.drop(x))


def build_model(cfg):
    return TinyNet(cfg["in_ch"], cfg["width"], cfg["n_classes"], cfg.get("p_drop", 0.1))
