import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description='small conv net, data loading in worker processes')
parser.add_argument('-j', '--workers', default=2, type=int)
parser.add_argument('--epochs', default=2, type=int)
parser.add_argument('-b', '--batch-size', default=16, type=int)
parser.add_argument('--seed', default=0, type=int)


class Shapes(Dataset):
    """Draws squares and crosses. Every image is drawn when asked for."""

    def __init__(self, n, noise=0.3):
        self.n = n
        self.noise = noise

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.RandomState(i)
        img = np.zeros((1, 14, 14), dtype=np.float32)
        y, x = rng.randint(2, 9, size=2)
        label = i % 2
        if label == 0:
            img[0, y:y + 4, x] = 1
            img[0, y:y + 4, x + 3] = 1
            img[0, y, x:x + 4] = 1
            img[0, y + 3, x:x + 4] = 1
        else:
            img[0, y:y + 4, x + 1] = 1
            img[0, y + 1, x:x + 4] = 1
        # per-worker torch rng, seeded by the loader
        img = torch.from_numpy(img) + self.noise * torch.randn(1, 14, 14)
        return img, label


def worker_init_fn(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)


class AverageMeter(object):
    """Computes and stores the average and current value"""

    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

    loader = DataLoader(Shapes(320), batch_size=args.batch_size, shuffle=True,
                        num_workers=args.workers, pin_memory=torch.cuda.is_available(),
                        multiprocessing_context='fork' if args.workers > 0 else None,
                        worker_init_fn=worker_init_fn)

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 2),
    ).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    for epoch in range(args.epochs):
        losses, top1 = AverageMeter('Loss'), AverageMeter('Acc@1')
        model.train()
        for i, (images, target) in enumerate(loader):
            images = images.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            losses.update(loss.item(), images.size(0))
            top1.update((output.argmax(1) == target).float().mean().item() * 100, images.size(0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print('Epoch [{}] Loss {:.7f} Acc@1 {:.3f}'.format(epoch, losses.avg, top1.avg))


if __name__ == '__main__':
    main()
