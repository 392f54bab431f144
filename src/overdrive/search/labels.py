"""The words that stand before the numbers of a program's output: what else may be a metric."""

from __future__ import annotations

import re

from overdrive.core.printed import series

# The words that stand before a number, without what it is wrapped in: `val acc` of `Epoch 3 | val acc: tensor(`.
_LABEL = re.compile(
    r"([^\W\d][^,;|│┃║(){}\[\]:=>]*?)"
    r"(?:['\"]?[:=]\s*\[*[A-Za-z_][\w.]*\(\[*|['\"\s:=>~|│┃║→(){\[%-]*)$"
)
_LONGEST_LABEL, _MOST_LABELS = 30, 8


def labels(output: str) -> list[str]:
    """The last ones first: results stand at the end of a line and of a run."""
    found: dict[str, None] = {}
    for name in series(output):
        template, _, place = name.rpartition(", ")
        before = template.split("#")[:-1][int(place) - 1 :][:1]  # nothing where a long template was cut
        label = _LABEL.search(before[0]) if before else None
        if label and len(label[1]) < _LONGEST_LABEL:
            found[label[1]] = None
    return list(found)[::-1]


def hint(output: str) -> str:
    known = labels(output)[:_MOST_LABELS]
    return f" It prints numbers after: {', '.join(known)}." if known else ""
