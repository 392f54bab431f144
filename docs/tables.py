"""Tables of the site: each cell is told its column's name, since `extra.css` makes a row a paragraph on a phone."""

from __future__ import annotations

import re
from html import escape


def on_page_content(html: str, **_: object) -> str:
    """mkdocs asks this of each page."""
    return re.sub(r"<table>.*?</table>", _named, html, flags=re.DOTALL)


def _named(table: re.Match[str]) -> str:
    heads = [re.sub(r"<[^>]+>", "", head).strip() for head in re.findall(r"<th[^>]*>(.*?)</th>", table[0], re.DOTALL)]

    def row(found: re.Match[str]) -> str:
        names = iter(heads)
        return re.sub(r"<td\b", lambda _: f'<td data-column="{escape(next(names, ""))}"', found[0])

    return re.sub(r"<tr>.*?</tr>", row, table[0], flags=re.DOTALL)
