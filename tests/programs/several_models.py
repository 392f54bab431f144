import argparse
import itertools

import torch
import torch.nn as nn

torch.manual_seed(12)

parser = argparse.ArgumentParser()
parser.add_argument("--n_steps", "--steps", dest="n_steps", type=int, default=60)
parser.add_argument("--lambda_cls", type=float, default=0.3)
parser.add_argument("--lr", type=float, default=2e-3)
opts = parser.parse_args()

device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


class Encoder(nn.Module):
    def __init__(self, z=6):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1), nn.InstanceNorm2d(8), nn.LeakyReLU(0.2),
            nn.Conv2d(8, 16, 4, 2, 1), nn.LeakyReLU(0.2),
        )
        self.fc = nn.Linear(16 * 4 * 4, z)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


class Decoder(nn.Module):
    def __init__(self, z=6):
        super().__init__()
        self.fc = nn.Linear(z, 16 * 4 * 4)
        self.deconv = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh(),
        )

    def forward(self, z):
        return self.deconv(self.fc(z).reshape(-1, 16, 4, 4))


class Critic(nn.Module):
    """tells the kind of pattern from the code"""

    def __init__(self, z=6, k=3):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z, 20), nn.ELU(), nn.Linear(20, k))

    def forward(self, z):
        return self.net(z)


E = Encoder().to(device)
D = Decoder().to(device)
C = Critic().to(device)

criterion_rec = nn.L1Loss()
criterion_cls = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(
    itertools.chain(E.parameters(), D.parameters(), C.parameters()), lr=opts.lr, betas=(0.5, 0.999))


def batch(n=24):
    kind = torch.randint(0, 3, (n,))
    phase = torch.rand(n, 1, 1) * 6.28
    g = torch.linspace(0, 9, 16)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    pats = torch.stack([torch.sin(yy + phase), torch.sin(xx + phase), torch.sin(xx + yy + phase)], dim=1)
    return pats[torch.arange(n), kind].unsqueeze(1).to(device), kind.to(device)


for step in range(1, opts.n_steps + 1):
    real, kind = batch()
    z = E(real)
    rec = D(z)
    loss_rec = criterion_rec(rec, real)
    loss_cyc = criterion_rec(E(rec), z.detach())
    loss_cls = criterion_cls(C(z), kind)
    loss = loss_rec + 0.1 * loss_cyc + opts.lambda_cls * loss_cls

    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    if step % 20 == 0 or step == opts.n_steps:
        print(f"[step {step}] [rec {loss_rec.item():.6f}] [cyc {loss_cyc.item():.6f}] "
              f"[cls {loss_cls.item():.6f}] [total {loss.item():.6f}]")
