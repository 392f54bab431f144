"""All that a program finds in `horovod.torch`."""

from __future__ import annotations

from typing import Any

from overdrive.ranks.horovod import elastic, mpi_ops, norm, objects, optimizer
from overdrive.ranks.horovod.mpi_ops import *  # noqa: F403
from overdrive.ranks.horovod.norm import *  # noqa: F403
from overdrive.ranks.horovod.objects import *  # noqa: F403
from overdrive.ranks.horovod.optimizer import *  # noqa: F403

_PARTS: tuple[Any, ...] = (mpi_ops, norm, objects, optimizer)
__all__ = ["elastic", *(name for part in _PARTS for name in part.__all__)]
