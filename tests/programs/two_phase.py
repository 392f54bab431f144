"""Phase 1: Adam on the head. Phase 2: SGD on everything, with the first layer unfrozen."""
import torch, argparse
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

ap = argparse.ArgumentParser()
ap.add_argument('--epochs', type=int, default=3, help='epochs per phase')
ap.add_argument('--bs', type=int, default=25)
args = ap.parse_args()

torch.manual_seed(2024)
dev = 'cuda' if torch.cuda.is_available() else 'cpu'

W = torch.randn(15, 5)
x = torch.randn(250, 15)
y = (x @ W).argmax(1)
dl = DataLoader(TensorDataset(x, y), batch_size=args.bs, shuffle=True)


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1 = nn.Linear(15, 40)
        s.act = nn.PReLU()
        s.l2 = nn.Linear(40, 40)
        s.l3 = nn.Linear(40, 5)

    def forward(s, x):
        return s.l3(s.act(s.l2(s.act(s.l1(x)))))


def run(tag, m, opt):
    for e in range(args.epochs):
        tot = 0
        ok = 0
        for xb, yb in dl:
            xb, yb = xb.to(dev), yb.to(dev)
            out = m(xb)
            l = nn.functional.cross_entropy(out, yb)
            opt.zero_grad(); l.backward(); opt.step()
            tot += l.item(); ok += (out.argmax(1) == yb).sum().item()
        print(tag, e, f'loss {tot / len(dl):.7f} acc {ok / len(x):.3f}')


m = M().to(dev)

# phase 1
for p in m.l1.parameters():
    p.requires_grad = False
run('adam', m, torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr=3e-3))

# phase 2
for p in m.l1.parameters():
    p.requires_grad = True
optimizer = torch.optim.SGD([
    {'params': m.l1.parameters(), 'lr': 1e-2},
    {'params': list(m.l2.parameters()) + list(m.l3.parameters()) + list(m.act.parameters())},
], lr=5e-2, momentum=0.9)
run('sgd', m, optimizer)
