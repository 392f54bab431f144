# train a small autoencoder; everything goes to the current directory:
#   checkpoint.pth   always the newest one
#   log.txt          appended to
#   results.json     replaced after each epoch
#   outputs/epoch_N  reconstructions (only the last one is kept)
import argparse
import json
import os
import shutil

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument('--epochs', type=int, default=4)
args = parser.parse_args()

torch.manual_seed(31)

if os.path.exists('STOP'):  # left over by a run that was killed
    os.remove('STOP')
    print('removed stale STOP file')


def log(msg):
    print(msg)
    with open('log.txt', 'a') as f:
        f.write(msg + '\n')


def write_json(obj, path):
    tmp = path + '.tmp'
    with open(tmp, 'w') as f:
        json.dump(obj, f, indent=2)
    os.replace(tmp, path)


basis = torch.randn(3, 20)
data = torch.randn(320, 3) @ basis + 0.1 * torch.randn(320, 20)

ae = nn.Sequential(nn.Linear(20, 12), nn.Tanh(), nn.Linear(12, 3), nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 20))
opt = torch.optim.Adagrad(ae.parameters(), lr=0.05)
results = []
log('start, %d epochs' % args.epochs)

for epoch in range(args.epochs):
    total = 0.
    for xb in data[torch.randperm(320)].split(32):
        opt.zero_grad()
        loss = ((ae(xb) - xb) ** 2).mean()
        loss.backward()
        opt.step()
        total += loss.item()
    log('epoch %d loss %.8f' % (epoch, total / 10))

    # checkpoint, over the previous one
    torch.save({'epoch': epoch, 'state_dict': ae.state_dict(), 'optimizer': opt.state_dict()}, 'checkpoint.pth')

    # results
    results.append({'epoch': epoch, 'loss': round(total / 10, 8)})
    write_json(results, 'results.json')

    # outputs, remove what is stale
    folder = os.path.join('outputs', 'epoch_%d' % epoch)
    os.makedirs(folder, exist_ok=True)
    with torch.no_grad():
        np.save(os.path.join(folder, 'rec.npy'), ae(data[:5]).numpy())
    old = os.path.join('outputs', 'epoch_%d' % (epoch - 1))
    if os.path.isdir(old):
        os.remove(os.path.join(old, 'rec.npy'))
        shutil.rmtree(old)

log('final loss %.8f' % (total / 10))
