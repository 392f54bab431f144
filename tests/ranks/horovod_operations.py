"""Horovod's operations on two ranks, each held against what it is to give. Run on ranks; fails where one is wrong."""

from __future__ import annotations

import gc
import os
from importlib.util import find_spec

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError
from torch import nn

hvd.init()
rank, size = hvd.rank(), hvd.size()
assert size == hvd.local_size() == 2 and rank == hvd.local_rank() and (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
assert hvd.is_initialized() and hvd.is_homogeneous() and not torch.distributed.is_initialized()
base = torch.arange(6.0).view(2, 3)
own = base + 10 * rank

# Reductions, of all kinds and types.
assert torch.equal(hvd.allreduce(own), base + 5) and torch.equal(hvd.allreduce(own, average=False), 2 * base + 10)
assert torch.equal(hvd.allreduce(own, op=hvd.Max), base + 10) and torch.equal(hvd.allreduce(own, op=hvd.Min), base)
assert torch.equal(hvd.allreduce(own, op=hvd.Product), base * (base + 10))
assert torch.equal(hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), (2 * base + 10) * 2)
assert torch.equal(hvd.allreduce(torch.tensor([rank * 3])), torch.tensor([1]))  # of whole numbers, cut off
assert hvd.allreduce(own.half()).dtype is torch.float16 and hvd.allreduce(torch.tensor(float(rank))).item() == 0.5
made = own.clone()
assert hvd.allreduce_(made) is made and torch.equal(made, base + 5)
several = hvd.grouped_allreduce([own, own.long()], op=hvd.Sum)
assert torch.equal(several[0], 2 * base + 10) and several[1].dtype is torch.int64
large = torch.arange(700_000.0)  # more than a slot of shared memory holds, as is the name below
assert torch.equal(hvd.allreduce(large + rank, op=hvd.Sum), 2 * large + 1)
assert hvd.allreduce(torch.empty(0, 3)).shape == (0, 3)
assert torch.equal(hvd.allreduce(own.bfloat16(), name="n" * (1 << 20)), (base + 5).bfloat16())
for refused in (hvd.Adasum, "mean"):
    with pytest.raises((NotImplementedError, ValueError)):
        hvd.allreduce(own, op=refused)
with pytest.raises(NotImplementedError):
    hvd.allreduce(own > 3)

with torch.inference_mode():
    within = own + 0
    assert torch.equal(hvd.allreduce(own), base + 5) and torch.equal(hvd.broadcast_(within.t(), 0), base.t())
with pytest.raises(NotImplementedError, match="int16"):
    hvd.allreduce(own.short())

# Under names, in another order on each rank.
names = ["a", "b"] if rank == 0 else ["b", "a"]
handles = {name: hvd.allreduce_async(own * (2 if name == "a" else 3), name=name) for name in names}
made = {name: hvd.synchronize(handle) for name, handle in handles.items()}
assert all(hvd.poll(each) for each in handles.values())
assert torch.equal(made["a"], 2 * base + 10) and torch.equal(made["b"], 3 * base + 15)

# Rows of all, of one, dealt out.
rows = hvd.allgather(own[: 1 + rank])
assert torch.equal(rows, torch.cat((base[:1], base + 10)))
assert hvd.allgather(torch.tensor(rank)).tolist() == [0, 1] and len(hvd.allgather(own[:0])) == 0
assert [len(each) for each in hvd.grouped_allgather([own, own[:1]])] == [4, 2]
for gather in (hvd.allgather, lambda tensor: hvd.grouped_allgather([tensor])[0]):
    wanted = own.clone().requires_grad_()
    (gather(wanted) * torch.arange(4.0)[:, None]).sum().backward()
    assert wanted.grad is not None and torch.equal(wanted.grad, (torch.arange(2.0) + 2 * rank)[:, None].expand(2, 3))
with pytest.raises(NotImplementedError, match="gradient"):
    hvd.grouped_reducescatter([own, own.clone().requires_grad_()])
assert torch.equal(hvd.broadcast(own, 1), base + 10)
turned = own.clone().t()
assert torch.equal(hvd.broadcast_(turned, 0), base.t()) and torch.equal(turned, base.t())
assert torch.equal(hvd.alltoall(own), torch.stack((base[rank], base[rank] + 10)))
dealt, came = hvd.alltoall(own, torch.tensor([0, 2]) if rank == 0 else [1, 1])
assert came.tolist() == ([0, 1] if rank == 0 else [2, 1])
assert torch.equal(dealt, base[:1] + 10 if rank == 0 else torch.cat((base, base[1:] + 10)))
three = torch.arange(3.0)
assert hvd.reducescatter(three, op=hvd.Sum).tolist() == ([0.0, 2.0] if rank == 0 else [4.0])
halves = hvd.grouped_reducescatter([own, own[0]], op=hvd.Sum)
assert torch.equal(halves[0], (2 * base + 10)[rank : rank + 1]) and len(halves[1]) == (2 if rank == 0 else 1)
assert hvd.allgather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
assert hvd.broadcast_object(("of", rank), root_rank=1) == ("of", 1)
assert hvd.broadcast_object({"only": "there"} if rank == 0 else None, root_rank=0) == {"only": "there"}
parameters = [nn.Parameter(own.clone()), nn.Parameter(own + 1)]
hvd.broadcast_parameters(parameters, root_rank=1)
assert torch.equal(parameters[0], base + 10) and torch.equal(parameters[1], base + 11)
hvd.barrier()

# Gradients.
x = own.clone().requires_grad_()
(hvd.allreduce(x, op=hvd.Sum) * (1 + rank)).sum().backward()
assert torch.equal(x.grad, torch.full_like(base, 3))
x = own.clone().requires_grad_()
(hvd.allgather(x) * (1 + rank)).sum().backward()
assert torch.equal(x.grad, torch.full_like(base, 1.5))
x = own.clone().requires_grad_()
hvd.broadcast(x, 1).sum().backward()
assert torch.equal(x.grad, torch.full_like(base, float(rank)))

x = own.clone().requires_grad_()
(hvd.alltoall(x) * (1 + rank)).sum().backward()
assert torch.equal(x.grad, torch.tensor([[1.0], [2.0]]).expand(2, 3))

# A batch of all ranks, of other sizes on each.
torch.manual_seed(0)
whole = torch.randn(7, 4, 3, dtype=torch.float64)
norm, plain = hvd.SyncBatchNorm(4).double(), nn.BatchNorm1d(4).double()
ours, theirs = (whole.clone().requires_grad_() for _ in range(2))
part = norm(ours[:2] if rank == 0 else ours[2:])
expected = plain(theirs)
expected_part = expected[:2] if rank == 0 else expected[2:]
assert torch.allclose(part, expected_part)
assert torch.allclose(norm.running_mean, plain.running_mean) and torch.allclose(norm.running_var, plain.running_var)
weights = torch.randn_like(whole)
(part * (weights[:2] if rank == 0 else weights[2:])).sum().backward()
(expected * weights).sum().backward()
assert torch.allclose(hvd.allreduce(ours.grad, op=hvd.Sum), theirs.grad)
assert torch.allclose(hvd.allreduce(norm.weight.grad, op=hvd.Sum), plain.weight.grad)
assert torch.allclose(norm.eval()(whole), plain.eval()(whole))

# Sparse gradients.
table = nn.Embedding(5, 2, sparse=True)
hvd.broadcast_parameters(table.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
before = table.weight.detach().clone()
table(torch.tensor([1, 1 + rank])).sum().backward()
optimizer.step()
assert torch.allclose(before - table.weight.detach(), torch.tensor([[0.0], [1.5], [0.5], [0.0], [0.0]]).expand(5, 2))

table = nn.Embedding(5, 2, sparse=True)
hvd.broadcast_parameters(table.state_dict(), root_rank=0)
optimizer = torch.optim.SparseAdam(table.parameters(), lr=1.0)
optimizer = hvd.DistributedOptimizer(optimizer, sparse_as_dense=True)
table(torch.tensor([1, 1 + rank])).sum().backward()
optimizer.step()
assert torch.equal(table.weight.grad.to_dense()[:, 0], torch.tensor([0.0, 1.5, 0.5, 0.0, 0.0]))

# Functions, which pickle alone refuses.
if find_spec("cloudpickle"):
    assert hvd.broadcast_object(lambda: 3 + rank if rank else 3, root_rank=0)() == 3
    assert [each() for each in hvd.allgather_object((lambda own: lambda: own)(rank))] == [0, 1]

# What goes wrong is said on all ranks.
with pytest.raises(HorovodInternalError, match="another shape"):
    hvd.allreduce(torch.zeros(2 + rank), name="shapes")
with pytest.raises(HorovodInternalError, match="other settings"):
    hvd.broadcast(own, rank, name="roots")
if rank == 0:
    first = hvd.allreduce_async(own, name="twice")
    with pytest.raises(ValueError, match="under way"):
        hvd.allreduce_async(own, name="twice")
else:
    first = hvd.allreduce_async(own, name="twice")
hvd.synchronize(first)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0))
parameter = optimizer.param_groups[0]["params"][0]
parameter.sum().backward()
with pytest.raises(AssertionError, match="race condition"):
    optimizer.zero_grad()
with pytest.raises(AssertionError, match="backward_passes_per_step"):
    parameter.sum().backward()
optimizer.step()
assert parameter.tolist() == [0.0, 0.0] or parameter.tolist() == [-1.0, -1.0]
late = nn.Parameter(torch.zeros(2))
optimizer.add_param_group({"params": [late]})
(late * rank).sum().backward()
optimizer.step()
assert late.tolist() == [-0.5, -0.5]

# Who has nothing more to do joins: its part is zeros.
if rank == 0:
    assert hvd.join() == 1
else:
    assert torch.equal(hvd.allreduce(own), (base + 10) / 2) and torch.equal(hvd.allreduce(own, op=hvd.Sum), base + 10)
    with pytest.raises(HorovodInternalError, match="joined"):
        hvd.allgather(own)
    assert hvd.join() == 1
assert torch.equal(hvd.allreduce(own), base + 5)

# Elastic: all have rank 0's state, and go back to what was committed.
model = nn.Linear(2, 1)
state = hvd.elastic.TorchState(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1 + rank), epoch=rank)
sampler = hvd.elastic.ElasticSampler(range(5), shuffle=False)
assert sampler.indices == ([0, 2, 4] if rank == 0 else [1, 3, 0])


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> int:
    assert state.epoch == 0 and state.optimizer.param_groups[0]["lr"] == 1
    state.epoch = 5
    state.commit()
    state.epoch = 6
    state.restore()
    return state.epoch


assert train(state) == 5
assert len({tuple(each) for each in hvd.allgather_object(model.weight.flatten().tolist())}) == 1
hvd.shutdown()
assert not hvd.is_initialized()


def shared_memory_held() -> int:
    """How many files of this process's are memory that ranks share. Of those that were made before nobody is left."""
    gc.collect()
    places = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    return sum("overdrive-ranks-" in os.readlink(each) for each in places if os.path.lexists(each))


before = shared_memory_held()
for _ in range(3):
    hvd.init()
    assert torch.equal(hvd.allreduce(own), base + 5)
    hvd.shutdown()
assert shared_memory_held() == before
hvd.init()
if rank == 0:
    print("all as it should be")
hvd.shutdown()
