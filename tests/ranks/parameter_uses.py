"""What programs do with parameters, gradients and states, each in a few lines: `python parameter_uses.py [NAME...]`.

`torchrun --nproc-per-node 2 parameter_uses.py fsdp2` does the same with PyTorch's `fully_shard`, for comparison.
"""

from __future__ import annotations

import copy
import io
import os
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn

ROWS, LABELS = 4, (0, 1, 2, 0)
USES = {}


def use(function):
    USES[function.__name__] = function
    return function


def model():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(8, 3))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.words(x).mean(1))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def encode(self, x):
        return self.first(x)

    def forward(self, x):
        return self.last(self.encode(x))


def tied():
    torch.manual_seed(0)
    return Tied()


def encoder():
    torch.manual_seed(0)
    return Encoder()


def made(shard, make=model, early=False):
    """`early`: the optimizer comes before the model is divided, where `shard` does that."""
    module = make()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2) if early or shard is None else None
    if shard:
        shard(module)
    return module, optimizer or torch.optim.AdamW(module.parameters(), 1e-2)


def gradients(module, optimizer, x=None, y=None):
    loss = F.cross_entropy(module(inputs() if x is None else x), torch.tensor(LABELS) if y is None else y)
    optimizer.zero_grad()
    loss.backward()
    return loss.item()


def step(module, optimizer, *batch):
    loss = gradients(module, optimizer, *batch)
    optimizer.step()
    return loss


def inputs():
    return torch.arange(ROWS * 8.0).view(ROWS, 8).sin()


def result(module):
    with torch.no_grad():
        return module(inputs()[:1]).sum().item()


def number(x):
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).item()


@use
def optimizer_made_before(shard):
    m, o = made(shard, early=True)
    return step(m, o), step(m, o)


@use
def deepcopy_for_an_average(shard):
    m, o = made(shard)
    step(m, o)
    mean = copy.deepcopy(m)
    step(m, o)
    with torch.no_grad():
        for ours, theirs in zip(mean.parameters(), m.parameters(), strict=True):
            ours.lerp_(theirs, 0.5)
    return result(mean), {type(each).__name__ for each in mean.parameters()}


@use
def averaged_model(shard):
    m, o = made(shard)
    mean = torch.optim.swa_utils.AveragedModel(m)
    for _ in range(2):
        step(m, o)
        mean.update_parameters(m)
    return result(mean)


@use
def pickled_whole(shard):
    m, o = made(shard)
    step(m, o)
    held = io.BytesIO()
    torch.save(m, held)
    held.seek(0)
    loaded = torch.load(held, weights_only=False)
    return type(loaded).__name__, {type(each).__name__ for each in loaded.parameters()}, result(loaded)


@use
def states_are_plain_and_whole(shard):
    m, o = made(shard)
    step(m, o)
    held = [(name, tuple(each.shape), type(each).__name__, number(each.sum())) for name, each in m.state_dict().items()]
    state = o.state_dict()["state"][0]
    return held, [(name, tuple(each.shape), type(each).__name__) for name, each in state.items()]


@use
def state_loaded(shard):
    m, o = made(shard)
    step(m, o)
    m.load_state_dict({name: each * 0.5 for name, each in model().state_dict().items()})
    return result(m), step(m, o), result(m)


@use
def optimizer_loaded(shard):
    m, o = made(shard)
    step(m, o)
    step(m, o)
    held, other = copy.deepcopy(o.state_dict()), torch.optim.AdamW(m.parameters(), 1e-3)
    other.load_state_dict(held)
    return step(m, other), step(m, other), other.param_groups[0]["lr"]


@use
def state_looked_at_and_changed(shard):
    m, o = made(shard)
    step(m, o)
    numbers = [number(each["exp_avg"].norm()) for each in o.state.values()]
    for each in o.state.values():
        each["exp_avg"].mul_(0.5)
    return (
        numbers,
        step(m, o),
        step(m, o),
        [tuple(each["exp_avg_sq"].shape) for each in copy.deepcopy(o).state.values()],
    )


@use
def norm_by_hand(shard):
    m, o = made(shard)
    gradients(m, o)
    return sum(number(p.grad.norm()) ** 2 for p in m.parameters()) ** 0.5


@use
def gradients_written_by_hand(shard):
    m, o = made(shard)
    step(m, o)
    gradients(m, o)
    for each in m.parameters():
        each.grad.mul_(torch.arange(each.numel()).view(each.shape) % 3)
    o.step()
    m[0][0].weight.grad = torch.ones(8, 8)
    del m[3].bias.grad
    o.step()
    return result(m), m[3].bias.grad is None


@use
def accumulated_and_kept_gradients(shard):
    m, o = made(shard)
    for _ in range(2):
        F.cross_entropy(m(inputs()), torch.tensor(LABELS)).backward()
    kept = m[3].weight.grad
    first = number(kept.sum())
    F.cross_entropy(m(inputs()), torch.tensor(LABELS)).backward()
    o.step()
    o.zero_grad(set_to_none=False)
    return first, number(kept.sum()), number(m[0][0].weight.grad.sum()), result(m), step(m, o)


@use
def clipped(shard):
    m, o = made(shard)
    gradients(m, o)
    norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.1, kind) for kind in (2.0, float("inf"), 1.0)]
    o.step()
    return [(type(each).__name__, number(each)) for each in norms], result(m)


@use
def clipped_with_a_free_parameter(shard):
    m, _ = made(shard)
    free = nn.Parameter(torch.ones(3))
    F.cross_entropy(m(inputs()) * free, torch.tensor(LABELS)).backward()
    return number(nn.utils.clip_grad_norm_([*m.parameters(), free], 0.1)), number(free.grad.sum())


@use
def clipped_by_value(shard):
    m, o = made(shard)
    gradients(m, o)
    nn.utils.clip_grad_value_(m.parameters(), 0.01)
    o.step()
    return result(m)


@use
def weight_penalty_before_and_after_the_call(shard):
    m, o = made(shard)
    for _ in range(3):
        o.zero_grad()
        loss = 0.1 * sum(p.square().sum() for p in m.parameters()) + m(inputs()).sum()
        (loss + 0.1 * sum((p * p.abs()).sum() for p in m.parameters())).backward()
        o.step()
    return result(m)


@use
def data_written_by_hand(shard):
    m, o = made(shard)
    step(m, o)
    for each in m.parameters():
        each.data.mul_(0.9)
    first = result(m)
    m[3].bias.data = torch.ones(3)
    return first, step(m, o), result(m)


@use
def constraint_under_no_grad(shard):
    m, o = made(shard)
    step(m, o)
    with torch.no_grad():
        m[0][0].weight[0, :].clamp_(-0.01, 0.01)
    return result(m), step(m, o), result(m)


@use
def alias_of_data_kept(shard):
    m, o = made(shard)
    step(m, o)
    kept = m[0][0].weight.data
    before = number(kept.sum())
    step(m, o)
    after = number(kept.sum())
    kept.mul_(2)
    return before, after, result(m), step(m, o), result(m)


@use
def weight_to_numpy(shard):
    m, o = made(shard)
    step(m, o)
    return float(m[0][0].weight.detach().numpy().sum())


@use
def shapes_and_counts(shard):
    m, o = made(shard)
    step(m, o)
    return sum(p.numel() for p in m.parameters()), [(tuple(p.shape), p.stride(), p.is_leaf) for p in m.parameters()]


@use
def tied_weights(shard):
    m, o = made(shard, tied)
    batch = torch.arange(20).view(4, 5) % 11, torch.tensor([1, 2, 3, 4])
    return step(m, o, *batch), step(m, o, *batch), m.head.weight is m.words.weight


@use
def method_other_than_forward(shard):
    m, o = made(shard, encoder)
    step(m, o)
    return number(m.encode(inputs()).sum())


@use
def part_called_by_itself(shard):
    m, o = made(shard)
    step(m, o)
    return number(m[3](inputs()).sum())


@use
def gradient_of_an_input(shard):
    m, o = made(shard)
    step(m, o)
    x = inputs().requires_grad_()
    return number(torch.autograd.grad(m(x).sum(), x)[0].sum())


@use
def gradients_asked_for(shard):
    m, o = made(shard)
    step(m, o)
    return [number(each.sum()) for each in torch.autograd.grad(m(inputs()).sum(), list(m.parameters()))]


@use
def functional_call(shard):
    m, o = made(shard)
    step(m, o)
    return torch.func.functional_call(m, {k: v * 0.5 for k, v in m.named_parameters()}, (inputs(),)).sum().item()


@use
def hook_on_a_gradient(shard):
    m, o = made(shard)
    step(m, o)
    m[3].weight.register_hook(lambda g: g * 2)
    step(m, o)
    return result(m)


@use
def layers_frozen_late(shard):
    m, o = made(shard)
    step(m, o)
    m[0].requires_grad_(False)
    step(m, o)
    return result(m)


@use
def group_added_late(shard):
    m, o = made(shard)
    step(m, o)
    o.param_groups[0]["params"].pop()
    o.add_param_group({"params": [m[3].bias], "lr": 0.5})
    step(m, o)
    return result(m)


@use
def flat_vector(shard):
    m, o = made(shard)
    step(m, o)
    vector = nn.utils.parameters_to_vector(m.parameters())
    nn.utils.vector_to_parameters(vector * 0.5, m.parameters())
    return tuple(vector.shape), number(vector.sum()), result(m), step(m, o), result(m)


@use
def written_between_forward_and_backward(shard):
    m, o = made(shard)
    step(m, o)
    loss = m(inputs()).sum()
    o.step()
    try:
        loss.backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)


@use
def graph_used_twice(shard):
    m, o = made(shard)
    step(m, o)
    loss = m(inputs()).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    o.step()
    return result(m)


class Twice(nn.Module):
    """One layer, used twice, each time with activations that are made again in a backward pass of their own."""

    def __init__(self):
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = torch.utils.checkpoint.checkpoint(self.shared, x, use_reentrant=True)
        return self.last(x)


def twice():
    torch.manual_seed(0)
    return Twice()


@use
def checkpoints_with_passes_of_their_own(shard):
    m, o = made(shard, twice)
    return [step(m, o) for _ in range(3)], result(m)


@use
def other_optimizers(shard):
    numbers = []
    kinds = torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam, torch.optim.Rprop
    for kind in (*kinds, torch.optim.RAdam, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.ASGD):
        m, _ = made(shard)
        o = kind(m.parameters(), lr=0.01, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
        numbers += [step(m, o) for _ in range(3)]
    for options in ({"fused": True}, {"foreach": True}, {"amsgrad": True, "maximize": True}):
        m, _ = made(shard)
        o = torch.optim.AdamW(m.parameters(), lr=0.01, **options)
        numbers += [step(m, o) for _ in range(3)]
    return numbers


@use
def steps_of_an_optimizer_that_looks_at_all(shard):
    m, _ = made(shard)
    o = torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=4)

    def closure():
        o.zero_grad()
        loss = F.cross_entropy(m(inputs()), torch.tensor(LABELS))
        loss.backward()
        return loss

    return [o.step(closure).item() for _ in range(2)], result(m)


def fully_sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))

    def shard(module):
        for each in module.children():
            if isinstance(each, nn.Sequential):
                fully_shard(each, mesh=mesh)
        fully_shard(module, mesh=mesh)

    return shard


def main(names):
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    shard = fully_sharded() if names == ["fsdp2"] else None
    for name in USES if shard else names or USES:
        try:
            told = USES[name](shard)
        except Exception as error:
            told = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if shard is None or os.environ["RANK"] == "0":
            print(f"{name}: {told}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
