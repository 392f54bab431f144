"""One of the models here as somebody ports it to several processes by hand, and as it was before.

python benchmarks/models/on_ranks.py MODEL WAY STEPS [ARGS of the model's script...]

Ways: plain (one process; under `overdrive run --ranks N` the same file runs on ranks), accelerate (started by
`accelerate launch`) and lightning (which starts its own processes). The GPT also fsdp2 and tensor, by torchrun, divided
with PyTorch's own parts as torchtitan divides its models; and zero1 and zero3, which are DeepSpeed's. The global batch
is the same everywhere. What is printed of the loss is what the libraries' own examples print: `loss.item()` of the main
process; under fsdp2, zero1 and zero3 the mean over the ranks, which is taken when all steps are made.
"""

import functools
import importlib
import itertools
import json
import math
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

WARM_UP = 8  # steps that are not timed
RANKS = 2


class Meter:
    """Takes the time from the end of the warm-up on, and keeps the losses."""

    def __init__(self):
        self.losses, self.ends = [], []

    def step(self, loss):
        self.losses.append(loss)
        self.ends.append(time.perf_counter())

    def tell(self):
        ends = self.ends[WARM_UP - 1 :]
        steps = [end - start for start, end in itertools.pairwise(ends)]
        told = {"seconds": (ends[-1] - ends[0]) / len(steps), "losses": self.losses, "steps": steps}
        print("result " + json.dumps(told), flush=True)


def forever(loader):
    while True:
        yield from loader


def train(program, model, optimizer, batches, steps, backward, meter):
    for x, y in itertools.islice(batches, steps):
        optimizer.zero_grad()
        loss = program.loss_of(model(x), y)
        backward(loss)
        optimizer.step()
        meter.step(loss.item())


def plain(program, args, data, steps):
    loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
    model = program.make_model(args)
    meter = Meter()
    train(program, model, program.make_optimizer(model), forever(loader), steps, lambda loss: loss.backward(), meter)
    meter.tell()


def accelerate(program, args, data, steps):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    assert accelerator.num_processes == RANKS
    loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
    model = program.make_model(args)
    model, optimizer, loader = accelerator.prepare(model, program.make_optimizer(model), loader)
    meter = Meter()
    train(program, model, optimizer, forever(loader), steps, accelerator.backward, meter)
    if accelerator.is_main_process:
        meter.tell()


def lightning(program, args, data, steps):
    import lightning

    meter = Meter()

    class Ported(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = program.make_model(args)

        def training_step(self, batch, _):
            x, y = batch
            loss = program.loss_of(self.model(x), y)
            meter.step(loss.item())
            return loss

        def configure_optimizers(self):
            return program.make_optimizer(self.model)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_steps=steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(data, args.batch_size // RANKS, shuffle=True, drop_last=True)
    trainer.fit(Ported(), loader)
    if trainer.is_global_zero:
        meter.tell()


def shared(args, data):
    """The batches of one process, of which each rank takes its part."""
    rank, part = dist.get_rank(), args.batch_size // RANKS
    for x, y in forever(DataLoader(data, args.batch_size, shuffle=True, drop_last=True)):
        yield x[rank * part : (rank + 1) * part], y[rank * part : (rank + 1) * part]


def fsdp2(program, args, data, steps):
    """Each block is a unit, and the root has the rest."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    model = program.make_model(args)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    meter = Meter()
    optimizer = program.make_optimizer(model)
    train(program, model, optimizer, shared(args, data), steps, lambda loss: loss.backward(), meter)
    tell_mean(meter)


def zero(stage, program, args, data, steps):
    import deepspeed

    deepspeed.init_distributed("gloo")
    model = program.make_model(args)
    config = {"train_batch_size": args.batch_size, "zero_optimization": {"stage": stage}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=program.make_optimizer(model), config=config)
    meter = Meter()
    train(program, engine, engine, shared(args, data), steps, engine.backward, meter)
    tell_mean(meter)


def tell_mean(meter):
    losses = torch.tensor(meter.losses, dtype=torch.float64)
    dist.all_reduce(losses)
    meter.losses = (losses / RANKS).tolist()
    if dist.get_rank() == 0:
        meter.tell()
    dist.destroy_process_group()


class Attention(nn.Module):
    """Of a block of the GPT, with a projection each for queries, keys and values: by columns these are whole heads."""

    def __init__(self, block):
        super().__init__()
        self.mask = block.mask
        self.heads = block.heads // RANKS
        width = block.qkv.in_features
        with torch.random.fork_rng():  # the order of batches is that of one process
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        weights, biases = block.qkv.weight.detach().split(width), block.qkv.bias.detach().split(width)
        for each, weight, bias in zip((self.q, self.k, self.v), weights, biases, strict=True):
            each.weight.data.copy_(weight)
            each.bias.data.copy_(bias)
        self.out = block.out

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (each(x).view(b, t, self.heads, -1).transpose(1, 2) for each in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        weights = weights.masked_fill(~self.mask[:t, :t], float("-inf")).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.ln1, self.attention, self.ln2, self.mlp = block.ln1, Attention(block), block.ln2, block.mlp

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


def tensor(program, args, data, steps):
    """Each pair of layers by column, then by row; the vocabulary of both ends."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    model = program.make_model(args)
    model.blocks = nn.Sequential(*[Block(each) for each in model.blocks])
    column, row = ColwiseParallel, RowwiseParallel
    for block in model.blocks:
        plan = {f"attention.{each}": column() for each in "qkv"}
        plan |= {"attention.out": row(), "mlp.0": column(), "mlp.2": row()}
        parallelize_module(block, mesh, plan)
    ends = {"tokens": row(input_layouts=Replicate()), "head": column(output_layouts=Replicate())}
    parallelize_module(model, mesh, ends)
    meter = Meter()
    loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
    optimizer = program.make_optimizer(model)
    train(program, model, optimizer, forever(loader), steps, lambda loss: loss.backward(), meter)
    if dist.get_rank() == 0:
        meter.tell()
    dist.destroy_process_group()


WAYS = {
    "plain": plain,
    "accelerate": accelerate,
    "lightning": lightning,
    "fsdp2": fsdp2,
    "tensor": tensor,
    "zero1": functools.partial(zero, 1),
    "zero3": functools.partial(zero, 3),
}


def main():
    name, way, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    program = importlib.import_module(name)
    args = program.arguments().parse_args([*sys.argv[4:], "--device", "cpu"])
    torch.manual_seed(0)
    data = TensorDataset(*program.make_data(args))
    WAYS[way](program, args, data, steps)


if __name__ == "__main__":
    main()
