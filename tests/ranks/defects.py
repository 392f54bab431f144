"""Seeded defects of parallelism: `overdrive run --ranks 2 defects.py` runs a program under each, one after the other.

Each alters Overdrive in its own process, so that the numbers of the program come out wrong; the test sees that they do.
Printed is the defect's name and the program's numbers. Where Overdrive itself has a guard against a defect, the guard
is off, to show that the defect acts; with the word `guarded` before the names it is on. The guards are the trial of a
model's call, and the lockstep.
"""

import contextlib
import os
import random
import sys
import warnings
from unittest import mock

import torch
from small_programs import PROGRAMS

from overdrive.model_state.division import by_hand, chance, exchange, norms
from overdrive.ranks.group import Group
from overdrive.ranks.lockstep import Lockstep
from overdrive.ranks.rank import current
from overdrive.techniques.parallel.data_parallel import calls, gradients

DEFECTS = {}  # by name: the program that shows it, its guard, and what alters Overdrive
COMPARED, TRIED, STOPPED = "compared", "tried", "stopped"  # who finds it: these tests alone, the trial, the lockstep
_MAIN = os.getpid()
_guarded = False


def defect(program, found=COMPARED):
    def taken(function):
        DEFECTS[function.__name__] = program, found, contextlib.contextmanager(function)
        return function

    return taken


def acts_here():
    """Not in a trial of a model's call, which is a fork, unless it is to find the defect."""
    return _guarded or os.getpid() == _MAIN


def patched(holder, name, value):
    return mock.patch.object(holder, name, value)


@defect("weight_penalty")
def gradients_summed_and_a_penalty_counted_for_each_rank():
    def put_back(self, bucket):
        size, self._group.size = self._group.size, 1
        plain(self, bucket)
        self._group.size = size

    plain = gradients.Gradients._put_back
    with patched(gradients.Gradients, "_put_back", put_back):
        yield


@defect("class_weights_and_ignored_labels")
def means_of_local_losses():
    def backward(ctx, gradient):
        crossing = ctx.crossing
        return exchange.Part.apply(gradient, crossing.group, crossing.dim, crossing.sizes, 1), None, None, None, None

    with patched(exchange.Gathered, "backward", staticmethod(backward)):
        yield


@defect("batch_norm")
def batch_norm_of_the_part():
    with patched(norms, "_live", lambda *_: None):
        yield


@defect("batch_norm")
def running_statistics_of_the_part():
    def of_all(group, x):
        found = plain(group, x)
        mean, variance = norms._moments(x)
        kept.append((mean.double(), variance.double()))
        return found

    kept, plain, keep = [], norms._of_all, norms._keep

    def keeps(given, mean, variance, count):
        keep(given, *(kept.pop() if kept else (mean, variance)), count)

    with patched(norms, "_of_all", of_all), patched(norms, "_keep", keeps):
        yield


@defect("batch_norm")
def batch_norm_with_a_local_gradient():
    plain = norms._Normalised.backward

    def backward(ctx, gradient):
        group, ctx.group = ctx.group, mock.Mock(sum_=lambda tensor, _: tensor)
        found = plain(ctx, gradient)
        ctx.group = group
        return found

    with patched(norms._Normalised, "backward", staticmethod(backward)):
        yield


@defect("looks_at_its_batch")
def sums_by_hand_of_the_part():
    with patched(by_hand.ByHand, "summed", lambda *given: given[-1]()), patched(by_hand.ByHand, "over", lambda _: None):
        yield


@defect("normalised_by_hand")
def a_total_with_a_local_gradient():
    with patched(exchange.Total, "backward", staticmethod(lambda ctx, gradient: (gradient, None))):
        yield


@defect("dropout", TRIED)
def the_same_mask_for_other_samples():
    def drawn(*given):
        return None if acts_here() else plain(*given)

    plain = chance._drawn
    with patched(chance, "_drawn", drawn):
        yield


@defect("noise_of_many_kinds", TRIED)
def the_noise_of_another_rank():
    def of(self, tensor):
        first = self.whole - self.first - self.size if acts_here() else self.first
        return tensor.narrow(self.dim, first, self.size)

    with patched(chance._Span, "of", of):
        yield


@defect("plain_with_a_ragged_last_batch")
def a_stale_bucket():
    def begin(self, numbers):
        plain(self, numbers)
        key = tuple(numbers)
        bucket = self._begun[-1]
        self._group.finish([bucket.work])
        now = sum(each.clone() for each in bucket.summands)
        before = held.get(key, now)
        held[key] = now
        bucket.flat, bucket.work = before.clone(), self._group.begin_sum(torch.zeros(1))

    held, plain = {}, gradients.Gradients._begin
    with patched(gradients.Gradients, "_begin", begin):
        yield


@defect("unused_parameters")
def an_unused_parameter_gets_zeros():
    plain = gradients.Gradients._backward_over

    def over(self):
        plain(self)
        for ref in self._leaves:
            leaf = ref()
            if leaf is not None and leaf.grad is None and leaf.requires_grad:
                leaf.grad = torch.zeros_like(leaf)

    with patched(gradients.Gradients, "_backward_over", over):
        yield


@defect("hooks_on_gradients")
def clipped_before_it_is_averaged():
    with patched(gradients, "gradient_hooks", lambda _: None), patched(gradients, "accumulation_hooks", lambda _: None):
        yield


@defect("samples_moved_against_the_loss")
def the_gradient_of_an_input_in_parts():
    def backward(ctx, gradient):
        whole = gradient.new_zeros(sum(ctx.sizes), *gradient.shape[1:])
        first = sum(ctx.sizes[: ctx.group.rank])
        whole[first : first + len(gradient)] = gradient
        return whole, None, None, None, None

    with patched(exchange.Part, "backward", staticmethod(backward)):
        yield


@defect("gradients_asked_for")
def gradients_asked_for_of_the_part():
    with patched(calls, "Mean", mock.Mock(apply=lambda gradient, group: gradient)):
        yield


@defect("lstm_with_hidden_state")
def hidden_states_in_the_order_of_another_rank():
    def part_of(whole, dim, rank, sizes):
        return plain(whole, dim, len(sizes) - 1 - rank if dim == 1 else rank, sizes)

    plain = exchange.part_of
    with patched(calls, "part_of", part_of):
        yield


@defect("evaluated_in_ragged_batches")
def a_padded_evaluation():
    """The shorter part is filled up with its first sample, and the result cut to so many samples as there are."""

    def gather(self, tensor, dim, sizes, what):
        most = max(sizes)
        padded = torch.cat([tensor, *[tensor.narrow(dim, 0, 1)] * (most - tensor.shape[dim])], dim)
        return plain(self, padded, dim, [most] * len(sizes), what).narrow(dim, 0, sum(sizes))

    plain = Group.gather
    with patched(Group, "gather", gather):
        yield


@defect("batch_norm")
def statistics_of_a_padded_batch():
    def moments(x):
        padded = x if len(x) > 2 else torch.cat((x, x[:1]))  # the last batch is of 5: parts of 2 and 3
        return plain(padded)

    plain = norms._moments
    with patched(norms, "_moments", moments):
        yield


@defect("schedules_and_early_stopping")
def a_schedule_that_steps_for_each_rank():
    def step(self, *args, **kwargs):
        for _ in range(current().size):
            plain(self, *args, **kwargs)

    plain = torch.optim.lr_scheduler.ReduceLROnPlateau.step
    with patched(torch.optim.lr_scheduler.ReduceLROnPlateau, "step", step):
        yield


@defect("accumulation_and_clipping")
def clipped_by_the_norm_of_the_part():
    """As in scripts that clip before gradients are averaged, which is put off to the optimizer's step."""

    def over(self):
        groups.append(self._group)
        self._came, self._under_way = {}, False
        self._begun.clear()

    def clip(parameters, limit):
        parameters = list(parameters)
        norm = plain(parameters, limit)
        for each in parameters:
            each.grad = exchange.Mean.apply(each.grad, groups[0])
        return norm

    groups, plain = [], torch.nn.utils.clip_grad_norm_
    with patched(gradients.Gradients, "_backward_over", over), patched(torch.nn.utils, "clip_grad_norm_", clip):
        yield


@defect("sparse_gradients", STOPPED)
def rows_of_other_ranks_lost():
    with patched(gradients.Gradients, "_sparse", lambda self, gradient: gradient):
        yield


@defect("accumulation_and_clipping", STOPPED)
def accumulated_gradients_averaged_too_late():
    plain = gradients.Gradients._backward_over

    def over(self):
        counts[0] += 1
        if counts[0] % 2:
            plain(self)
        else:
            self._came, self._under_way, self._begun = {}, False, []

    counts = [0]
    with patched(gradients.Gradients, "_backward_over", over):
        yield


@defect("plain_with_a_ragged_last_batch", STOPPED)
def one_rank_a_step_ahead():
    step, steps = torch.optim.SGD.step, []

    def twice(self, *args, **kwargs):
        steps.append(self)
        if len(steps) == 3 and current().rank == 1:
            step(self)
        return step(self, *args, **kwargs)

    with patched(torch.optim.SGD, "step", twice):
        yield


@defect("dropout", STOPPED)
def one_rank_with_another_seed():
    if current().rank:
        torch.default_generator.manual_seed(8)  # past the seam that gives all ranks the seed of rank 0
    yield


@defect("plain_with_a_ragged_last_batch", STOPPED)
def one_bit_of_one_parameter():
    step = torch.optim.SGD.step

    def flips(self, *args, **kwargs):
        step(self, *args, **kwargs)
        if current().rank:
            first = self.param_groups[0]["params"][0].data.view(-1).view(torch.int64)
            first[0] ^= 1 if _guarded else 1 << 40  # the last bit is enough for the lockstep, and not for the numbers

    with patched(torch.optim.SGD, "step", flips):
        yield


@defect("decides_by_truth_values", STOPPED)
def truth_values_that_each_rank_has_of_its_own():
    """As if a norm were next to its limit, and another one there by rounding."""

    def alone(self, numbers, what):
        return [[*numbers]] * self.size if what.startswith("a truth value") else plain(self, numbers, what)

    def at_least(self, other):
        made = compared(self, other)
        return ~made if current().rank and made.numel() == 1 else made

    plain, compared = Group.numbers_of_each, torch.Tensor.__ge__
    with patched(Group, "numbers_of_each", alone), patched(torch.Tensor, "__ge__", at_least):
        yield


@defect("layers_skipped_at_random", STOPPED)
def one_rank_that_skips_other_layers():
    if current().rank:
        random.random()
    yield


def main(names):
    global _guarded
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    _guarded = names[:1] == ["guarded"]
    compare = Lockstep.compare if _guarded else lambda self, when, lap=False: None
    with patched(Lockstep, "compare", compare):
        for name in names[_guarded:] or DEFECTS:
            program, _, alter = DEFECTS[name]
            torch.manual_seed(7)
            random.seed(7)
            with alter():
                print(f"{name}: {PROGRAMS[program]()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
