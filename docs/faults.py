"""The table of faults, made from the tests that show them: `@pytest.mark.fault(...)` in tests/, and faults.toml.

The tests are read and not imported. Written by `python docs/pages.py`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomlkit

HERE = Path(__file__).parent

HEAD = """# Faults

What may go wrong with tunes, trials and runs, what is promised then, and the tests that show it. Nearly all make the
fault itself: a process is killed, a file cut off, a disk full. This page is made from these tests by
`python docs/pages.py`; a test shows a fault by the mark `@pytest.mark.fault`.

| | fault | what is promised | shown by |
|---|---|---|---|
"""


def known() -> dict[str, dict[str, Any]]:
    """By number or name."""
    return dict(tomlkit.parse((HERE / "faults.toml").read_text(encoding="utf-8")).unwrap())


def shown(tests: Path) -> dict[str, list[tuple[str, str]]]:
    """By fault, the tests that show it: file and name."""
    found = defaultdict(list)
    for path in sorted(tests.rglob("test_*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for fault in dict.fromkeys(_faults_of(function)):
                    found[fault].append((path.relative_to(tests.parent).as_posix(), function.name))
    return found


def _faults_of(function: ast.FunctionDef) -> Iterator[str]:
    for each in (node for decorator in function.decorator_list for node in ast.walk(decorator)):
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.fault":
            for argument in each.args:
                yield str(ast.literal_eval(argument))


def faults_page(tests: Path = HERE.parent / "tests") -> str:
    by_fault = shown(tests)
    rows = []
    for name, row in known().items():
        number = name if name.isdecimal() else ""
        rows.append(f"| {number} | {row['fault']} | {row['promise']} | {_shown(by_fault.get(name, []), row)} |\n")
    return HEAD + "".join(rows)


def _shown(tests: list[tuple[str, str]], row: dict[str, Any]) -> str:
    if not tests:
        return f"**not tested**: {row.get('left', '')}"
    by_file = defaultdict(list)
    for file, name in tests:
        by_file[file].append(name.removeprefix("test_").replace("_", " "))
    return "; ".join(f"`{file}`: {', '.join(names)}" for file, names in by_file.items())
