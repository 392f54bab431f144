"""Fetches the public programs of programs.toml, as they are, and lays their small data beside them.

python benchmarks/public/prepare.py [--only NAME,...] [--into FOLDER] [--data FOLDER] [--mirror FOLDER] [--divide N]

A repository is read from FOLDER/OWNER+NAME/repo (a bare mirror) where that is there, else from GitHub, at the commit
that programs.toml names. None of it becomes a part of this project. `--into` is ~/.cache/overdrive-public, where it is
not given. `--data`: real MNIST and CIFAR-10 (see data_sets.py); without it, or where a program has no such data, the
data is made, and that is said. `--divide 8` lays an eighth of the samples, for runs that are made many times.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import data_sets
import tomlkit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
INTO = Path.home() / ".cache" / "overdrive-public"
RECORD = ".prepared.json"  # in a program's folder: what it was made of
Program = dict[str, Any]
_COUNTS = ("train", "test", "per_class", "count")  # of samples

_OPERATORS = """\
import torch as _torch
_operators = _torch.library.Library("torchvision", "FRAGMENT")
_operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def programs() -> dict[str, Program]:
    return tomlkit.parse((HERE / "programs.toml").read_text()).unwrap()


def repository(name: str, mirror: Path, into: Path) -> Path:
    """A git directory that has the repository."""
    if (mirrored := mirror / name.replace("/", "+") / "repo").is_dir():
        return mirrored
    cloned = into / ".repositories" / name.replace("/", "+")
    if not cloned.is_dir():  # without its files: those that are wanted come one by one
        address = f"https://github.com/{name}"
        subprocess.run(["git", "clone", "--quiet", "--bare", "--filter=blob:none", address, str(cloned)], check=True)
    return cloned


def fetch(program: Program, git_folder: Path, target: Path) -> None:
    """Write the wanted files to `target`, every byte as it is."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", f"--git-dir={git_folder}", *words], check=True, capture_output=True).stdout

    names = git("ls-tree", "-r", "-z", "--name-only", program["commit"], "--", *program["paths"]).decode()
    for name in filter(None, names.split("\0")):
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(git("show", f"{program['commit']}:{name}"))


def lay_data(program: Program, target: Path, real: Path, divide: int) -> list[str]:
    told = []
    for wanted in program["data"]:
        at = (target / program["folder"] / wanted["at"]).resolve()
        at.mkdir(parents=True, exist_ok=True)
        words = {key: value for key, value in wanted.items() if key not in ("make", "at")}
        words |= {key: words[key] // divide for key in _COUNTS if key in words}
        told.append(f"{wanted['make']}: {getattr(data_sets, wanted['make'])(at, real, **words)}")
    return told


def mend_torchvision() -> None:
    """Declare the two operators that torchvision's compiled half brings, where that half does not fit this PyTorch."""
    spec = importlib.util.find_spec("torchvision")
    assert spec and spec.origin, "torchvision is not installed"
    text = Path(spec.origin).read_text()
    if not text.startswith(_OPERATORS):
        Path(spec.origin).write_text(_OPERATORS + text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--into", type=Path, default=INTO)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--mirror", type=Path, default=ROOT.parent / ".mirror")
    parser.add_argument("--divide", type=int, default=1, help="by what the number of samples is divided")
    parser.add_argument("--mend-torchvision", action="store_true", help="and do nothing else")
    options = parser.parse_args()
    if options.mend_torchvision:
        return mend_torchvision()
    table = programs()
    for name in options.only.split(",") if options.only else table:
        program, target = table[name], options.into / name
        lacking = [each for each in program["needs"] if importlib.util.find_spec(each) is None]
        if lacking:
            print(f"{name:18} left out: {', '.join(lacking)} is not installed")
            continue
        shutil.rmtree(target, ignore_errors=True)
        source = repository(program["repository"], options.mirror, options.into)
        fetch(program, source, target)
        data = lay_data(program, target, options.data, options.divide)
        (target / RECORD).write_text(json.dumps({"commit": program["commit"], "data": data}) + "\n")
        print(f"{name:18} {target}  {'; '.join(data) or 'its own data'}", flush=True)


if __name__ == "__main__":
    main()
