"""Seeded defects of what is kept in parts: `overdrive run --ranks 2 --layout shard=2 sharded_defects.py [NAME...]`.

Each alters Overdrive in its own process and runs a program of `parameter_uses` or `small_programs`; printed are the
defect's name and the program's numbers, or its error. The comparison of ranks is off, to show that the defect acts.
"""

import contextlib
import sys
import warnings
from unittest import mock

import parameter_uses
import small_programs
import torch

from overdrive.model_state.sharded import kept, parts, saved, share, states
from overdrive.ranks.lockstep import Lockstep
from overdrive.techniques.parallel.data_parallel import gradients

DEFECTS = {}  # by name: the program that shows it, and what alters Overdrive
PROGRAMS = {**small_programs.PROGRAMS, **{name: lambda f=f: f(None) for name, f in parameter_uses.USES.items()}}


def defect(program):
    def taken(function):
        DEFECTS[function.__name__] = program, contextlib.contextmanager(function)
        return function

    return taken


def patched(holder, name, value):
    return mock.patch.object(holder, name, value)


@defect("plain_with_a_ragged_last_batch")
def a_stale_share():
    """Other ranks get what it was at first."""
    plain, first = share.exchange, {}

    def exchange(held, group, what):
        stale = [each.clone() for each, _ in held]
        for place, (each, own) in enumerate(held):
            before = first.setdefault((place, tuple(each.shape for each, _ in held)), own.of(each).clone())
            own.of(stale[place]).copy_(before)
        plain([(each, own) for each, (_, own) in zip(stale, held, strict=True)], group, what)
        for each, (whole, own) in zip(stale, held, strict=True):
            own.of(each).copy_(own.of(whole))
            whole.copy_(each)

    with patched(kept, "exchange", exchange):
        yield


@defect("plain_with_a_ragged_last_batch")
def a_share_off_by_one():
    def of(self, whole, rank=None):
        rank = self.rank if rank is None else rank
        return share.flat(whole).narrow(0, max(0, sum(self.sizes[:rank]) - 1), self.sizes[rank])

    with patched(share.Share, "of", of):
        yield


@defect("plain_with_a_ragged_last_batch")
def a_rank_that_steps_anothers_share():
    with patched(kept, "Share", lambda whole, rank, ranks, owner: share.Share(whole, ranks - 1 - rank, ranks)):
        yield


@defect("clipped")
def a_norm_of_the_part():
    def norm(call, gradients, own, kind, foreach, group):
        return call(gradients, kind, False, foreach)

    with patched(parts, "norm_of_parts", norm):
        yield


@defect("optimizer_loaded")
def the_state_of_another_share_after_it_is_loaded():
    plain = states.ShardedStates._narrowed

    def narrowed(self, parameter, state, in_parts):
        own = self._share(parameter)
        for name, value in state.items():
            if own is not None and value.shape == own.shape:
                state[name] = value.flatten().flip(0).view(value.shape)
        return plain(self, parameter, state, in_parts)

    with patched(states.ShardedStates, "_narrowed", narrowed):
        yield


@defect("state_looked_at_and_changed")
def a_state_of_its_own_share_twice():
    def whole(self, part, group, what):
        made = self.blank(part)
        share.flat(made).copy_(torch.cat([part, part, part])[: made.numel()])
        return made

    with patched(share.Share, "whole", whole):
        yield


@defect("alias_of_data_kept")
def gathered_before_the_step():
    """And not after it, of what is whole."""
    with patched(states, "exchange", lambda *_: None):
        yield


@defect("alias_of_data_kept")
def memory_given_back_that_somebody_holds():
    with patched(kept, "storage_owners", lambda _: kept._OWNERS):
        yield


@defect("plain_with_a_ragged_last_batch")
def an_uneven_division_padded_wrongly():
    plain = share.exchange

    def exchange(held, group, what):
        plain(held, group, what)
        for whole, own in held:
            if len(set(own.sizes)) > 1:
                own.of(whole)[-1] = 0

    with patched(kept, "exchange", exchange):
        yield


@defect("data_written_by_hand")
def what_the_program_wrote_is_lost():
    plain, before = kept.Kept._give_back, {}

    def give_back(self, held):
        plain(self, held)
        if held.part is not None:
            held.part.copy_(before.setdefault(id(held), held.part.clone()))

    with patched(kept.Kept, "_give_back", give_back):
        yield


@defect("accumulation_and_clipping")
def gradients_that_are_not_accumulated():
    plain = parts.GradientParts.add

    def add(self, held, mean):
        held.gradient = None
        plain(self, held, mean)

    with patched(parts.GradientParts, "add", add):
        yield


@defect("plain_with_a_ragged_last_batch")
def the_gradient_of_another_share():
    def add(self, held, mean):
        held.gradient = mean[: held.share.size].clone()
        self._settle(held)

    with patched(parts.GradientParts, "add", add):
        yield


@defect("plain_with_a_ragged_last_batch")
def gradients_that_are_not_zeroed():
    with patched(parts, "parameters_of", lambda _: []):
        yield


@defect("norm_by_hand")
def a_gradient_in_its_place_that_is_the_part():
    with patched(share.Share, "whole", lambda self, part, group, what: self.blank(part).fill_(part.mean())):
        yield


@defect("graph_used_twice")
def a_graph_that_does_not_gather():
    def unpack(self, packed):
        if isinstance(packed[0], torch.Tensor):
            return packed[0]
        held, _, size, stride, offset = packed
        with saved.as_plain_tensors():
            found = held.parameter.data
            return found.as_strided(size, stride, offset) if held.part is None else found.expand(size)

    with patched(saved.Saved, "_unpack", unpack):
        yield


@defect("plain_with_a_ragged_last_batch")
def a_sum_that_is_no_mean():
    plain = gradients.Gradients._put_back

    def put_back(self, bucket):
        size, self._group.size = self._group.size, 1
        plain(self, bucket)
        self._group.size = size

    with patched(gradients.Gradients, "_put_back", put_back):
        yield


def main(names):
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    with patched(Lockstep, "compare", lambda self, when, lap=False: None):
        for name in names or DEFECTS:
            program, alter = DEFECTS[name]
            torch.manual_seed(7)
            with alter():
                try:
                    told = PROGRAMS[program]()
                except Exception as error:
                    told = f"{type(error).__name__} {error}".split("\n", 1)[0]
            print(f"{name}: {told}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
