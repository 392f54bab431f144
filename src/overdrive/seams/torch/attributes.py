"""Seam *attribute set*: a name of a module is given another value, as a model does that keeps a mask in its call.

Names in `vars(module)` that a program writes to by hand do not pass here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.attribute_set.wanted:
        plain = torch.nn.Module.__setattr__

        @functools.wraps(plain)
        def __setattr__(self: torch.nn.Module, name: str, value: Any) -> None:
            plain(self, name, value)
            # Where this is compiled itself, with a model's call, Python of ours would break the graph.
            if not is_compiling() and hub.attribute_set.subscribers:
                hub.attribute_set.publish(self, name)

        patches.replace(torch.nn.Module, "__setattr__", __setattr__)
    return []
