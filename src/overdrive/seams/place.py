"""Calls that PyTorch's warnings take for the program's own: those that its C code raises name the calling frame.

Such a frame of ours has the globals, the file and the line of the program's. So a warning names the program's place,
and comes once for each place: the record of that is in those globals.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from types import CodeType, FrameType, FunctionType
from typing import Any

OWN = "<overdrive>"  # the name of such a frame, which stands in no traceback
_CALL = (lambda function, *args, **kwargs: function(*args, **kwargs)).__code__


def called_from(frame: FrameType, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, as if it were called in that frame."""
    return partial(FunctionType(_code(frame.f_code.co_filename, frame.f_lineno), frame.f_globals), function)


@lru_cache(maxsize=1024)
def _code(file: str, line: int) -> CodeType:
    return _CALL.replace(co_filename=file, co_firstlineno=line, co_name=OWN)
