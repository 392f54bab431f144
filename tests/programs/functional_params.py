import argparse

import torch

# probabilistic matrix factorisation, just tensors

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
args = parser.parse_args()

gen = torch.manual_seed(6)

n_users, n_items, k = 40, 30, 4
true_u = torch.randn(n_users, k)
true_v = torch.randn(n_items, k)
ratings = true_u @ true_v.t() + 0.1 * torch.randn(n_users, n_items)
mask = torch.rand(n_users, n_items) < 0.5

U = (0.1 * torch.randn(n_users, k)).requires_grad_()
V = (0.1 * torch.randn(n_items, k)).requires_grad_()
b_u = torch.zeros(n_users, 1, requires_grad=True)
b_v = torch.zeros(1, n_items, requires_grad=True)
mu = torch.zeros(1, requires_grad=True)
params = [U, V, b_u, b_v, mu]

opt = torch.optim.SGD(params, lr=1.0, momentum=0.9)


def predict():
    return U @ V.t() + b_u + b_v + mu


def loss_fn(pred, where):
    err = torch.where(where, pred - ratings, torch.zeros(()))
    return (err * err).sum() / where.sum()


for it in range(args.steps):
    opt.zero_grad()
    loss = loss_fn(predict(), mask) + 1e-4 * sum((p ** 2).sum() for p in params[:2]) / n_users
    loss.backward()
    opt.step()
    if it % 20 == 0:
        with torch.no_grad():
            print(it, f"train {loss.item():.7f}", f"held out {loss_fn(predict(), ~mask).item():.7f}")

print(f"final loss {loss.item():.7f}")
