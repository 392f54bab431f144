# coding: utf-8
import argparse
import torch
import torch.nn as nn


class LeNet(nn.Module):
    def __init__(self, num_classes=5):
        super(LeNet, self).__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 16, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Linear(16 * 8 * 8, num_classes)

    def forward(self, x):
        x = self.features(x)
        x = x.view(x.size(0), -1)
        return self.classifier(x)


def main(args):
    torch.manual_seed(0)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    # textures of different frequencies
    labels = torch.randint(0, 5, (384,))
    t = torch.arange(16).float()
    wave = torch.sin(t[None, :] * (labels[:, None] + 1) * 0.5)
    images = wave[:, None, None, :].repeat(1, 3, 16, 1) + 4 * torch.randn(384, 3, 16, 16)

    model = LeNet().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        perm = torch.randperm(len(images))
        epoch_loss = 0.0
        for i in range(0, len(images), args.batch_size):
            idx = perm[i:i + args.batch_size]
            x, y = images[idx].to(device), labels[idx].to(device)
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item() * len(idx)
        print('Epoch [{}/{}], Loss: {:.7f}'.format(epoch + 1, args.epochs, epoch_loss / len(images)))

    with torch.no_grad():
        acc = (model(images.to(device)).argmax(1).cpu() == labels).float().mean().item()
    print('train acc: {:.4f}'.format(acc))


if __name__ == '__main__':
    p = argparse.ArgumentParser()
    p.add_argument('--epochs', type=int, default=4)
    p.add_argument('--batch_size', type=int, default=32)
    p.add_argument('--lr', type=float, default=0.02)
    main(p.parse_args())
