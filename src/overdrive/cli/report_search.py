"""`overdrive report` of a search: what it came to, or has come to so far, from what was written of it as JSON."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from overdrive.core.search_result import VERSION, SearchResult
from overdrive.report import search as terminal
from overdrive.report.reading import unescaped, word
from overdrive.report.search_page import page

_FIELDS = {"trials", "defaults", "parameters", "metric"}


def is_search(data: object) -> bool:
    return isinstance(data, dict) and data.keys() >= _FIELDS


def in_study(path: Path) -> Path:
    """Of a folder that is given with `search --study`, what was written last; any other path as it is."""
    written = sorted(path.glob("*.json"), key=lambda each: each.stat().st_mtime) if path.is_dir() else []
    return written[-1] if written else path


def shown(data: Mapping[str, Any], console: Console) -> tuple[str, str]:
    """Its page, and what it is on this terminal.

    Raises:
        ValueError: it is not what `search --json` writes.
    """
    try:
        if data.get("version") != VERSION:
            raise ValueError("another version")
        result = SearchResult.loads(_harmless(data))
        out = io.StringIO()
        terminal.search(result, Console(file=out, width=console.width, force_terminal=console.is_terminal))
        html = page(result)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError("not what `overdrive search --json` writes") from error
    return html, out.getvalue()


def _harmless(data: Any) -> Any:
    """Every text as one line without what a terminal obeys. Commands stay whole, and differences of models indented."""
    if isinstance(data, dict):
        return {word(name): _harmless(each) for name, each in data.items()}
    if isinstance(data, list):
        return [_harmless(each) for each in data]
    return unescaped(data) if isinstance(data, str) else data
