"""Builds the site: the pages of this folder, and those that `pages.py` makes from code."""

from __future__ import annotations

import os
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
            shutil.copy(ROOT / f"{name}.md", pages / f"{name.lower()}.md")
        write_all(pages)
        shutil.copy(HERE / "mkdocs.yml", Path(folder) / "mkdocs.yml")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(ROOT / "site")]
        quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # of mkdocs-material, about a mkdocs that is not used here
        sys.exit(subprocess.call(command, cwd=folder, env=quiet))


if __name__ == "__main__":
    main()
