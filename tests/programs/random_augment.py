'''Augmentation with torch, random and numpy all mixed together'''
import random
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader


def set_seed(seed=2021):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True


class RandomHorizontalFlip:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, img):
        if random.random() < self.p:
            return torch.flip(img, dims=[-1])
        return img


class RandomCrop:
    def __init__(self, size, padding):
        self.size, self.padding = size, padding

    def __call__(self, img):
        img = F.pad(img, [self.padding] * 4)
        top = torch.randint(0, img.shape[-2] - self.size + 1, (1,)).item()
        left = torch.randint(0, img.shape[-1] - self.size + 1, (1,)).item()
        return img[..., top:top + self.size, left:left + self.size]


class ColorJitter:
    def __call__(self, img):
        gain = np.random.uniform(0.8, 1.2, size=(3, 1, 1)).astype(np.float32)
        shift = np.random.normal(0, 0.05, size=(3, 1, 1)).astype(np.float32)
        return img * torch.from_numpy(gain) + torch.from_numpy(shift)


class Cutout:
    def __call__(self, img):
        if torch.rand(1) > 0.7:
            y, x = random.randint(0, 8), random.randint(0, 8)
            img = img.clone()
            img[:, y:y + 4, x:x + 4] = 0
        return img


class Compose:
    def __init__(self, ts):
        self.ts = ts

    def __call__(self, x):
        for t in self.ts:
            x = t(x)
        return x


class FakeCIFAR(Dataset):
    def __init__(self, n, n_classes=4, transform=None, seed=0):
        rs = np.random.RandomState(seed)
        protos = np.random.RandomState(99).randn(n_classes, 3, 12, 12)
        self.targets = rs.randint(0, n_classes, size=n)
        self.data = (protos[self.targets] + rs.randn(n, 3, 12, 12)).astype(np.float32)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        img, target = torch.from_numpy(self.data[index]), int(self.targets[index])
        if self.transform is not None:
            img = self.transform(img)
        return img, target


class SmallResNet(nn.Module):
    def __init__(self, num_classes=4, width=12):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn0 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x):
        x = F.relu(self.bn0(self.stem(x)))
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        x = F.relu(x + h)
        x = F.avg_pool2d(x, x.shape[-1])
        return self.fc(x.view(x.size(0), -1))


parser = argparse.ArgumentParser()
parser.add_argument('--lr', default=0.1, type=float, help='learning rate')
parser.add_argument('--epochs', default=4, type=int)
args = parser.parse_args()

set_seed()
device = 'cuda' if torch.cuda.is_available() else 'cpu'

transform_train = Compose([RandomCrop(12, padding=2), RandomHorizontalFlip(), ColorJitter(), Cutout()])
trainloader = DataLoader(FakeCIFAR(320, transform=transform_train), batch_size=32, shuffle=True)
testloader = DataLoader(FakeCIFAR(100, seed=1), batch_size=50, shuffle=False)

net = SmallResNet().to(device)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

for epoch in range(args.epochs):
    net.train()
    train_loss = 0
    for batch_idx, (inputs, targets) in enumerate(trainloader):
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        train_loss += loss.item()
    net.eval()
    correct = 0
    with torch.no_grad():
        for inputs, targets in testloader:
            inputs, targets = inputs.to(device), targets.to(device)
            correct += net(inputs).argmax(1).eq(targets).sum().item()
    scheduler.step()
    print('Epoch: %d | Loss: %.7f | Acc: %.3f%%' % (epoch, train_loss / len(trainloader), correct))
