"""The tree of a flame graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flame_tree(paths: Mapping[tuple[str, ...], float], steps: int) -> dict[str, Any]:
    """Nested `{"name", "seconds", "children"}` a step, children from long to short."""
    root: dict[str, Any] = {"name": "step", "seconds": 0.0, "children": {}}
    for path, seconds in paths.items():
        node = root
        node["seconds"] += seconds / steps
        for name in path:
            node = node["children"].setdefault(name, {"name": name, "seconds": 0.0, "children": {}})
            node["seconds"] += seconds / steps
    return _listed(root)


def _listed(node: dict[str, Any]) -> dict[str, Any]:
    children = sorted(map(_listed, node["children"].values()), key=lambda each: -each["seconds"])
    return {"name": node["name"], "seconds": node["seconds"], "children": children}
