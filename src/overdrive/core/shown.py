"""The lines of an output as far as a program's results are in them, in the same words in every run.

What depends on the moment goes: colours, progress bars that were not at their end, how long a bar is, how wide a number
is padded, and what PyTorch writes behind a number (`grad_fn=<...>`). So does what libraries say: warnings and logs,
which one run has and another has not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x07\x08]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BEHIND_A_TENSOR = re.compile(r",\s*(?:grad_fn=<[^<>]*(?:<[^<>]*>)?[^<>]*>|dtype=[\w.]+|device='[^']*')")
# ` 9%|▉    | 290/3000 [00:03<00:27, 98.9it/s, loss=2.3]`, and of Keras `12/100 ━━━──── 3s 12ms/step - loss: 2.3`.
_BAR = re.compile(r"(?:[^|]{0,40}:\s)?\s*\d+%\|[^|]*\|\s*(\S+?)/(\S+)\s*\[[^\]]*\]?")
_KERAS_BAR = re.compile(r"\s*(\d+)/(\d+|Unknown)\s*(?:[━─╸╺]{2,}|\[[=>.]{4,}\])")
_GLYPHS = re.compile(r"[━─╸╺█▏▎▍▌▋▊▉]+\s*|\[[=>.]{4,}\]")
_OF_LIBRARIES = re.compile(
    r"\S+:\d+: \w*Warning: |\[?[IWEF]\d{4} \d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] |overdrive: "
)
_PADDED = re.compile(r"([(\[|=])\s+(?=[-+.\d])")


def without_colours(output: str) -> str:
    return _COLOUR.sub("", output) if "\x1b" in output else output


def lines(output: str) -> Iterator[str]:
    """One after the other; none is empty."""
    warned = False
    shown = _CONTROL.sub("", output).split("\n")
    for number, each in enumerate(shown):
        # Of a line that was written over and over, what is left at its end; cut off in the middle, it tells when.
        parts = [part for part in each.split("\r") if part.strip()]
        if not parts or (number == len(shown) - 1 and "\r" in each):
            continue
        said = parts[-1].rstrip()
        if _OF_LIBRARIES.match(said):
            warned = True
            continue
        if warned and said.startswith("  "):  # the line of code that a warning is about
            warned = False
            continue
        warned = False
        if line := _without_bars(said).strip():
            yield _PADDED.sub(r"\1", " ".join(_BEHIND_A_TENSOR.sub("", line).split()))


def _without_bars(line: str) -> str:
    """Without a bar that is not at its end; of one that is, without what it is drawn with."""
    keras = _KERAS_BAR.match(line)
    if keras and keras[1] != keras[2]:
        return ""
    line = _BAR.sub(lambda bar: bar[0] if bar[1] == bar[2] else "", line)
    return _GLYPHS.sub("", line)
