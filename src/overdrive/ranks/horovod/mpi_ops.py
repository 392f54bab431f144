"""All that a program finds in `horovod.torch.mpi_ops`: who it is beside the operations."""

from __future__ import annotations

from typing import Any

from overdrive.ranks.horovod import compression, errors, operations, world
from overdrive.ranks.horovod.compression import *  # noqa: F403
from overdrive.ranks.horovod.errors import *  # noqa: F403
from overdrive.ranks.horovod.operations import *  # noqa: F403
from overdrive.ranks.horovod.world import *  # noqa: F403

_PARTS: tuple[Any, ...] = (compression, errors, operations, world)
__all__ = [name for part in _PARTS for name in part.__all__]
