"""Builds the site: the pages of this folder, and a page per technique made from its docstring."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from overdrive.techniques.catalogue import catalogue

HERE = Path(__file__).parent
ROOT = HERE.parent


def technique_page(name: str) -> str:
    technique = catalogue()[name]
    title, _, rest = technique.card().partition("\n\n")
    lines = [f"# {name}", "", f"**{title}**", ""]
    lines += [f"Family *{technique.family}*, contract *{technique.contract}*.", ""]
    for paragraph in rest.split("\n\n"):
        head, colon, text = paragraph.partition(":")
        lines += [f"## {head}" if colon else "", "", (text if colon else paragraph).strip(), ""]
    if technique.knobs:
        lines += ["## Knobs", "", "| knob | default | meaning |", "|---|---|---|"]
        lines += [f"| `{knob.name}` | `{knob.default}` | {knob.meaning} |" for knob in technique.knobs]
    return "\n".join(lines) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder) / "docs"
        shutil.copytree(HERE, pages, ignore=shutil.ignore_patterns("build.py", "mkdocs.yml", "__pycache__"))
        shutil.copy(ROOT / "CONTRIBUTING.md", pages / "contributing.md")
        (pages / "techniques").mkdir()
        for name in catalogue():
            (pages / "techniques" / f"{name}.md").write_text(technique_page(name))
        listing = "\n".join(
            f"| [`{name}`](techniques/{name}.md) | {technique.contract} | {technique.summary()} |"
            for name, technique in catalogue().items()
        )
        (pages / "techniques.md").write_text(
            "# The catalogue\n\n| technique | contract | what it does |\n|---|---|---|\n" + listing + "\n"
        )
        shutil.copy(HERE / "mkdocs.yml", Path(folder) / "mkdocs.yml")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(ROOT / "site")]
        sys.exit(subprocess.call(command, cwd=folder))


if __name__ == "__main__":
    main()
