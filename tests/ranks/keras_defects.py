"""Seeded defects of Keras on ranks: `overdrive run --ranks 2 keras_defects.py [NAME...]` runs a program under each.

Each alters Overdrive in its own process, so that the numbers come out wrong. Printed are the defect's name and
those numbers. The comparison of ranks is off, to show that the defect acts; with the word `guarded` before the names it
is on.
"""

import contextlib
import sys
from unittest import mock

import keras
import torch
from keras_programs import PROGRAMS

from overdrive.model_state.division import norms, tree
from overdrive.ranks.lockstep import Lockstep
from overdrive.ranks.rank import current
from overdrive.seams.torch import undoing
from overdrive.techniques.parallel.data_parallel import gradients

DEFECTS = {}  # by name: the program that shows it, and what alters Overdrive


def defect(program):
    def taken(function):
        DEFECTS[function.__name__] = program, contextlib.contextmanager(function)
        return function

    return taken


@defect("uneven_last_batch")
def each_rank_applies_its_own_gradients():
    with mock.patch.object(gradients.Gradients, "watch", lambda self, leaves: None):
        yield


@defect("batch_norm")
def statistics_of_the_part():
    with mock.patch.object(norms, "_moments_of_all", lambda group, x, axes: (x.mean(axes), x.var(axes, correction=0))):
        yield


@defect("batch_norm")
def statistics_without_gradients():
    plain = norms._moments_of_all
    cut = lambda group, x, axes: tuple(each.detach() for each in plain(group, x, axes))  # noqa: E731
    with mock.patch.object(norms, "_moments_of_all", cut):
        yield


@defect("steps_with_masks")
def masks_left_behind():
    with mock.patch.object(tree, "mask_of", lambda tensor: None):
        yield


@defect("divided_at_first")
def running_means_moved_twice():
    with mock.patch.object(undoing, "kept_by_layers", lambda model: []):
        yield


@defect("uneven_last_batch")
def one_rank_with_other_weights():
    apply = keras.optimizers.Optimizer.apply

    def drifts(self, *args, **kwargs):
        apply(self, *args, **kwargs)
        if current().rank:
            self._trainable_variables[0].assign_add(keras.ops.full_like(self._trainable_variables[0], 1e-3))

    with mock.patch.object(keras.optimizers.Optimizer, "apply", drifts):
        yield


def main(names):
    keras.config.set_floatx("float64")
    torch.set_default_dtype(torch.float64)
    guarded = names[:1] == ["guarded"]
    compare = Lockstep.compare if guarded else lambda self, when, lap=False: None
    with mock.patch.object(Lockstep, "compare", compare):
        for name in names[guarded:] or DEFECTS:
            program, alter = DEFECTS[name]
            keras.utils.set_random_seed(7)
            with alter():
                print(f"{name}: {PROGRAMS[program]()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
