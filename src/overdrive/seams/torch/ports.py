"""Seam *port chosen*: the port of a store that one process keeps for itself alone, before it is opened."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.port_chosen.wanted or not torch.distributed.is_available():
        return []
    module: Any = importlib.import_module("torch.distributed.rendezvous")
    plain = module.TCPStore

    @functools.wraps(plain)
    def store(host_name: str, port: int, world_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        chosen = hub.port_chosen.apply(port) if world_size == 1 else port
        return plain(host_name, chosen, world_size, *args, **kwargs)

    patches.replace(module, "TCPStore", store)
    return []
