import logging

import torch

logger = logging.getLogger(__name__)


def train_one_epoch(model, loader, criterion, optimizer, device, clip=1.0):
    model.train()
    total, count = 0.0, 0
    for images, targets in loader:
        images, targets = images.to(device), targets.to(device)
        loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        total += loss.item() * images.size(0)
        count += images.size(0)
    return total / count


@torch.inference_mode()
def evaluate(model, loader, criterion, device):
    model.eval()
    total, correct, count = 0.0, 0, 0
    for images, targets in loader:
        images, targets = images.to(device), targets.to(device)
        out = model(images)
        total += criterion(out, targets).item() * images.size(0)
        correct += (out.argmax(dim=1) == targets).sum().item()
        count += images.size(0)
    return total / count, correct / count


def fit(model, train_loader, val_loader, criterion, optimizer, scheduler, device, epochs):
    history = []
    for epoch in range(epochs):
        train_loss = train_one_epoch(model, train_loader, criterion, optimizer, device)
        val_loss, val_acc = evaluate(model, val_loader, criterion, device)
        scheduler.step()
        logger.info("epoch %d train %.7f val %.7f acc %.4f lr %.6f", epoch, train_loss, val_loss, val_acc,
                    scheduler.get_last_lr()[0])
        history.append({"train_loss": train_loss, "val_loss": val_loss, "val_acc": val_acc})
    return history
