"""Recognises programs that bring their own parallelism by what they call."""

from __future__ import annotations

import functools
import sys
from typing import Any

from overdrive.ranks.membership import Membership
from overdrive.seams.arrival import Arrival

_MAKES_GROUPS = "init_process_group"


def watch_for_own_groups(membership: Membership) -> None:
    """A program that makes process groups of its own brings its own parallelism."""
    import torch

    if not torch.distributed.is_available():
        return
    plain: Any = torch.distributed.init_process_group
    modules = [each for name, each in [*sys.modules.items()] if name.startswith("torch.distributed")]
    for module in modules:  # of which some have it by `from`, for what they make of it (`init_device_mesh`)
        if vars(module).get(_MAKES_GROUPS) is plain:
            _reveal_at(membership, module, _MAKES_GROUPS)
    # It asks the environment who it is before it calls that.
    name = "deepspeed.comm.comm"
    Arrival(name, lambda: _reveal_at(membership, sys.modules[name], "init_distributed")).watch()


def _reveal_at(membership: Membership, module: Any, name: str) -> None:
    plain = getattr(module, name)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        membership.reveal(f"it calls {name}")
        return plain(*args, **kwargs)

    setattr(module, name, call)
