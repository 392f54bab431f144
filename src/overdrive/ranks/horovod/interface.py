"""All that a program finds in `horovod.torch`."""

from __future__ import annotations

from typing import Any

from overdrive.ranks.horovod import compression, elastic, errors, norm, objects, operations, optimizer, world
from overdrive.ranks.horovod.compression import *  # noqa: F403
from overdrive.ranks.horovod.errors import *  # noqa: F403
from overdrive.ranks.horovod.norm import *  # noqa: F403
from overdrive.ranks.horovod.objects import *  # noqa: F403
from overdrive.ranks.horovod.operations import *  # noqa: F403
from overdrive.ranks.horovod.optimizer import *  # noqa: F403
from overdrive.ranks.horovod.world import *  # noqa: F403

_PARTS: tuple[Any, ...] = (compression, errors, norm, objects, operations, optimizer, world)
__all__ = ["elastic", *(name for part in _PARTS for name in part.__all__)]
