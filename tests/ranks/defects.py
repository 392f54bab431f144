"""Seeded defects of parallelism: `overdrive run --ranks 2 defects.py` runs a program under each, one after the other.

Each alters Overdrive in its own process, so that the numbers of the program come out wrong; the test sees that they do.
Printed is the defect's name and the program's numbers. Defects of one rank alone (`defects.py NAME`) stop the run.
"""

import contextlib
import random
import sys
import warnings
from unittest import mock

import torch
from small_programs import PROGRAMS

from overdrive.ranks.rank import current
from overdrive.techniques.parallel.data_parallel import calls, chance, exchange, gradients, norms

DEFECTS = {}  # by name: the program that shows it, and what alters Overdrive
ALONE = {}  # of one rank alone


def defect(program, table=DEFECTS):
    def taken(function):
        table[function.__name__] = program, contextlib.contextmanager(function)
        return function

    return taken


def patched(holder, name, value):
    return mock.patch.object(holder, name, value)


@defect("weight_penalty")
def gradients_summed_and_a_penalty_counted_for_each_rank():
    def put_back(self):
        size, self._group.size = self._group.size, 1
        plain(self)
        self._group.size = size

    plain = gradients.Gradients._put_back
    with patched(gradients.Gradients, "_put_back", put_back):
        yield


@defect("class_weights_and_ignored_labels")
def means_of_local_losses():
    def backward(ctx, gradient):
        return exchange.Part.apply(gradient, ctx.group, ctx.dim, ctx.sizes, 1), None, None, None, None

    with patched(exchange.Gathered, "backward", staticmethod(backward)):
        yield


@defect("batch_norm")
def batch_norm_of_the_part():
    with patched(norms.Norms, "answer", lambda *_: None):
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


@defect("dropout")
def the_same_mask_for_other_samples():
    with patched(chance, "_drawn", lambda *_: None):
        yield


@defect("noise_of_many_kinds")
def the_noise_of_another_rank():
    def of(self, tensor):
        return tensor.narrow(self.dim, self.whole - self.first - self.size, self.size)

    with patched(chance._Span, "of", of):
        yield


@defect("plain_with_a_ragged_last_batch")
def a_stale_bucket():
    def begin(self, numbers):
        plain(self, numbers)
        key = tuple(numbers)
        numbers, flat, work = self._begun.pop()
        self._group.finish([work])
        now, before = flat.clone(), held.get(key, flat)
        held[key] = now
        self._begun.append((numbers, before.clone(), self._group.begin_sum(torch.zeros(1))))

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


@defect("gan")
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
    with patched(calls.Divided, "asked", lambda self, found: found):
        yield


@defect("lstm_with_hidden_state")
def hidden_states_in_the_order_of_another_rank():
    def part_of(whole, dim, rank, sizes):
        return plain(whole, dim, len(sizes) - 1 - rank if dim == 1 else rank, sizes)

    plain = exchange.part_of
    with patched(calls, "part_of", part_of):
        yield


@defect("batches_smaller_than_the_ranks")
def a_batch_padded_with_repeats():
    def shares(rows, ranks):
        return [-(-rows // ranks)] * ranks

    def part_of(whole, dim, rank, sizes):
        places = torch.arange(rank * sizes[0], (rank + 1) * sizes[0]) % whole.shape[dim]
        return whole.index_select(dim, places)

    def apply(part, group, dim, sizes, scale):
        rows = sum(sizes) - (1 if sum(sizes) > 3 else 0)
        return plain(part, group, dim, sizes, scale).narrow(dim, sum(sizes) - rows, rows)

    plain = exchange.Gathered.apply
    with (
        patched(calls, "shares", shares),
        patched(calls, "part_of", part_of),
        patched(calls, "Gathered", mock.Mock(apply=apply)),
    ):
        yield


@defect("sparse_gradients")
def rows_of_other_ranks_lost():
    with patched(gradients.Gradients, "_sparse", lambda self, gradient: gradient):
        yield


@defect("accumulation_and_clipping")
def accumulated_gradients_averaged_too_late():
    plain = gradients.Gradients._backward_over

    def over(self):
        counts[0] += 1
        if counts[0] % 2:
            plain(self)
        else:
            self._came, self._under_way, self._begun = [], False, []

    counts = [0]
    with patched(gradients.Gradients, "_backward_over", over):
        yield


@defect("plain_with_a_ragged_last_batch", ALONE)
def one_rank_a_step_ahead():
    step, steps = torch.optim.SGD.step, []

    def twice(self, *args, **kwargs):
        steps.append(self)
        if len(steps) == 3 and current().rank == 1:
            step(self)
        return step(self, *args, **kwargs)

    with patched(torch.optim.SGD, "step", twice):
        yield


@defect("dropout", ALONE)
def one_rank_with_another_seed():
    if current().rank:
        torch.manual_seed(8)
    yield


@defect("plain_with_a_ragged_last_batch", ALONE)
def one_bit_of_one_parameter():
    step = torch.optim.SGD.step

    def flips(self, *args, **kwargs):
        step(self, *args, **kwargs)
        if current().rank:
            first = self.param_groups[0]["params"][0].data.view(-1).view(torch.int64)
            first[0] ^= 1

    with patched(torch.optim.SGD, "step", flips):
        yield


@defect("layers_skipped_at_random", ALONE)
def one_rank_that_skips_other_layers():
    if current().rank:
        random.random()
    yield


def main(names):
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    for name in names or DEFECTS:
        program, alter = {**DEFECTS, **ALONE}[name]
        torch.manual_seed(7)
        random.seed(7)
        try:
            with alter():
                print(f"{name}: {PROGRAMS[program]()}", flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__} {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
