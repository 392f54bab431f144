"""One of the models here as somebody ports it to several processes by hand, and as it was before.

python benchmarks/models/on_ranks.py MODEL WAY STEPS [ARGS of the model's script...]

Ways: plain (one process; under `overdrive run --ranks N` the same file runs on ranks), accelerate (started by
`accelerate launch`) and lightning (which starts its own processes). The global batch is the same everywhere. What is
printed of the loss is what the libraries' own examples print: `loss.item()` of the main process.
"""

import importlib
import itertools
import json
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

WARM_UP = 8  # steps that are not timed
RANKS = 2


class Meter:
    """Takes the time from the end of the warm-up on, and keeps the losses."""

    def __init__(self):
        self.losses, self.began = [], 0.0

    def step(self, loss):
        self.losses.append(loss)
        if len(self.losses) == WARM_UP:
            self.began = time.perf_counter()

    def tell(self):
        seconds = (time.perf_counter() - self.began) / (len(self.losses) - WARM_UP)
        print("result " + json.dumps({"seconds": seconds, "losses": self.losses}), flush=True)


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


def main():
    name, way, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    program = importlib.import_module(name)
    args = program.arguments().parse_args([*sys.argv[4:], "--device", "cpu"])
    torch.manual_seed(0)
    data = TensorDataset(*program.make_data(args))
    {"plain": plain, "accelerate": accelerate, "lightning": lightning}[way](program, args, data, steps)


if __name__ == "__main__":
    main()
