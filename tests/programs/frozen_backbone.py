import argparse
import time

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset


class Bees(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator()
        g.manual_seed(seed)
        self.y = torch.randint(0, 4, (n,), generator=g)
        self.x = torch.randn(n, 3, 12, 12, generator=g)
        for i in range(n):
            k = int(self.y[i])
            self.x[i, :, (k // 2) * 6:(k // 2) * 6 + 6, (k % 2) * 6:(k % 2) * 6 + 6] += 0.8

    def __len__(self):
        return self.y.shape[0]

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def conv_bn(i, o, s):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU6(inplace=True))


class TransferNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, 12, 1), conv_bn(12, 24, 2), nn.AdaptiveAvgPool2d(3))
        for param in self.backbone.parameters():
            param.requires_grad = False
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(24 * 9, 32), nn.ReLU(), nn.Linear(32, num_classes))

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()  # keep the running statistics fixed
        return self

    def forward(self, x):
        with torch.no_grad():
            f = self.backbone(x)
        return self.head(torch.flatten(f, 1))


def train_model(model, dataloaders, criterion, optimizer, device, num_epochs):
    since = time.time()
    best_acc = 0.0
    for epoch in range(num_epochs):
        print(f'Epoch {epoch}/{num_epochs - 1}')
        print('-' * 10)
        # Each epoch has a training and validation phase
        for phase in ['train', 'val']:
            if phase == 'train':
                model.train()
            else:
                model.eval()
            running_loss = 0.0
            running_corrects = 0
            for inputs, labels in dataloaders[phase]:
                inputs = inputs.to(device)
                labels = labels.to(device)
                optimizer.zero_grad()
                # track history if only in train
                with torch.set_grad_enabled(phase == 'train'):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == 'train':
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data)
            n = len(dataloaders[phase].dataset)
            epoch_loss = running_loss / n
            epoch_acc = running_corrects.double() / n
            print(f'{phase} Loss: {epoch_loss:.6f} Acc: {epoch_acc:.4f}')
            if phase == 'val' and epoch_acc > best_acc:
                best_acc = epoch_acc
        print()
    if time.time() - since > 60:
        print('that was slow')
    print(f'Best val Acc: {best_acc:4f}')
    return model


parser = argparse.ArgumentParser()
parser.add_argument('--epochs', type=int, default=3)
args = parser.parse_args()

torch.manual_seed(77)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
dataloaders = {
    'train': DataLoader(Bees(240, 1), batch_size=20, shuffle=True),
    'val': DataLoader(Bees(100, 2), batch_size=50, shuffle=False),
}
model_ft = TransferNet(4).to(device)
optimizer_ft = optim.SGD(filter(lambda p: p.requires_grad, model_ft.parameters()), lr=0.05, momentum=0.9)
train_model(model_ft, dataloaders, nn.CrossEntropyLoss(), optimizer_ft, device, args.epochs)
