"""One of the models here, as somebody trains it who switches on what PyTorch's performance guide says.

python benchmarks/models/by_hand.py MODEL SETTING,... [ARGS of the model's script...]

Settings: channels_last, bf16 (autocast), compile, fused (optimizer), threads=N, no_item (the loss is read
once an epoch), pinned (batches come from pinned memory, by two worker processes; otherwise they are on the device).
"""

import contextlib
import importlib
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset


def batches_on_device(inputs, targets, args):
    order = torch.randperm(len(inputs), device=args.device)
    for i in range(0, len(inputs), args.batch_size):
        batch = order[i : i + args.batch_size]
        yield inputs[batch], targets[batch]


def main():
    name, settings = sys.argv[1], set(filter(None, sys.argv[2].split(",")))
    program = importlib.import_module(name)
    args = program.arguments().parse_args(sys.argv[3:])
    for setting in settings:
        if setting.startswith("threads="):
            torch.set_num_threads(int(setting.removeprefix("threads=")))
    layout = torch.channels_last if "channels_last" in settings else torch.preserve_format
    torch.manual_seed(0)
    inputs, targets = program.make_data(args)
    if "pinned" in settings:
        data = TensorDataset(inputs, targets)
        loader = DataLoader(
            data,
            args.batch_size,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
            pin_memory=args.device == "cuda",
        )
    else:
        inputs, targets = inputs.to(args.device), targets.to(args.device)
    model = program.make_model(args).to(args.device, memory_format=layout)
    optimizer = program.make_optimizer(model)
    if "fused" in settings:
        optimizer = type(optimizer)(
            model.parameters(), **{key: value for key, value in optimizer.defaults.items() if key in HYPER}, fused=True
        )
    if "compile" in settings:
        model.compile()
    autocast = torch.autocast(args.device, torch.bfloat16) if "bf16" in settings else contextlib.nullcontext()
    for epoch in range(args.epochs):
        total = torch.zeros((), device=args.device)
        for x, y in loader if "pinned" in settings else batches_on_device(inputs, targets, args):
            x, y = x.to(args.device, non_blocking=True), y.to(args.device, non_blocking=True)
            if "channels_last" in settings and x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            with autocast:
                loss = program.loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if "no_item" not in settings:
                loss.item()
        print(f"epoch {epoch + 1}: loss {total.item() * args.batch_size / len(inputs):.4f}")


HYPER = ("lr", "momentum", "weight_decay", "betas", "eps")

if __name__ == "__main__":
    main()
