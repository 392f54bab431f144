"""The package as it would be published: wheel and sdist, checked, and installed where nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from overdrive.version import __version__
from tests.conftest import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BUILD = "from setuptools import build_meta as b; print(b.build_sdist(DIST)); print(b.build_wheel(DIST))"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, from the files that git has, so that nothing of this folder's builds is in them."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    made = folder / "dist"
    made.mkdir()
    code = BUILD.replace("DIST", repr(str(made)))
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


def test_they_hold_what_runs_and_no_tests(dist: Path) -> None:
    (wheel,) = dist.glob(f"overdrive-{__version__}-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert ("overdrive/report/page.html" in names and "overdrive/kernels/max_pool/kernel.c" in names) or any(
        name.startswith("overdrive/kernels/") and name.endswith(".c") for name in names
    )
    assert "overdrive/py.typed" in names and not any(name.startswith(("tests", "benchmarks")) for name in names)
    (sdist,) = dist.glob(f"overdrive-{__version__}.tar.gz")
    with tarfile.open(sdist) as opened:
        inside = opened.getnames()
    assert f"overdrive-{__version__}/README.md" in inside and f"overdrive-{__version__}/LICENSE" in inside


@pytest.mark.skipif(find_spec("twine") is None, reason="needs twine (the extra test)")
def test_twine_has_nothing_to_say(dist: Path) -> None:
    files = list(map(str, dist.iterdir()))
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


def test_it_works_where_nothing_else_is(dist: Path, tmp_path: Path) -> None:
    """In an environment of its own, with what it depends on and no more: no framework, no clone."""
    (wheel,) = dist.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "bare")], check=True)
    bare = tmp_path / "bare" / "bin"
    quiet = ["install", "--quiet", "--disable-pip-version-check"]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = [str(bare / "python"), "-m", "pip", *quiet, str(wheel)]
    done = subprocess.run(pip, capture_output=True, text=True, env=alone)
    if "Failed to establish a new connection" in done.stderr or "No matching distribution" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr

    def overdrive(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(bare), "HOME": str(tmp_path)}
        return subprocess.run(
            [str(bare / "overdrive"), *words], cwd=tmp_path, capture_output=True, text=True, env=environment
        )

    assert overdrive("--version").stdout.strip().endswith(__version__)
    assert "sample_cache" in overdrive("techniques").stdout
    (tmp_path / "train.py").write_text("import torch\n")
    failed = overdrive("tune", "train.py")
    assert failed.returncode == 1 and f"`{bare / 'python'} -m pip install torch`" in failed.stderr
    (tmp_path / "train.overdrive.toml").write_text('overdrive = 1\nprogram = "train.py"\n')
    assert overdrive("report", "train.py", "-o", "out.html").returncode == 0 and (tmp_path / "out.html").exists()
