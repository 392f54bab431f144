"""The numbers that a program prints, by the text around them."""

from __future__ import annotations

import re
from collections.abc import Iterator

NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"
_FOUND = re.compile(rf"(?i)(?<![\w.]){NUMBER}(?![\d.]*\d)(?!(?<=nan|inf)\w)")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d+:\d\d(?::\d\d)?(?:[.,]\d+)?")
# What a machine does, not a program: never the same twice. Where one escapes, the proof asks the program twice.
_UNITS = re.compile(r"(?i)\s*(?:[munµ]?s|secs?|seconds?|min|minutes?|h|hours?|[kmgt]i?b|it/s|\S*/\s?s(?:ec)?|fps)\b")
_LABELS = re.compile(
    r"(?i)\b(?:time|elapsed|took|takes|eta|duration|seconds|speed|throughput|rate/s|mem\w*|vram|rss|pid|date)\W*$"
)
_MOST_TEMPLATES, _MOST_PER_LINE = 64, 8
_MOST_TEXT = 100  # characters of a template


def series(output: str) -> dict[str, list[float]]:
    """Every number of an output, in the order in which it was printed, by its line with numbers as `#` and its place.

    `{"epoch #: accuracy #, 2": [46.9, 51.2]}`. Times, dates, speeds and memory are left out, as far as words tell.
    """
    found: dict[str, list[float]] = {}
    templates: set[str] = set()
    for shown in output.split("\n"):
        # Of a progress bar, what is left at its end; clocks and dates are no results.
        line = _CLOCK.sub("~", next((each for each in reversed(shown.split("\r")) if each.strip()), "").strip())
        template = _FOUND.sub("#", line)[:_MOST_TEXT]
        if "#" not in template or (template not in templates and len(templates) >= _MOST_TEMPLATES):
            continue
        templates.add(template)
        for place, value in _of_program(line):
            found.setdefault(f"{template}, {place}", []).append(value)
    return found


def _of_program(line: str) -> Iterator[tuple[int, float]]:
    for place, match in enumerate(_FOUND.finditer(line), start=1):
        if place > _MOST_PER_LINE:
            return
        if not _UNITS.match(line, match.end()) and not _LABELS.search(line, 0, match.start()):
            yield place, float(match[1])
