"""What TensorFlow tells, in an error's own text, of the frames that led to it: ours are none of the program's.

While it traces a function, TensorFlow writes each frame into the text of an error that is raised there ("in user
code: ..."), and with each operation it keeps the frames that made it, for an error when it runs ("defined at ..."). A
traceback is cleaned where it is shown; such a text has to be before the program, which may catch the error, has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from overdrive.core.whose import OURS

_FRAME = r' *File "{}[^"\n]*", line \d+, in [^\s*]+'
_REST = r'\n(?:(?! *File ").*\n)?'  # its line of code, or an empty one
_OWN = re.compile(
    rf"^(?:{_FRAME.format('<frozen runpy>')}{_REST})*"
    rf"{_FRAME.format(re.escape(OURS))}(?P<mark>  \*\*)?{_REST}(?P<next>{_FRAME.format('')})?",
    re.MULTILINE,
)


@contextmanager
def without_own_frames() -> Iterator[None]:
    """Around what may trace a function of the program's, or run one."""
    try:
        yield
    except Exception as error:
        if error.args and isinstance(error.args[0], str) and OURS in error.args[0]:
            error.args = (cleaned(error.args[0]), *error.args[1:])
        if isinstance(told := getattr(error, "_message", None), str):  # TensorFlow's own errors
            error._message = cleaned(told)  # type: ignore[attr-defined]
        raise


def cleaned(text: str) -> str:
    """A text without the lines of our frames, and of those that led to the program's start. The mark at one of them
    ("from here on code is as it was written") stands at the frame after it."""
    count = 1 if OURS in text else 0
    while count:
        text, count = _OWN.subn(_following, text)
    return text


def _following(found: re.Match[str]) -> str:
    return found["next"] + (found["mark"] or "") if found["next"] else ""
