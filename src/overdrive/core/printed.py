"""The numbers that a program prints, by the text around them."""

from __future__ import annotations

import re
from itertools import islice

from overdrive.core import shown

# With thousands separators: `1,234.5`. `0,931` is none, nor is part of a list (`1,100,0.5`).
_THOUSANDS = r"(?<!\d,)[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)(?:\.\d*)?"
NUMBER = rf"([-+]?(?:(?:{_THOUSANDS}|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf))"
_FOUND = re.compile(rf"(?i)(?<![\w.]){NUMBER}(?![\d.]*\d)(?!(?<=nan|inf)\w)")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d+:\d\d(?::\d\d)?(?:[.,]\d+)?")
# What a machine does, not a program: never the same twice. Where one escapes, the proof asks the program twice.
_A_SECOND = r"s(?:ecs?|econds?)?"
_UNITS = re.compile(
    r"(?i)\s*(?:m(?=\s+\d[\d.]*\s?s\b)|[munµ]?s|secs?|seconds?|min|minutes?|h|hours?|bytes?|[kmgt]i?b|it/s|fps|%?\s?(?:\w+\s)?mfu"
    rf"|\S*/\s?{_A_SECOND}|(?:\S+\s)?per\s{_A_SECOND})\b"
)
_LABELS = re.compile(
    rf"""(?ix)
    (?:
        (?<![^\W_])  # a word, or a part of one: train_runtime, step_time
        (?:
            (?:run|wall|date)?time | elapsed | took | takes | eta | duration | secs | seconds | ms | latency | wall
            | speed | throughput | (?-i:[fqstuw]ps|[FQSTUW]PS) | mfu | mem\w* | allocated | reserved | vram | rss
            | pid | date | dt
            | (?:time|secs?|seconds|[mnuµ]?s) (?:[ ]?/[ ]?|[ _]per[ _]) \w+  # ms/batch, time per step
            | per[ _]{_A_SECOND}
        )
        | \w/[ ]?{_A_SECOND}  # tokens/sec
        | [)\]\d][\s|,;]*data  # behind another number: the time that the data took
    )
    (?:[ _]?[(\[][^()\[\]\d]{{0,20}}[)\]])?  # the unit: time (s)
    \W*$"""
)
_BESIDE = re.compile(r"(?i)\s*[(\[]\W*(?:avg|average|mean)?\W*")  # between a number and its mean in brackets
_REST_OF_UNIT = re.compile(r"[^\s,;|)\]]*")  # s/it
_TIMES = re.compile(r"~(?:\s+~)+")
_MOST_TEMPLATES, _MOST_PER_LINE = 64, 8
_MOST_LOOKED_AT = 24  # numbers of a line, those of the machine's included
_MOST_TEXT = 100  # characters of a template


def number(text: str) -> float:
    """The value of what `NUMBER` finds.

    Raises:
        ValueError: it is no number.
    """
    return float(text.replace(",", "") if re.fullmatch(NUMBER, text, re.IGNORECASE) else text)


def series(output: str) -> dict[str, list[float]]:
    """Every number of an output, in the order in which it was printed, by its line with numbers as `#` and its place.

    `{"epoch #: accuracy #, 2": [46.9, 51.2]}`. Times, dates, speeds and memory are left out, as far as words tell; in
    the line they are `~`, with their units: `58s` and `1m 3s`, `980 MB` and `1.2 GB` make no other line.
    """
    found: dict[str, list[float]] = {}
    templates: set[str] = set()
    for line in shown.lines(output):
        template, values = _told(_CLOCK.sub("~", line))
        if not values or (template not in templates and len(templates) >= _MOST_TEMPLATES):
            continue
        templates.add(template)
        for place, value in enumerate(values[:_MOST_PER_LINE], start=1):
            found.setdefault(f"{template}, {place}", []).append(value)
    return found


def _told(line: str) -> tuple[str, list[float]]:
    """The line in the words that it has in every run, and the numbers in it that are the program's."""
    text, values = [], []
    end, after, machine = 0, 0, False  # of the number before, and of that with its unit
    for match in islice(_FOUND.finditer(line), _MOST_LOOKED_AT):
        too = machine and _BESIDE.fullmatch(line, end, match.start()) is not None
        unit = _UNITS.match(line, match.end())
        machine = too or unit is not None or _LABELS.search(line, 0, match.start()) is not None
        text += [line[after : match.start()], "~" if machine else "#"]
        end = after = match.end()
        if unit:
            after = _REST_OF_UNIT.match(line, unit.end()).end()  # type: ignore[union-attr]  # it may be empty
        if not machine:
            values.append(number(match[1]))
    text.append(_FOUND.sub("#", line[after:]))
    return _TIMES.sub("~", "".join(text))[:_MOST_TEXT], values
