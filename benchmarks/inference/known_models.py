"""A model of torchvision over pictures, as people write it: python known_models.py resnet50 [--batch 16]."""

import argparse

import torch
import torchvision
from fitted import fit_last_layer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Pixels as a decoder gives them, of a few things, each time a little further to the right, with PyTorch's usual
    transforms."""

    def __init__(self, count, things, size):
        self.count = count
        blobs = nn.functional.interpolate(torch.rand(things, 3, 7, 7), (size, size), mode="bicubic")
        self.pixels = (255 * blobs.clamp(0, 1)).to(torch.uint8)
        self.normalise = torchvision.transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        shift, thing = divmod(index, len(self.pixels))
        return self.normalise(self.pixels[thing].roll(shift, -1).float() / 255), index


parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--pictures", type=int, default=4096)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--size", type=int, default=224)
args = parser.parse_args()


torch.manual_seed(0)
model = torchvision.models.get_model(args.model, weights=None)
for module in model.modules():
    if isinstance(module, nn.BatchNorm2d):
        module.momentum = None  # the mean over all
model.eval()
counts = torch.zeros(1000, dtype=torch.long)
pictures = Pictures(args.pictures, max(16, args.batch), args.size)
with torch.no_grad():
    known = torch.stack([pictures[index][0] for index in range(len(pictures.pixels))])
    model.train()  # for its statistics
    for few in known.split(args.batch):
        model(few)
    model.eval()
    fit_last_layer(model, known, args.batch)
for images, _ in DataLoader(pictures, batch_size=args.batch):
    found = model(images).argmax(dim=1)
    counts += torch.bincount(found, minlength=1000)
print("most frequent:", counts.argmax().item(), counts.max().item())
