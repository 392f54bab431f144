"""What only speaks: loggers, and streams that are written to and never read.

What was written is no part of a sample, and a fetch that speaks is heard (see `spoken`). What may come to be otherwise
is whether it speaks at all: a fetch is silent until its logger's level is lowered.
"""

from __future__ import annotations

import io
import logging
import sys

from overdrive.changes.code import is_library_module
from overdrive.changes.walk.walk import Walk

_OF_LOGGERS = ("level", "disabled", "propagate", "parent", "handlers", "filters")
_TO_STREAMS = (logging.StreamHandler, logging.FileHandler, logging.NullHandler)


def is_logger(thing: object) -> bool:
    return isinstance(thing, logging.Logger) and is_library_module(type(thing).__module__)


def visit_logger(walk: Walk, logger: logging.Logger) -> None:
    """Its level may be that of one above it, and so may be who writes what it says."""
    walk.emit("logger", logger.name)
    each: logging.Logger | None = logger
    hands_on = True
    while each is not None:
        for name in _OF_LOGGERS:
            walk.watch.name(vars(each), name)
        handlers = each.handlers if hands_on else []
        walk.watch.items(handlers)
        walk.watch.items(each.filters)
        levels = [handler.level for handler in handlers]
        walk.emit("speaks", repr((each.level, each.disabled, each.propagate, levels, len(each.filters))))
        for handler in handlers:
            walk.watch.name(vars(handler), "level")
            _visit_handler(walk, handler)
        hands_on = hands_on and each.propagate
        each = each.parent
    walk.emit("disabled", repr(logger.manager.disable))
    walk.watch.name(vars(logger.manager), "_disable")


def _visit_handler(walk: Walk, handler: logging.Handler) -> None:
    if type(handler) not in _TO_STREAMS:
        walk.visit(handler)
    elif isinstance(handler, logging.FileHandler):  # which opens its file late, perhaps
        walk.written_file = True
    elif isinstance(handler, logging.StreamHandler):
        walk.visit(handler.stream)


def is_only_written(stream: io.IOBase) -> bool:
    try:
        return is_library_module(type(stream).__module__) and stream.writable() and not stream.readable()
    except ValueError:  # it is closed
        return False


def is_output(stream: object) -> bool:
    """Whether it is the process's own standard output or error."""
    return any(stream is each for each in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))
