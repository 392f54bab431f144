"""What cannot be recorded, and how it is found out before anything is recorded."""

from __future__ import annotations

import torch
from torch import nn

from overdrive.seams.torch.graphs import nodes_behind
from overdrive.seams.torch.tracing import compiled

_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")


class Refused(Exception):
    """This is not recorded; the message is the reason, for people."""


def refuse_model(module: nn.Module) -> None:
    """
    Raises:
        Refused: what this model is made of cannot be replayed.
    """
    for part in module.modules():
        if type(part).__name__ in _PARALLEL:
            raise Refused(f"{type(part).__name__} talks to other processes in its calls")
        if isinstance(part, torch.jit.ScriptModule):
            raise Refused("the model is a TorchScript module")
        if compiled(part):
            raise Refused("the model is compiled")
    for each in (*module.parameters(), *module.buffers()):
        if type(each) not in (torch.Tensor, nn.Parameter, nn.Buffer):
            raise Refused(f"the model's tensors are of the class {type(each).__name__}")


def leaves_behind(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that a backward pass from `outputs` would give gradients to."""
    leaves = [output for output in outputs if output.grad_fn is None and output.requires_grad]
    nodes = nodes_behind(output.grad_fn for output in outputs if output.grad_fn is not None)
    return [*leaves, *(node.variable for node in nodes if hasattr(node, "variable"))]
