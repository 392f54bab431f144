import torch
import torch.nn as nn
from argparse import ArgumentParser
from torch.utils.data import DataLoader, TensorDataset, random_split

# Device configuration
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

parser = ArgumentParser()
parser.add_argument('--epochs', type=int, default=4)
parser.add_argument('--hidden_size', type=int, default=64)
parser.add_argument('--batch_size', type=int, default=50)
parser.add_argument('--learning_rate', type=float, default=0.005)
args = parser.parse_args()

torch.manual_seed(1234)

# Data: three spirals
n_per_class, n_classes = 220, 3
xs, ys = [], []
for c in range(n_classes):
    r = torch.linspace(0.05, 1, n_per_class)
    t = torch.linspace(c * 4, (c + 1) * 4, n_per_class) + torch.randn(n_per_class) * 0.2
    xs.append(torch.stack([r * torch.sin(t), r * torch.cos(t)], dim=1))
    ys.append(torch.full((n_per_class,), c, dtype=torch.long))
dataset = TensorDataset(torch.cat(xs), torch.cat(ys))
train_dataset, test_dataset = random_split(dataset, [530, 130])

train_loader = DataLoader(dataset=train_dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
test_loader = DataLoader(dataset=test_dataset, batch_size=args.batch_size, shuffle=False)


# Fully connected neural network with two hidden layers
class NeuralNet(nn.Module):
    def __init__(self, input_size, hidden_size, num_classes):
        super(NeuralNet, self).__init__()
        self.fc1 = nn.Linear(input_size, hidden_size)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(hidden_size, hidden_size)
        self.fc3 = nn.Linear(hidden_size, num_classes)

    def forward(self, x):
        out = self.fc1(x)
        out = self.relu(out)
        out = self.fc2(out)
        out = self.relu(out)
        out = self.fc3(out)
        return out


model = NeuralNet(2, args.hidden_size, n_classes).to(device)

# Loss and optimizer
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate, weight_decay=1e-4)

# Train the model
total_step = len(train_loader)
for epoch in range(args.epochs):
    for i, (points, labels) in enumerate(train_loader):
        # Move tensors to the configured device
        points = points.to(device)
        labels = labels.to(device)

        # Forward pass
        outputs = model(points)
        loss = criterion(outputs, labels)

        # Backward and optimize
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if (i + 1) % 5 == 0:
            print('Epoch [{}/{}], Step [{}/{}], Loss: {:.6f}'
                  .format(epoch + 1, args.epochs, i + 1, total_step, loss.item()))

# Test the model
# In test phase, we don't need to compute gradients (for memory efficiency)
with torch.no_grad():
    correct = 0
    total = 0
    for points, labels in test_loader:
        points = points.to(device)
        labels = labels.to(device)
        outputs = model(points)
        _, predicted = torch.max(outputs.data, 1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()

    print('Accuracy of the network on the {} test points: {:.4f} %'.format(total, 100 * correct / total))
print('final loss {:.6f}'.format(loss.item()))
