"""Seeded defects of replicas of stages: `overdrive run --ranks 4 --layout data=2,pipeline=2 mesh_defects.py [NAME...]`.

Each alters Overdrive in its own process and trains a model of two layers as large as each other; printed are the
defect's name and the losses. The comparison of ranks is off, to show that the defect acts; with the word `guarded`
before the names it is on.
"""

import contextlib
import sys
from unittest import mock

import torch
from torch import nn

from overdrive.ranks.lockstep import Lockstep
from overdrive.techniques.parallel.pipeline_parallel import gradients

AVERAGE = gradients.StageGradients._average


def instead(average):
    return mock.patch.object(gradients.StageGradients, "_average", average)


def own_gradients(stages, held):
    return [stages._own(each) for each in held if each.share.is_whole]


def not_summed():
    return instead(lambda stages, held: None)


def summed_twice():
    def average(stages, held):
        AVERAGE(stages, held)
        column = stages._mesh.column
        column.finish([column.begin_sum(each) for each in own_gradients(stages, held)])

    return instead(average)


def summed_over_the_stages_of_a_replica():
    def average(stages, held):
        row, own = stages._mesh.row, own_gradients(stages, held)
        row.finish([row.begin_sum(each) for each in own])
        for each in own:
            each.div_(row.size)

    return instead(average)


DEFECTS = {"none": contextlib.nullcontext}
DEFECTS |= {each.__name__: each for each in (not_summed, summed_twice, summed_over_the_stages_of_a_replica)}


def main(names, guarded):
    if not guarded:
        Lockstep.compare = lambda self, when, lap=False: None
    torch.set_default_dtype(torch.float64)
    for name in names:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        told = []
        with DEFECTS[name]():
            for _ in range(4):
                optimizer.zero_grad()
                loss = (model(torch.randn(8, 6)) - torch.randn(8, 6)).square().mean()
                loss.backward()
                optimizer.step()
                told.append(loss.item())
        print(name, *map(repr, told))


if __name__ == "__main__":
    words = sys.argv[1:]
    main([each for each in words if each != "guarded"] or list(DEFECTS), "guarded" in words)
