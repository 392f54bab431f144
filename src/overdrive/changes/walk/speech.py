"""What only speaks: loggers, and streams that are written to and never read.

What was written is no part of a sample, and a fetch that speaks is heard (see `spoken`). What may come to be otherwise
is whether it speaks at all: a fetch is silent until its logger's level is lowered.
"""

from __future__ import annotations

import io
import logging

from overdrive.changes.code import is_library_module
from overdrive.changes.walk.walk import Walk

_OF_LOGGERS = ("level", "disabled", "propagate", "parent", "handlers", "filters")


def is_logger(thing: object) -> bool:
    return isinstance(thing, logging.Logger) and is_library_module(type(thing).__module__)


def visit_logger(walk: Walk, logger: logging.Logger) -> None:
    walk.emit("logger", logger.name)
    each: logging.Logger | None = logger
    while each is not None:
        levels = [handler.level for handler in each.handlers]
        walk.emit("speaks", repr((each.level, each.disabled, each.propagate, levels, len(each.filters))))
        for name in _OF_LOGGERS:
            walk.watch.name(vars(each), name)
        walk.watch.items(each.handlers)
        walk.watch.items(each.filters)
        for handler in each.handlers:
            walk.watch.name(vars(handler), "level")
        each = each.parent
    walk.emit("disabled", repr(logger.manager.disable))
    walk.watch.name(vars(logger.manager), "_disable")


def is_only_written(stream: io.IOBase) -> bool:
    try:
        return is_library_module(type(stream).__module__) and stream.writable() and not stream.readable()
    except ValueError:  # it is closed
        return False
