"""Programs of ten lines, one after the other in one process: `python small_programs.py [NAME...]` prints their numbers.

In fp64, so that what differs by more than rounding shows. The names are followed by `:` and numbers.
"""

import copy
import io
import math
import random
import sys
import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def data(rows=37, width=6, classes=3, batch=8, **options):
    x = torch.randn(rows, width)
    y = (x[:, :classes].argmax(1) + (x.sum(1) > 1)) % classes
    return DataLoader(TensorDataset(x, y), batch_size=batch, shuffle="sampler" not in options, **options)


def mlp(*between, width=6, out=3):
    return nn.Sequential(nn.Linear(width, 16), *between, nn.Tanh(), nn.Linear(16, out))


def fit(model, loader, loss_of=None, optimizer=None, epochs=2, each_step=None):
    loss_of = loss_of or (lambda m, x, y: F.cross_entropy(m(x), y))
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    numbers = []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            if each_step:
                each_step(model)
            optimizer.step()
            numbers.append(loss.item())
    return numbers


def size(model):
    return sum(p.detach().square().sum() for p in model.parameters()).item()


@program
def plain_with_a_ragged_last_batch():
    model = mlp()
    return fit(model, data()), size(model)


@program
def batches_smaller_than_the_ranks():
    model = mlp(nn.Dropout(0.3))
    return fit(model, data(rows=5, batch=1)), fit(model, data(rows=7, batch=3)), size(model)


@program
def dropout():
    return fit(mlp(nn.Dropout(0.4)), data()), torch.rand(1)


@program
def dropout_in_place():
    return fit(mlp(nn.Dropout(0.4, inplace=True)), data()), torch.rand(1)


@program
def alpha_dropout():
    return fit(mlp(nn.AlphaDropout(0.2)), data()), torch.rand(1)


class Channels(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.drop, self.head = drop, nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.drop(x.view(len(x), 3, 2).tanh()).flatten(1))


@program
def dropout_of_channels():
    return fit(Channels(nn.Dropout1d(0.4)), data()), fit(Channels(nn.FeatureAlphaDropout(0.3)), data()), torch.rand(1)


class Noisy(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.body, self.draw = mlp(), draw

    def forward(self, x):
        return self.body(x + 0.1 * self.draw(x))


@program
def noise_of_many_kinds():
    numbers = []
    for draw in (
        torch.rand_like,
        torch.randn_like,
        lambda x: torch.rand(x.shape),
        lambda x: torch.randn(len(x), 6),
        lambda x: torch.randint(0, 4, (len(x), 6)),
        lambda x: torch.bernoulli(torch.sigmoid(x)),
        lambda x: torch.bernoulli(torch.full((len(x), 1), 0.5)) * x,
        lambda x: torch.empty_like(x).exponential_(2.0),
        lambda x: x.new_empty(len(x), 1).bernoulli_(0.7),
        lambda x: torch.normal(0.0, 1.0, x.shape),
        lambda x: torch.normal(x, 0.1),
        lambda x: F.gumbel_softmax(x),
        lambda x: F.rrelu(x, training=True),
        lambda x: torch.rand(6),
        lambda x: torch.distributions.Normal(x, 1.0).rsample(),
    ):
        numbers.append(fit(Noisy(draw), data(), epochs=1))
    return numbers, torch.rand(1)


class Skips(nn.Module):
    """Stochastic depth, by Python's generator."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head, self.drop = nn.Linear(6, 3), nn.Dropout(0.2)

    def forward(self, x):
        for layer in self.layers:
            if random.random() < 0.7:
                x = x + self.drop(layer(x).tanh())
        return self.head(x)


@program
def layers_skipped_at_random():
    return fit(Skips(), data()), random.random(), torch.rand(1)


@program
def batch_norm():
    model = mlp(nn.BatchNorm1d(16))
    numbers = fit(model, data())
    model.eval()
    with torch.no_grad():
        outputs = model(torch.linspace(-1, 1, 60).view(10, 6)).sum().item()
    model.train()
    model[1].eval()
    frozen = fit(model, data())
    return numbers, outputs, frozen, model[1].running_var.sum().item(), int(model[1].num_batches_tracked)


@program
def batch_norm_of_other_kinds():
    averaged = mlp(nn.BatchNorm1d(16, momentum=None))
    untracked = mlp(nn.BatchNorm1d(16, track_running_stats=False))
    plain = mlp(nn.BatchNorm1d(16, affine=False), nn.Dropout(0.2))
    numbers = [fit(each, data()) for each in (averaged, untracked, plain)]
    return numbers, averaged[1].running_mean.sum().item(), averaged[1].running_var.sum().item()


@program
def batch_norm_of_pictures():
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(64, 3)
    net = nn.Sequential(*layers)
    loader = DataLoader(TensorDataset(torch.randn(30, 2, 6, 6), torch.randint(3, (30,))), batch_size=8, shuffle=True)
    return fit(net, loader), net[1].running_var.sum().item()


@program
def gan():
    maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
    judge = mlp(nn.Dropout(0.2), out=1)
    of_maker, of_judge = (torch.optim.Adam(m.parameters(), lr=1e-2, betas=(0.5, 0.9)) for m in (maker, judge))
    numbers = []
    for x, _ in data():
        made = maker(torch.randn(len(x), 4))
        of_judge.zero_grad()
        loss = F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()
        loss.backward()
        of_judge.step()
        of_maker.zero_grad()
        other = F.softplus(-judge(made)).mean()
        other.backward()
        of_maker.step()
        numbers += [loss.item(), other.item()]
    return numbers, size(maker), size(judge)


@program
def gradient_penalty():
    judge = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
    smooth = mlp(out=1)

    def loss(model, x, _):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return ((slope.norm(dim=1) - 1) ** 2).mean() + model(x).mean()

    return fit(smooth, data(), loss), fit(judge, data(), loss), size(judge)


@program
def samples_moved_against_the_loss():
    def loss(model, x, y):
        x = x.clone().requires_grad_()
        F.cross_entropy(model(x), y).backward()
        model.zero_grad()
        return F.cross_entropy(model((x + 0.2 * x.grad.sign() + x.grad).detach()), y)

    return fit(mlp(nn.Dropout(0.2)), data(), loss)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x):
        mean, spread = self.inner(x).chunk(2, 1)
        z = mean + torch.randn_like(spread) * (0.5 * spread).exp()
        return self.outer(z), mean, spread


@program
def vae():
    def loss(model, x, _):
        made, mean, spread = model(x)
        return F.mse_loss(made, x, reduction="sum") - 0.5 * (1 + spread - mean**2 - spread.exp()).sum()

    model = Vae()
    return fit(model, data(), loss, torch.optim.SGD(model.parameters(), lr=1e-3)), torch.rand(1)


@program
def lbfgs():
    model, x = mlp(out=1), torch.randn(20, 6)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
    numbers = []

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        numbers.append(loss.item())
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return numbers, size(model)


@program
def accumulation_and_clipping():
    model = mlp(nn.Dropout(0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    numbers = []
    for step, (x, y) in enumerate(data()):
        (F.cross_entropy(model(x), y) / 2).backward()
        if step % 2:
            numbers.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 4 == 1)
    return numbers, size(model)


@program
def decides_by_truth_values():
    model, numbers = mlp(nn.Dropout(0.1)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best, waited = torch.tensor(math.inf), 0
    for _ in range(4):
        losses = []
        for x, y in data():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
            if not torch.isfinite(norm).all():
                continue
            if norm >= 0.3:
                for p in model.parameters():
                    p.grad.mul_(0.3 / norm)
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean()
        numbers += [mean.tolist(), norm.item()]
        if mean < best:
            best, waited = mean, 0
        elif (waited := waited + 1) > 1:
            break
    return numbers, best.item(), size(model)


@program
def mean_weights_by_deepcopy():
    model = mlp(nn.BatchNorm1d(16))
    mean = copy.deepcopy(model)

    def each_step(model):
        with torch.no_grad():
            for ours, theirs in zip(mean.parameters(), model.parameters(), strict=True):
                ours.mul_(0.9).add_(theirs, alpha=0.1)

    numbers = fit(model, data(), each_step=each_step)
    late = copy.deepcopy(model)
    return numbers, size(mean), fit(late, data()), size(late), size(model)


@program
def contrastive():
    def loss(model, x, _):
        one, other = F.normalize(model(x)), F.normalize(model(x + 0.1 * torch.randn_like(x)))
        return F.cross_entropy(one @ other.T / 0.2, torch.arange(len(x)))

    return fit(mlp(nn.Dropout(0.1)), data(), loss)


@program
def class_weights_and_ignored_labels():
    weights = torch.tensor([0.2, 1.0, 3.0])

    def loss(model, x, y):
        y = torch.where(x[:, 0] > 1, torch.tensor(-100), y)
        return F.cross_entropy(model(x), y, weight=weights, label_smoothing=0.1)

    return fit(mlp(), data(), loss)


@program
def weight_penalty():
    def loss(model, x, y):
        return F.cross_entropy(model(x), y) + 0.01 * sum(p.square().sum() for p in model.parameters())

    model = mlp()
    return fit(model, data(), loss), size(model)


class Recurrent(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.cells = nn.LSTM(6, 8, batch_first=first)
        self.head = nn.Linear(8, 6)

    def forward(self, x, state):
        made, state = self.cells(x, state)
        return self.head(made), state


@program
def lstm_with_hidden_state():
    numbers = []
    for first in (True, False):
        model = Recurrent(first)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        state = (torch.zeros(1, 8, 8), torch.zeros(1, 8, 8))
        series = torch.randn(8, 41, 6).cumsum(1).tanh()
        for start in range(0, 35, 5):
            x, y = series[:, start : start + 5], series[:, start + 1 : start + 6]
            if not first:
                x, y = x.transpose(0, 1), y.transpose(0, 1)
            made, state = model(x, tuple(each.detach() for each in state))
            loss = F.mse_loss(made, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            numbers.append(loss.item())
    return numbers, state[0].sum().item()


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(3, 8, num_layers=2, dropout=0.3, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.cells(x.view(len(x), 2, 3))[0][:, -1])


@program
def lstm_with_dropout():
    return fit(Dropping(), data()), torch.rand(1)


class Attention(nn.Module):
    def __init__(self, dropout=0.1, first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=first)
        self.first, self.words, self.place = first, nn.Embedding(11, 8), nn.Parameter(torch.randn(5, 8))
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 11)

    def forward(self, words, mask=None):
        x = self.words(words) + (self.place if self.first else self.place[:, None])
        return self.head(self.body(x, mask=mask, is_causal=mask is not None))


@program
def transformer():
    numbers = []
    for first in (True, False):
        model = Attention(first=first)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        text, mask = torch.randint(11, (9, 6)), nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
        for _ in range(6):
            x, y = (text[:, :-1], text[:, 1:]) if first else (text.T[:-1], text.T[1:])
            loss = F.cross_entropy(model(x, mask=mask).reshape(-1, 11), y.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            numbers.append(loss.item())
    return numbers, torch.rand(1)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        return self.head(self.words(words).tanh()).view(-1, 11)


@program
def tied_weights_and_flat_logits():
    model, text = Tied(), torch.randint(11, (9, 6))
    return fit(model, [(text[:, :-1], text[:, 1:].reshape(-1))] * 6), size(model)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = mlp(), mlp()

    def forward(self, x, which):
        return self.one(x) if which else self.other(x)


@program
def unused_parameters():
    model = Two()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    numbers = []
    for step, (x, y) in enumerate(data()):
        loss = F.cross_entropy(model(x, step < 3), y)
        optimizer.zero_grad()
        loss.backward()
        numbers.append(sum(p.grad is None for p in model.parameters()))
        optimizer.step()
        numbers.append(loss.item())
    return numbers, size(model.one), size(model.other)


@program
def hooks_on_gradients():
    model, seen = mlp(), []
    model[0].weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
    model[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm().item()))
    return fit(model, data()), seen, size(model)


@program
def hooks_put_on_gradients_after_the_call():
    model, seen = mlp(), []

    def loss(model, x, y):
        made = model(x)
        if len(seen) == 0:
            model[0].weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
            model[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm().item()))
        return F.cross_entropy(made, y)

    return fit(model, data(), loss), seen, size(model)


@program
def gradients_asked_for():
    model, numbers = mlp(nn.Dropout(0.2)), []
    for x, y in data():
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= 0.1 * g
        numbers.append(loss.item())
    return numbers, size(model)


@program
def two_steps_of_learning_to_learn():
    model, numbers = mlp(), []

    def loss(model, x, y):
        own = dict(model.named_parameters())
        first = F.cross_entropy(torch.func.functional_call(model, own, (x,)), y)
        steps = torch.autograd.grad(first, list(own.values()), create_graph=True)
        moved = {name: p - 0.1 * g for (name, p), g in zip(own.items(), steps, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, moved, (x,)), y)

    return fit(model, data(), loss), numbers, size(model)


@dataclass
class Result:
    logits: torch.Tensor
    also: dict
    rows: str = "none"


class Rich(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, batch, *, scale=1.0):
        made = self.body(batch["x"]) * scale
        return Result(made, {"pair": (made.argmax(1), [made.exp()]), "weight": self.body[0].weight.sum()})


@program
def dicts_tuples_and_dataclasses():
    def loss(model, x, y):
        made = model({"x": x, "unused": None}, scale=0.5)
        right = (made.also["pair"][0] == y).sum()
        also = 0.1 * made.also["pair"][1][0].mean() + right + made.also["weight"].square()
        return F.cross_entropy(made.logits, y) + also

    model = Rich()
    return fit(model, data(), loss), size(model)


class Loses(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, x, y):
        made = self.body(x)
        return F.cross_entropy(made, y), made


@program
def loss_inside_of_the_model():
    return fit(Loses(), data(), lambda model, x, y: model(x, y)[0])


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls, self.kept = mlp(), 0, None

    def forward(self, x):
        self.calls += 1
        self.kept = self.body(x)
        return self.kept.clone()


@program
def keeps_its_result():
    model = Keeps()
    return fit(model, data(), lambda m, x, y: F.cross_entropy(m(x), y) + m.kept.square().mean()), model.calls


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls = mlp(), 0

    def forward(self, x):
        self.calls += 1
        return self.body(x) * (1 + 1 / self.calls)


@program
def counts_its_calls():
    model = Counts()
    return fit(model, data()), model.calls


class OfBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, x):
        return self.body(x - x.mean(0) * 0.01)


@program
def looks_at_its_batch():
    return fit(OfBatch(), data())


class Blended(nn.Module):
    """Each sample with the one before it."""

    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, x):
        return self.body(x - x.roll(1, 0) * 0.01)


@program
def blends_its_samples():
    return fit(Blended(), data())


class Centred(nn.Module):
    """Its first results do not show what it takes of the batch: its head is zero then, as many initialise it."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        inner = self.inner(x)
        return self.head(torch.tanh(inner - inner.mean(0)))


@program
def coupled_behind_a_head_that_is_zero_at_first():
    return fit(Centred(), data())


class ByValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, x):
        return self.body(x) if x.max() < 2 else self.body(x) * 0.5


@program
def decides_by_its_batch():
    return fit(ByValue(), data())


class Checkpointed(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.inner, self.head = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(drop)), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False))


@program
def checkpointed_activations():
    return fit(Checkpointed(0.0), data()), fit(Checkpointed(0.3), data()), torch.rand(1)


@program
def mixed_in_the_loop():
    def loss(model, x, y):
        order, share = torch.randperm(len(x)), random.betavariate(0.4, 0.4)
        made = model(share * x + (1 - share) * x[order])
        return share * F.cross_entropy(made, y) + (1 - share) * F.cross_entropy(made, y[order])

    return fit(mlp(), data(), loss)


@program
def weighted_sampler():
    return fit(mlp(), data(sampler=WeightedRandomSampler(torch.rand(37), 30)))


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(30):
            x = torch.randn(6)
            yield x, x[:3].argmax()


@program
def streamed():
    return fit(mlp(), DataLoader(Stream(), batch_size=8))


@program
def schedules_and_early_stopping():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    best, numbers = math.inf, []
    for epoch in range(8):
        loss = sum(fit(model, data(), optimizer=optimizer, epochs=1))
        schedule.step(loss)
        numbers += [loss, optimizer.param_groups[0]["lr"]]
        if loss > best * 1.05:
            numbers.append(epoch)
            break
        best = min(best, loss)
    return numbers


@program
def evaluated_in_ragged_batches():
    model = mlp()
    numbers = fit(model, data(rows=32))
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            losses = [F.cross_entropy(model(x), y, reduction="sum") for x, y in data(rows=37)]
            numbers.append(sum(losses).item() / 37)
    return numbers


@program
def saved_and_loaded():
    model, held = mlp(), io.BytesIO()
    first = fit(model, data())
    torch.save({"model": model.state_dict(), "whole": model}, held)
    held.seek(0)
    loaded = torch.load(held, weights_only=False)
    other = loaded["whole"]
    other.load_state_dict(loaded["model"])
    return first, fit(other, data()), size(other)


@program
def policy_without_a_data_set():
    policy, value, numbers = mlp(out=2), 0.0, []
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
    for _ in range(6):
        states = torch.randn(9, 6)
        chosen = torch.distributions.Categorical(logits=policy(states))
        actions = chosen.sample()
        rewards = (actions == (states[:, 0] > 0)).double()
        loss = -(chosen.log_prob(actions) * (rewards - value)).mean()
        value = 0.9 * value + 0.1 * rewards.mean().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        numbers += [loss.item(), value]
    return numbers


@program
def sparse_gradients():
    bag = nn.EmbeddingBag(11, 4, sparse=True, mode="sum")
    optimizer = torch.optim.SparseAdam(bag.parameters(), lr=0.1)
    words = torch.randint(11, (9, 5))
    return fit(bag, [(words, torch.randn(9, 4))] * 5, lambda m, x, y: F.mse_loss(m(x), y), optimizer), size(bag)


@program
def scaled_half_precision():
    model, numbers = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in data():
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        numbers.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        scaler.step(optimizer)
        scaler.update()
        numbers += [loss.item(), scaler.get_scale()]
    return numbers


@program
def normalised_weights():
    model = mlp()
    model[0] = nn.utils.parametrizations.spectral_norm(model[0])
    model[2] = nn.utils.parametrizations.weight_norm(model[2])
    return fit(model, data())


@program
def weights_normalised_by_hooks():
    model = mlp(nn.Dropout(0.2))
    model[0] = nn.utils.spectral_norm(model[0])
    model[3] = nn.utils.weight_norm(model[3])

    def penalised(m, x, y):
        return F.cross_entropy(m(x), y) + 0.1 * m[3].weight.square().sum()

    return fit(model, data(), penalised), size(model), model[0].weight_u.sum().item()


@program
def shapes_that_the_first_call_decides():
    model = nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(3))
    return fit(model, data()), size(model)


@program
def frozen_and_thawed():
    model = mlp(nn.BatchNorm1d(16))
    model[0].requires_grad_(False)
    first = fit(model, data())
    model[0].requires_grad_(True)
    return first, fit(model, data()), size(model)


@program
def a_model_that_changes_late():
    model = Noisy(lambda x: 0 * x)
    first = fit(model, data())
    model.draw = lambda x: x - x.mean(0)
    second = fit(model, data())
    model.draw = torch.randn_like
    return first, second, fit(model, data()), torch.rand(1)


class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm = mlp(), nn.GroupNorm(2, 6)

    def forward(self, x):
        return self.body(F.instance_norm(self.norm(x).view(len(x), 2, 3)).flatten(1))


@program
def norms_of_a_sample():
    return fit(Groups(), data())


@program
def several_calls_for_one_backward():
    model, numbers = mlp(nn.Dropout(0.2), nn.BatchNorm1d(16)), []

    def loss(model, x, y):
        return F.cross_entropy(model(x), y) + 0.5 * F.mse_loss(model(x), model(-x)) + 0.1 * model[0].weight.abs().sum()

    return fit(model, data(), loss), numbers, size(model)


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(40, 4, dtype=torch.cdouble)), nn.Linear(6, 3)

    def forward(self, x):
        waves = torch.fft.rfft(x) * self.weight.mean(0)
        return self.head(torch.fft.irfft(waves, n=6))


@program
def complex_weights():
    model = Spectral()
    return fit(model, data()), model.weight.detach().abs().sum()


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, letter, past):
        past.setdefault("states", []).append(self.body(letter))
        return self.head(torch.stack(past["states"]).sum(0))


@program
def keeps_a_cache_in_a_dict():
    model, letters, past, said = Remembering(), torch.arange(8), {}, []
    with torch.no_grad():
        for _ in range(5):
            letters = model(letters, past).argmax(-1)
            said.append(letters.tolist())
    return said, len(past["states"])


class Telling(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, features):
        features.append(self.body(x).tanh())
        return self.head(features[-1])


@program
def fills_a_list_that_it_is_given():
    def loss(model, x, y):
        features = []
        return F.cross_entropy(model(x, features), y) + sum(each.square().mean() for each in features)

    model = Telling()
    return fit(model, data(), loss), size(model)


class Noting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, notes):
        notes.features = self.body(x).tanh()
        notes.calls += 1
        return self.head(notes.features)


class Notes:
    calls = 0


@program
def stores_on_an_object_that_it_is_given():
    notes = Notes()

    def loss(model, x, y):
        return F.cross_entropy(model(x, notes), y) + notes.features.square().mean()

    model = Noting()
    return fit(model, data(), loss), size(model), notes.calls


class Generator(nn.Module):
    """Gives what its result is computed from, too."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.outer = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))

    def forward(self, x):
        styles = self.inner(x)
        return self.outer(styles), styles


@program
def gradients_between_results():
    def loss(model, x, _):
        made, styles = model(x[:, :4])
        noise = torch.randn_like(made)
        (slope,) = torch.autograd.grad((made * noise).sum() + styles.sum(), styles, create_graph=True)
        alone = torch.autograd.grad(made.square().sum(), {"styles": styles}, retain_graph=True)["styles"]
        return ((slope.norm(dim=1) - 1) ** 2).mean() + made.square().mean() + (alone * slope).mean()

    model = Generator()
    return fit(model, data(), loss), size(model)


@program
def gradients_watched_between_results():
    seen = []

    def loss(model, x, _):
        made, styles = model(x[:, :4])
        styles.retain_grad()
        styles.register_hook(lambda gradient: seen.append(gradient.norm().item()))
        if len(kept) % 2:
            styles.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        styles.register_hook(lambda gradient: gradient * 9).remove()
        kept.append(styles)
        if len(kept) == 3:
            styles.sum().backward(retain_graph=True)
        return made.square().mean() + (styles.square().mean() if len(kept) % 3 else 0)

    kept, model = [], Generator()
    return fit(model, data(), loss), seen, [each.grad.norm().item() for each in kept], size(model)


class OfChosen(nn.Module):
    """Batch norm of masked words, of points, of regions."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        chosen, inner = x[:, 0] > 0, self.body(x)
        made = torch.zeros_like(inner)
        made[chosen] = self.norm(inner[chosen])
        return self.head(made)


class OfNone(OfChosen):
    pass


@program
def normalises_the_samples_that_it_chooses():
    numbers = []
    for kind, later in ((OfChosen, "--+-"), (OfNone, "----")):
        model, batches = kind(), []
        for signs in ("++-++-++", "+-++" + later, "+++-+++-"):
            x = torch.randn(8, 6)
            x[:, 0] = x[:, 0].abs() * torch.tensor([1.0 if each == "+" else -1.0 for each in signs])
            batches.append((x, torch.randint(3, (8,))))
        numbers += [fit(model, batches), size(model), model.norm.running_var.sum().item()]
    return numbers


class WithLoss(nn.Module):
    """Makes its loss itself, and returns it beside its result, as language models do."""

    def __init__(self, loss):
        super().__init__()
        self.loss, self.inner = loss, mlp(nn.Dropout(0.2))

    def forward(self, x, y):
        made = self.inner(x)
        return made, self.loss(made, y, self)


KINDS_OF_LOSSES = {
    "mean": lambda made, y, model: F.cross_entropy(made, y),
    "ignoring": lambda made, y, model: F.cross_entropy(made, y, ignore_index=0),
    "smoothed": lambda made, y, model: nn.CrossEntropyLoss(torch.tensor([0.2, 1.0, 3.0]), label_smoothing=0.1)(made, y),
    "likelihood": lambda made, y, model: F.nll_loss(made.log_softmax(1), y, ignore_index=2),
    "probabilities": lambda made, y, model: F.cross_entropy(made, torch.eye(3)[y].to(made.dtype)),
    "elements": lambda made, y, model: (
        F.mse_loss(made, torch.eye(3)[y].to(made.dtype)) + 0.1 * F.l1_loss(made, made * 0)
    ),
    "summed": lambda made, y, model: F.cross_entropy(made, y, reduction="sum") / 100,
    "binary": lambda made, y, model: F.binary_cross_entropy_with_logits(made[:, 0], (y > 0).to(made.dtype)),
    "divergence": lambda made, y, model: F.kl_div(made.log_softmax(1), torch.eye(3)[y].to(made.dtype), reduction="sum"),
    "batch mean": lambda made, y, model: F.kl_div(
        made.log_softmax(1), torch.eye(3)[y].to(made.dtype), reduction="batchmean"
    ),
}
# Those that no sum of parts is: each part has the whole's, or they are made whole.
KINDS_THAT_ARE_NO_SUMS = {
    "with a penalty": lambda made, y, model: F.cross_entropy(made, y) + 0.01 * size_within(model),
    "squared": lambda made, y, model: F.cross_entropy(made, y) ** 2,
    "by hand": lambda made, y, model: (made.logsumexp(1) - made.gather(1, y[:, None])[:, 0]).mean(),
}
# Divided in Python by how many samples there are.
KINDS_BY_HOW_MANY = {
    "a mean": lambda made, y, model: (made.logsumexp(1) - made.gather(1, y[:, None])[:, 0]).sum() / len(y),
    "of a VAE": lambda made, y, model: (
        (F.mse_loss(made, torch.eye(3)[y].to(made.dtype), reduction="sum") + 0.1 * made.square().sum()) / made.shape[0]
    ),
    "unbiased": lambda made, y, model: (
        F.cross_entropy(made, y) - 0.01 * (made - made.mean(0)).square().sum() / (made.size(0) - 1)
    ),
    "a share": lambda made, y, model: 1 / len(y) * F.cross_entropy(made, y, reduction="sum") + 0.01 * made.var(),
    "elements": lambda made, y, model: (made - torch.eye(3)[y].to(made.dtype)).square().sum() / made.numel(),
}
# Not by a rule that holds for each batch: of 8 samples the first is as many, and of 5 it is not. The last is the same
# in parts of 8, and not in parts of 5.
KINDS_BY_OTHER_NUMBERS = {
    "at least": lambda made, y, model: F.cross_entropy(made, y, reduction="sum") / max(len(y), 4),
    "at most": lambda made, y, model: F.cross_entropy(made, y, reduction="sum") / min(len(y), 6),
    "a root": lambda made, y, model: F.cross_entropy(made, y, reduction="sum") / len(y) ** 0.5,
    "at most a part": lambda made, y, model: (made.logsumexp(1) - made[:, 0]).sum() / min(len(y), 4),
}


def size_within(model):
    return sum(each.square().sum() for each in model.parameters())


@program
def losses_made_by_the_model():
    numbers = []
    for loss in KINDS_OF_LOSSES.values():
        model = WithLoss(loss)
        numbers += [fit(model, data(), lambda m, x, y: m(x, y)[1]), size(model)]
    return numbers


@program
def labels_of_which_one_part_has_none():
    model, batches = WithLoss(KINDS_OF_LOSSES["ignoring"]), []
    for labels in ("12012201", "00002120", "00010000", "12211221"):
        batches.append((torch.randn(8, 6), torch.tensor([int(each) for each in labels])))
    return fit(model, batches, lambda m, x, y: m(x, y)[1]), size(model)


class WithLossThatIsNoSum(WithLoss):
    pass


@program
def losses_made_by_the_model_that_are_no_sums():
    numbers = []
    for loss in KINDS_THAT_ARE_NO_SUMS.values():
        model = WithLossThatIsNoSum(loss)
        numbers += [fit(model, data(), lambda m, x, y: m(x, y)[1]), size(model)]
    return numbers


class WithLossByHowMany(WithLoss):
    pass


@program
def divided_by_how_many_samples_there_are():
    numbers = []
    for loss in KINDS_BY_HOW_MANY.values():
        model = WithLossByHowMany(loss)
        numbers += [fit(model, data(), lambda m, x, y: m(x, y)[1]), size(model)]
    return numbers


class WithLossByOtherNumbers(WithLoss):
    pass


@program
def divided_by_other_numbers():
    numbers = []
    for loss in KINDS_BY_OTHER_NUMBERS.values():
        for rows in (37, 13):  # at first fewer samples than later ones
            model = WithLossByOtherNumbers(loss)
            batches = sorted(data(rows=rows), key=lambda each: len(each[1]))
            numbers += [fit(model, batches, lambda m, x, y: m(x, y)[1]), size(model)]
            model = WithLossByOtherNumbers(loss)
            numbers += [fit(model, batches[::-1], lambda m, x, y: m(x, y)[1]), size(model)]
    return numbers


class ScaledByHowMany(nn.Linear):
    """By a number that is the same in eight samples and in their halves, and not in those of five."""

    def forward(self, x):
        return super().forward(x) / min(len(x), 4)


@program
def scaled_by_how_many_at_most():
    model = ScaledByHowMany(6, 3)
    return fit(model, data()), size(model)


class NormalisedByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("spread", torch.ones(16))

    def forward(self, x):
        x = self.inner(x)
        mean, spread = (x.mean(0), x.std(dim=0)) if self.training else (self.mean, self.spread)
        if self.training:
            self.mean.lerp_(mean.detach(), 0.1)
            self.spread.mul_(0.9).add_(0.1 * spread.detach())
        return self.head(torch.tanh((x - mean) / (spread + 1e-3)))


@program
def normalised_by_hand():
    model = NormalisedByHand()
    numbers = fit(model, data())
    model.eval()
    kept = (model.mean.sum() + model.spread.sum()).item()
    return numbers, size(model), [model(x).square().mean().item() for x, _ in data()], kept


class Experts(nn.Module):
    """With a loss of its own, and one that keeps experts in balance, over the samples that are told to count."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))

    def forward(self, x, y):
        shares = self.router(x).softmax(-1)
        chosen = F.one_hot(shares.argmax(-1), num_classes=4)
        made = sum(shares[:, n : n + 1] * expert(x) for n, expert in enumerate(self.experts))
        counts = (y != 1).to(x.dtype)[:, None]
        balance = ((chosen * counts).sum(0) / counts.sum() * (shares * counts).sum(0) / counts.sum()).sum()
        return made, F.cross_entropy(made, y, ignore_index=2) + 0.1 * balance + 0.01 * shares[y == 0].var()


@program
def experts_in_balance():
    model = Experts()
    return fit(model, data(), lambda m, x, y: m(x, y)[1] + m(x, y)[0].square().mean()), size(model)


@program
def a_gradient_penalty_through_statistics():
    model = NormalisedByHand()

    def loss_of(model, x, y):
        x.requires_grad_()
        made = model(x)
        (slope,) = torch.autograd.grad(made.square().sum(), x, create_graph=True)
        return F.cross_entropy(made, y) + slope.square().mean()

    return fit(model, data(), loss_of), size(model)


class Cache:
    def __init__(self, keys):
        self.layers, self.seen, self.kind = [keys, {"values": keys * 2}], 0, keys.dtype


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, x):
        made = self.body(x)
        return torch.distributions.Categorical(logits=made), Cache(made.tanh())


@program
def returns_objects():
    model = Policy()

    def loss_of(model, x, y):
        chances, cache = model(x)
        drawn = chances.sample()
        assert chances.batch_shape == cache.layers[0].shape[:1] == drawn.shape == y.shape and cache.seen == 0
        more = cache.layers[1]["values"].square().mean() + chances.entropy().mean()
        return -(chances.log_prob(drawn) * (drawn == y)).mean() + more + chances.log_prob(y).sum() * -0.1

    return fit(model, data(), loss_of), size(model)


class Annealed(nn.Module):
    """A VAE that makes its loss itself, of which the second term has the weight that it is given."""

    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.head = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 6)

    def forward(self, x, weight):
        mean, spread = self.mean(x), self.spread(x)
        drawn = mean + torch.randn_like(mean) * (spread / 2).exp()
        kl = (mean.square() + spread.exp() - spread - 1).sum(1) / 2
        return F.mse_loss(self.head(drawn), x) + weight * kl.mean()


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, x, share):
        made = self.body(x)
        return share * made + (1 - share) * made.mean(0)


@program
def terms_that_have_no_weight_at_first():
    numbers = []
    for as_given in (float, torch.tensor):
        model = Annealed()
        for weight in (0.0, 0.5, 1.0):
            numbers += fit(model, data(), lambda m, x, y: m(x, as_given(weight)), epochs=1)  # noqa: B023
        numbers.append(size(model))
        model = Mixing()
        for share in (1.0, 0.7):
            numbers += fit(model, data(), lambda m, x, y: F.cross_entropy(m(x, as_given(share)), y), epochs=1)  # noqa: B023
        numbers.append(size(model))
    return numbers


def main(names):
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    for name in names or PROGRAMS:
        torch.manual_seed(7)
        random.seed(7)
        try:
            print(f"{name}: {PROGRAMS[name]()}", flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__} {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
