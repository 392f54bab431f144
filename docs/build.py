"""Builds the site: the pages of this folder, and those that `pages.py` makes from code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import write_all

HERE = Path(__file__).parent
ROOT = HERE.parent


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder) / "docs"
        shutil.copytree(HERE, pages, ignore=shutil.ignore_patterns("*.py", "mkdocs.yml", "__pycache__"))
        for name in ("CONTRIBUTING", "CHANGELOG"):
            text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
            (pages / f"{name.lower()}.md").write_text(text.replace("](docs/", "]("), encoding="utf-8")
        write_all(pages)
        shutil.copy(HERE / "tables.py", folder)
        settings = (HERE / "mkdocs.yml").read_text(encoding="utf-8")
        named = re.sub(r"^( +)- Decisions: decisions.*$", _decisions, settings, flags=re.MULTILINE)
        (Path(folder) / "mkdocs.yml").write_text(named, encoding="utf-8")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(ROOT / "site")]
        quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # of mkdocs-material, about a mkdocs that is not used here
        sys.exit(subprocess.call(command, cwd=folder, env=quiet))


def _decisions(line: re.Match[str]) -> str:
    """All of them for the navigation, by number and title."""
    space = line[1]
    entries = [f"{space}- Decisions:"]
    for path in sorted((HERE / "decisions").glob("*.md")):
        title = path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
        entries.append(f'{space}    - "{title}": decisions/{path.name}')
    return "\n".join(entries)


if __name__ == "__main__":
    main()
