import argparse
import copy
import os
import shutil
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class TiedLM(nn.Module):
    """next-symbol model with output weights tied to the embedding"""

    def __init__(self, vocab=24, dim=32, context=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.Sequential(nn.Linear(dim * context, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, dim))
        self.head = nn.Linear(dim, vocab)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, idx):
        return self.head(self.mix(self.embed(idx).flatten(1)))


class EMA:
    def __init__(self, model, decay):
        self.module = copy.deepcopy(model)
        self.module.eval()
        for p in self.module.parameters():
            p.requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.mul_(self.decay).add_(p, alpha=1 - self.decay)
        for e, b in zip(self.module.buffers(), model.buffers()):
            e.copy_(b)


def make_stream(n, vocab=24):
    out = [1, 2, 3, 4]
    noise = torch.randint(0, 100, (n,)).tolist()
    for k in range(n):
        out.append((out[-1] + 2 * out[-2] + (noise[k] if noise[k] < 3 else 0)) % vocab)
    return torch.tensor(out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--steps', type=int, default=80)
    ap.add_argument('--decay', type=float, default=0.95)
    args = ap.parse_args()

    torch.manual_seed(8)
    stream = make_stream(3000)
    windows = stream.unfold(0, 5, 1)
    train, val = windows[:2500], windows[2500:]

    model = TiedLM()
    ema = EMA(model, args.decay)
    opt = torch.optim.Adamax(model.parameters(), lr=1e-2)

    for step in range(args.steps):
        batch = train[torch.randint(0, len(train), (64,))]
        loss = F.cross_entropy(model(batch[:, :4]), batch[:, 4])
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(model)
        if (step + 1) % 20 == 0:
            with torch.no_grad():
                ema_loss = F.cross_entropy(ema.module(val[:, :4]), val[:, 4])
            print(f'{step + 1:5d} | train {loss.item():.7f} | ema val {ema_loss.item():.7f}')

    folder = tempfile.mkdtemp()
    try:
        torch.save(model, os.path.join(folder, 'model.pt'))
        torch.save(ema.module, os.path.join(folder, 'ema.pt'))
        model2 = torch.load(os.path.join(folder, 'model.pt'), weights_only=False)
        ema2 = torch.load(os.path.join(folder, 'ema.pt'), weights_only=False)
    finally:
        shutil.rmtree(folder)
    assert model2.head.weight is model2.embed.weight
    model2.eval()
    with torch.no_grad():
        a = F.cross_entropy(model2(val[:, :4]), val[:, 4]).item()
        b = F.cross_entropy(ema2(val[:, :4]), val[:, 4]).item()
    print(f'reloaded {type(model2).__name__}: val loss {a:.7f}, ema val loss {b:.7f}')


if __name__ == '__main__':
    main()
