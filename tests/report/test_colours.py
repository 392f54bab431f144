"""The pages' colours: text stands out from its ground, and the parts of a chart from each other by lightness."""

from __future__ import annotations

import itertools
import re

import pytest

from overdrive.insight.profile import page as profile
from overdrive.insight.profile.record import Profile
from overdrive.insight.profile.wording import PART_NAMES
from tests.report.sample import page, result

PAGES = {"report": page(result()), "profile": profile.page(Profile())}
ITEM = ("read", "decode", "transform", "collate", "copy")
MEMORY = ("parameters", "gradients", "optimizer-state", "activations", "batches", "temporary")
CHARTS = [  # what one chart may show together
    ("report", ("data", "forward", "backward", "optimizer", "other", "unaccounted")),
    ("report", ITEM),
    ("profile", tuple(PART_NAMES.keys() - {"graph", "between", "watching"})),
    ("profile", ("data", "copy", "optimizer", "graph", "python", "synchronisation", "evaluation")),
    ("profile", (*ITEM, "loader")),
    ("profile", tuple(f"memory-{name}" for name in MEMORY)),
]
DARK = [False, True]


def colours(text: str, dark: bool) -> dict[str, str]:
    """The page's colours by name, as #rrggbb; a name that stands for another one is resolved."""
    found: dict[str, str] = {}
    for place, block in enumerate(re.findall(r":root \{(.*?)\}", text, re.DOTALL)):
        if dark or place % 2 == 0:  # each light block has a dark one after it
            found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6}|var\(--[\w-]+\))", block))
    return {name: found[value[6:-1]] if value.startswith("var") else value for name, value in found.items()}


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, 0 to 1 (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lightness(colour: str) -> float:
    """L* of CIELAB, 0 to 100."""
    return 116 * float(luminance(colour) ** (1 / 3)) - 16


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", DARK)
def test_text_stands_out_from_its_ground(dark: bool) -> None:
    known = colours(PAGES["report"], dark)
    pairs = [(text, ground) for text in ("ink", "soft", "good", "bad", "still") for ground in ("paper", "wash")]
    for text, ground in [*pairs, ("soft", "noise"), ("ink", "noise")]:
        assert contrast(known[text], known[ground]) >= 4.5, (text, ground)  # WCAG 2.2, AA


@pytest.mark.parametrize("dark", DARK)
def test_the_name_on_a_part_stands_out_from_it(dark: bool) -> None:
    text = PAGES["profile"]
    known = colours(text, dark)
    own = {}  # whose text is not that of the most
    for names, variable in re.findall(r"svg \.on-part(?::is\()?([^{)]+)\)? \{ fill: var\(--([\w-]+)\)", text):
        own |= dict.fromkeys(re.findall(r"\.on-(\w+)", names), variable)
    for part in [*PART_NAMES, *ITEM, "other", "unaccounted", "loader"]:
        assert contrast(known[own.get(part, "on-part")], known[part]) >= 4.5, part


@pytest.mark.parametrize("dark", DARK)
@pytest.mark.parametrize(("where", "parts"), CHARTS)
def test_parts_of_one_chart_differ_in_lightness(where: str, parts: tuple[str, ...], dark: bool) -> None:
    """For every kind of colour vision, and on paper without colour."""
    known = colours(PAGES[where], dark)
    for one, other in itertools.combinations(parts, 2):
        assert abs(lightness(known[one]) - lightness(known[other])) >= 4, (one, other)


def test_neighbours_in_a_bar_differ_clearly() -> None:
    known = colours(PAGES["profile"], dark=False)
    for one, other in itertools.pairwise(("data", "forward", "backward", "optimizer")):
        assert abs(lightness(known[one]) - lightness(known[other])) >= 10, (one, other)


def test_every_part_has_a_colour() -> None:
    for part in PART_NAMES:
        assert f"svg .{part} {{ fill" in PAGES["profile"] or f"svg .{part}, " in PAGES["profile"], part
