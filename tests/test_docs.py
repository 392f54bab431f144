"""The documentation: its commands are ones that Overdrive takes, its examples are the files, its links lead there."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from overdrive.cli.group import COMMANDS, SHORT, cli
from overdrive.machine.pool.curve import BUS
from overdrive.seams.hub import Seams
from overdrive.seams.points import Point
from overdrive.techniques.catalogue import catalogue
from overdrive.version import __version__
from tests.conftest import ROOT

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import faults  # noqa: E402
import pages  # noqa: E402

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("guides/*.md"))]
# What stands for a word of the user's own.
STANDS_FOR = {"SCRIPT": "train.py", "PLAN": "train.overdrive.toml", "NAME": "threads", "FILE": "out.html"}


def commands_of(path: Path) -> Iterator[str]:
    """Whole lines of code blocks, and what stands in backquotes, that begin with `overdrive`."""
    text = path.read_text(encoding="utf-8")
    for block in re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            words = line.strip().removeprefix("$ ").removeprefix("srun ").removeprefix("%")
            words = re.split(r"docker run .*? (?=overdrive )|apptainer exec \S+ ", words)[-1]
            if words.startswith("overdrive ") and not words.startswith("overdrive: "):
                yield re.split(r"\s{2,}|\s#|\s\|\s|\s&&\s", words)[0]
    for found in re.findall(r"(?<!`)`(overdrive [^`]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        yield " ".join(found.split())


COMMANDS_IN_DOCS = sorted({(path.relative_to(ROOT).as_posix(), line) for path in PAGES for line in commands_of(path)})


def test_there_are_some() -> None:
    assert len(COMMANDS_IN_DOCS) > 60
    assert {line.split()[1] for _, line in COMMANDS_IN_DOCS} >= COMMANDS.keys()


@pytest.mark.parametrize(("page", "line"), COMMANDS_IN_DOCS)
def test_a_command_is_one_that_is_taken(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read as the command line would be, options and their values checked; nothing is started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.txt").touch()
    measured = [{"operation": each, "bytes": 1000, "seconds": 1e-3} for each in BUS]
    (tmp_path / "pool.json").write_text(json.dumps({"ranks": [1, 2], "busy": 0.1, "measured": measured}))
    optional = re.sub(r"\[(ARGS\]\.\.\.|NAME\])", "", line).replace("…", "")
    words = [STANDS_FOR.get(word, word) for word in shlex.split(optional)][1:]
    if words[0].startswith("-"):
        assert words == ["--version"] or words == ["--help"]
        return
    words = [*SHORT.get(words[0], words[:1]), *words[1:]]
    assert words[0] in COMMANDS, f"{page}: there is no command {words[0]}"
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None
    with command.make_context(words[0], words[1:]) as context:
        assert context.args == []


def test_the_catalogue_is_that_of_the_code() -> None:
    """After a technique came or went: python docs/pages.py"""
    assert (DOCS / "catalogue.md").read_text(encoding="utf-8") == pages.catalogue_page()
    for name in catalogue():
        assert f"`{name}`" in pages.catalogue_page()


def test_the_table_of_faults_is_that_of_the_tests() -> None:
    """After a test with a mark came or went: python docs/pages.py"""
    assert (DOCS / "faults.md").read_text(encoding="utf-8") == faults.faults_page()
    known, shown = faults.known(), faults.shown(ROOT / "tests")
    assert shown.keys() <= known.keys() and [f"{number}" for number in range(1, 29)] == list(known)[:28]
    assert {name for name, row in known.items() if "left" in row} == known.keys() - shown.keys()


def test_links_between_pages_lead_somewhere() -> None:
    made = {"commands.md", "schemas.md", "contributing.md", "changelog.md"}
    for path in PAGES[1:]:
        for place in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", path.read_text(encoding="utf-8")):
            if "://" not in place and Path(place).name not in made:
                assert (path.parent / place).exists(), f"{path.name}: {place}"


def anchors(path: Path) -> set[str]:
    """Of a page's headings, where GitHub and MkDocs make the same of one: any other leads nowhere on one of the two."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    heads = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head) for head in re.findall(r"^#+ +(.+)$", text, re.MULTILINE)]
    made = {re.sub(r"[^\w -]", "", head.strip().lower()).replace(" ", "-") for head in heads}
    return {each for each in made if each.isascii() and "--" not in each}


def test_links_to_headings_find_them() -> None:
    texts = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    found = 0
    for path in texts:
        for place, anchor in re.findall(r"\]\(((?:[^)#\s:]*\.md)?)#([\w-]+)\)", path.read_text(encoding="utf-8")):
            target = ROOT / "CONTRIBUTING.md" if place == "contributing.md" else path.parent / place if place else path
            assert anchor in anchors(target), f"{path.name}: {place}#{anchor}"
            found += 1
    assert found > 50


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS / "mkdocs.yml").read_text(encoding="utf-8")
    for path in [*DOCS.glob("*.md"), *DOCS.glob("guides/*.md")]:
        assert path.relative_to(DOCS).as_posix() in navigation, path


def test_the_job_in_the_guide_is_the_example() -> None:
    job = (ROOT / "examples" / "slurm" / "tune_and_run.sbatch").read_text()
    assert f"```bash\n{job}```" in (DOCS / "guides" / "slurm.md").read_text()
    done = subprocess.run(["bash", "-n"], input=job, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    directives = re.findall(r"^#SBATCH --([a-z-]+)(?:=\S+)?$", job, re.MULTILINE)
    assert len(directives) == job.count("#SBATCH") and job.index("#SBATCH") < job.index("set -euo")


def test_the_job_tunes_once_and_then_runs(tmp_path: Path) -> None:
    """As Slurm would start it, with an `srun` that only runs its words and an `overdrive` that notes its own."""
    for name, text in {
        ".venv/bin/activate": 'export PATH="$PWD/.venv/bin:$PATH"',
        ".venv/bin/srun": '#!/bin/sh\nexec "$@"',
        ".venv/bin/overdrive": '#!/bin/sh\necho "$@" "$OVERDRIVE_CACHE" on "$SRUN_CPUS_PER_TASK" >> calls\n'
        '[ "$1" != tune ] || touch train.overdrive.toml',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        path.chmod(0o755)
    job = ROOT / "examples" / "slurm" / "tune_and_run.sbatch"
    given = {"PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_TMPDIR": "/local"}  # no USER
    given["SLURM_CPUS_PER_TASK"] = "8"
    for _ in range(2):
        done = subprocess.run(["bash", str(job)], cwd="/", env=given, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    me = pwd.getpwuid(os.getuid()).pw_name
    tuned, *ran = (tmp_path / "calls").read_text().splitlines()
    assert tuned == f"tune --budget 15m train.py --epochs 10 /local/overdrive-{me} on 8"
    assert ran == [f"run train.py --epochs 10 /local/overdrive-{me} on 8"] * 2


@pytest.mark.parametrize("name", ["Dockerfile", "overdrive.def"])
def test_the_containers_in_the_guide_are_the_examples(name: str) -> None:
    recipe = (ROOT / "examples" / "containers" / name).read_text()
    assert f"\n{recipe}```" in (DOCS / "guides" / "containers.md").read_text()
    # What it copies is there, and all that its `pip install` reads: a clone may hold environments of gigabytes.
    copied = re.findall(r"^(?:COPY (.+) |    (\S+) )/overdrive/\S*$", recipe, re.MULTILINE)
    sources = {word for one, other in copied for word in (one or other).split()}
    assert sources == {"pyproject.toml", "README.md", "LICENSE", "constraints.txt", "src"}
    assert all((ROOT / source).exists() for source in sources)
    assert "-c /overdrive/constraints.txt" in recipe and '"/overdrive[torch]"' in recipe
    assert ('ENTRYPOINT ["overdrive"]' in recipe) or ("exec overdrive" in recipe)
    steps = {"FROM", "COPY", "RUN", "ENV", "WORKDIR", "ENTRYPOINT"}
    if name == "Dockerfile":
        lines = re.sub(r"\\\n", " ", recipe).splitlines()
        assert {line.split()[0] for line in lines if line and not line.startswith("#")} == steps


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    given = dict(re.findall(r"^([a-z-]+): (.+)$", text, re.MULTILINE))
    assert given["version"] == __version__ and given["license"] == "Apache-2.0" and given["cff-version"] == "1.2.0"
    assert re.search(r"^authors:\n  - name: ", text, re.MULTILINE)


def test_the_reference_names_every_option() -> None:
    page = pages.commands_page()
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None and f"## {name}\n" in page
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[-1] in page


@pytest.mark.long
@pytest.mark.skipif(find_spec("material") is None, reason="needs mkdocs-material (the extra docs)")
def test_the_site_builds(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(DOCS / "build.py")], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (ROOT / "site" / "schemas" / "plan.schema.json").is_file()
    for page in (ROOT / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=\"(https?:[^\"]+)", text)
        assert not loaded, f"{page.name} fetches {loaded[0]}"


def test_every_point_of_the_seams_is_told_to_who_writes_a_technique() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text() + (DOCS / "decisions" / "008-keras.md").read_text()
    points = [name for name, thing in vars(Seams()).items() if isinstance(thing, Point)]
    assert points and [name for name in points if f"`{name}`" not in told] == []
