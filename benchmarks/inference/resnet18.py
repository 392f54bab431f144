"""ResNet-18 over pictures, as people write it: python resnet18.py [--pictures 4096] [--batch 16] [--size 224]."""

import argparse

import torch
import torch.nn as nn
from fitted import fit_last_layer
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Pixels as a decoder gives them, of a few things, each time a little further to the right; normalised as for
    ImageNet."""

    def __init__(self, count, things, size):
        self.count = count
        blobs = nn.functional.interpolate(torch.rand(things, 3, 7, 7), (size, size), mode="bicubic")
        self.pixels = (255 * blobs.clamp(0, 1)).to(torch.uint8)
        self.mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        self.std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        shift, thing = divmod(index, len(self.pixels))
        return (self.pixels[thing].roll(shift, -1).float() / 255 - self.mean) / self.std, index


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.layers = nn.Sequential(*(nn.Sequential(BasicBlock(i, o, s), BasicBlock(o, o, 1)) for i, o, s in widths))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


parser = argparse.ArgumentParser()
parser.add_argument("--pictures", type=int, default=4096)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--size", type=int, default=224)
args = parser.parse_args()


torch.manual_seed(0)
model = ResNet18()
for module in model.modules():  # as if it were trained
    if isinstance(module, nn.BatchNorm2d):
        module.running_mean.normal_(0, 0.2)
        module.running_var.uniform_(0.5, 1.5)
model.eval()
counts = torch.zeros(1000, dtype=torch.long)
pictures = Pictures(args.pictures, max(16, args.batch), args.size)
with torch.no_grad():
    fit_last_layer(model, torch.stack([pictures[index][0] for index in range(len(pictures.pixels))]), args.batch)
    for images, _ in DataLoader(pictures, batch_size=args.batch):
        found = model(images).argmax(dim=1)
        counts += torch.bincount(found, minlength=1000)
print("most frequent:", counts.argmax().item(), counts.max().item())
