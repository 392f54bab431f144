import torch


def addition_problems(n, length, generator):
    """The adding problem: two marked numbers in a sequence, the target is their sum."""
    values = torch.rand(n, length, generator=generator)
    marks = torch.zeros(n, length)
    first = torch.randint(0, length // 2, (n,), generator=generator)
    second = torch.randint(length // 2, length, (n,), generator=generator)
    rows = torch.arange(n)
    marks[rows, first] = 1
    marks[rows, second] = 1
    target = (values * marks).sum(dim=1)
    return torch.stack([values, marks], dim=-1), target


def batches(x, y, batch_size, generator):
    order = torch.randperm(len(x), generator=generator)
    for chunk in order.split(batch_size):
        yield x[chunk], y[chunk]
