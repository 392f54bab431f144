"""What a recorded call may touch besides the tensors on the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from overdrive.core.rng import States
from overdrive.model_state.state import State


class Outside:
    """All that a call may change besides the tensors on the GPU, which a replay would not change."""

    def __init__(self, model: nn.Module) -> None:
        self.state = State([model])
        self._chance = States.now(with_cuda=False)

    def changes(self) -> str:
        """What has changed since this was made, as the reason for a refusal; empty where nothing has."""
        if change := self.state.change():
            return f"a call changes {change}, which a replay would not"
        if not self._chance.same(States.now(with_cuda=False)):
            return "the model draws random numbers on the CPU, which a replay would not"
        return ""

    def restore(self) -> None:
        self._chance.restore()
        self.state.put_back()


@contextmanager
def no_cached_casts(inputs: Sequence[torch.Tensor]) -> Iterator[None]:
    """Autocast keeps what it has cast; a graph would go on with the weights of the first step."""
    kind = inputs[0].device.type if inputs else "cuda"
    if not torch.is_autocast_enabled(kind):
        yield
        return
    with torch.autocast(kind, dtype=torch.get_autocast_dtype(kind), cache_enabled=False):
        yield
