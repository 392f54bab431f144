"""The catalogue of links, from `links.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import tomlkit

from overdrive.core.link import Link


@cache
def links() -> dict[str, Link]:
    """By the name that `--link` takes, in the order of the file."""
    text = (Path(__file__).parent / "links.toml").read_text()
    return {
        each["name"]: Link(each["rate"] * 1e9 / 8, each["latency"] * 1e-6, f"{each['title']} (from data sheets)")
        for each in tomlkit.parse(text).unwrap()["link"]
    }
