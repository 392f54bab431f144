"""What the house is like: its rooms, the arrows between them, circles, lines, long functions and files.

python benchmarks/house.py SRC ...      each SRC holds the package `overdrive`; a table, a column each
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_PACKAGE = "overdrive"
_LONG_FILE = 300  # lines


def modules_of(source: Path) -> dict[str, Path]:
    found = {}
    for path in sorted((source / _PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name: str, path: Path, known: Mapping[str, Path]) -> set[str]:
    """Modules of the package that this one imports, inside functions and for types alone included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = {f"{node.module}.{each.name}" for each in node.names}
            found.update({each for each in inner if each in known} or {node.module})
    return {each for each in found if each in known and each != name}


def room_of(name: str) -> str:
    return name.split(".")[1] if name.count(".") else ""


def circles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of which each member can be reached from each other one (Tarjan's)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in arrows.get(name, ()):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for each in arrows:
        if each not in number:
            visit(each)
    return found


def functions_of(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            yield node.end_lineno - node.lineno + 1, f"{path.stem}.{node.name}"


def figures(source: Path) -> dict[str, str]:
    modules = modules_of(source)
    files = {name: imports_of(name, path, modules) for name, path in modules.items() if name != _PACKAGE}
    rooms: dict[str, set[str]] = {}
    for name, others in files.items():
        rooms.setdefault(room_of(name), set()).update({*map(room_of, others)} - {room_of(name)})
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    longest = max(one for path in modules.values() for one in functions_of(path))
    long_files = sorted((length for length in lengths.values() if length > _LONG_FILE), reverse=True)
    folders = [name for name in rooms if (source / _PACKAGE / name / "__init__.py").exists()]
    between = circles(rooms)
    within = circles(files)
    largest = max(folders, key=lambda room: sum(lengths[name] for name in lengths if room_of(name) == room))
    of_it = sum(lengths[name] for name in lengths if room_of(name) == largest)
    return {
        "rooms": f"{len(folders)}",
        "arrows between rooms": f"{sum(len(others - {''}) for others in rooms.values())}",
        "circles between rooms": f"{len(between)}{_of(between, 'rooms')}",
        "circles between files": f"{len(within)}{_of(within, 'files')}",
        "files": f"{len(modules)}",
        "lines of src": f"{sum(lengths.values()):,}",
        "largest room": f"{largest}, {of_it / sum(lengths.values()):.0%}",
        "longest function": f"{longest[0]} lines ({longest[1]})",
        f"files over {_LONG_FILE} lines": f"{len(long_files)}, the longest {max(lengths.values())}",
    }


def _of(groups: list[list[str]], what: str) -> str:
    return f" ({', '.join(str(len(group)) for group in groups)} {what})" if groups else ""


def main(words: list[str]) -> None:
    columns = [figures(Path(word)) for word in words]
    for row in columns[0]:
        print(f"| {row} | {' | '.join(column[row] for column in columns)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
