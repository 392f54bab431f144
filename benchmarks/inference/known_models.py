"""A model of torchvision over pictures, as people write it: python known_models.py resnet50 [--batch 16]."""

import argparse

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Pixels as a decoder gives them, with PyTorch's usual transforms."""

    def __init__(self, count, size):
        self.count = count
        self.pixels = torch.randint(0, 256, (64, 3, size, size), dtype=torch.uint8)
        self.normalise = torchvision.transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.normalise(self.pixels[index % 64].float() / 255), index


parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--pictures", type=int, default=4096)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--size", type=int, default=224)
args = parser.parse_args()

torch.manual_seed(0)
model = torchvision.models.get_model(args.model, weights=None)
model.eval()
counts = torch.zeros(1000, dtype=torch.long)
for images, _ in DataLoader(Pictures(args.pictures, args.size), batch_size=args.batch):
    found = model(images).argmax(dim=1)
    counts += torch.bincount(found, minlength=1000)
print("most frequent:", counts.argmax().item(), counts.max().item())
