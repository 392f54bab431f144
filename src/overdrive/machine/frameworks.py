"""Which builds of PyTorch, TensorFlow and NVIDIA's libraries are installed: read from their files, not imported."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

from overdrive.machine.reading import ROOT, known, text
from overdrive.machine.software import versions

# NVIDIA's libraries as packages; CUDA 13's have no suffix any more.
_LIBRARIES = {
    "cuDNN": "nvidia-cudnn",
    "NCCL": "nvidia-nccl",
    "cuBLAS": "nvidia-cublas",
    "cuFFT": "nvidia-cufft",
    "CUDA runtime": "nvidia-cuda-runtime",
}
_WITH_BYTECODE = ("torch", "tensorflow", "keras", "jax")
_PINNED = re.compile(r"^(nvidia-[A-Za-z0-9._-]+)\s*\(?==\s*([\w.+]+)")


def frameworks(root: Path = ROOT) -> dict[str, Any]:
    """Versions, what each framework was built for, NVIDIA's libraries, and those that are not the ones asked for."""
    packages = _nvidia_packages()
    found: dict[str, object] = {
        "interpreter": f"{sys.implementation.name} {sys.version.split()[0]}",
        "versions": versions(),
        "torch": torch_build(_folder("torch")),
        "tensorflow": tensorflow_build(_folder("tensorflow")),
        "libraries": {name: packages[key] for name, key in _LIBRARIES.items() if key in packages},
        "cuda_toolkit": _toolkit(root),
        "mismatched": _mismatched(packages),
        "without_bytecode": list(lacks_bytecode(for_good=True)),
    }
    return dict(known(found))


def lacks_bytecode(for_good: bool = False) -> tuple[str, ...]:
    """Those of the installed frameworks of which Python finds no bytecode: it compiles their modules at every start.

    Images for containers are often made so (PYTHONDONTWRITEBYTECODE=1, or installed by uv). On two cores
    `import torch, torchvision` took 9.7 s in place of 4.0.

    Args:
        for_good: only those of which it will not keep any either.
    """
    folders = {name: folder for name in _WITH_BYTECODE if (folder := _folder(name))}
    return tuple(name for name, folder in folders.items() if _lacks(folder) and not (for_good and _keeps(folder)))


def _lacks(folder: Path) -> bool:
    try:
        return not os.path.exists(importlib.util.cache_from_source(str(folder / "__init__.py")))
    except NotImplementedError:  # a Python without bytecode at all
        return False


def _keeps(folder: Path) -> bool:
    return not sys.dont_write_bytecode and os.access(sys.pycache_prefix or folder, os.W_OK)


def torch_build(folder: Path | None) -> dict[str, Any] | None:
    """PyTorch's build, from torch/version.py: `cuda` and `hip` are what it was built for, else None."""
    if folder is None:
        return None
    constants = _constants(text(folder / "version.py"))
    if "__version__" not in constants:
        return None
    return {
        "version": constants["__version__"],
        "cuda": constants.get("cuda"),
        "hip": constants.get("hip") or constants.get("rocm"),
        "xpu": constants.get("xpu"),
        "debug": bool(constants.get("debug")),
    }


def tensorflow_build(folder: Path | None) -> dict[str, Any] | None:
    """TensorFlow's build, from tensorflow/python/platform/build_info.py, which the build writes."""
    if folder is None:
        return None
    source = text(folder / "python/platform/build_info.py")
    build = dict(
        re.findall(r"""\(?["'](is_cuda_build|is_rocm_build|cuda_version|cudnn_version)["']\s*[,:]\s*(.+?)\)""", source)
    )
    if not build:
        return None
    clean = {name: value.strip(" ,'\"") for name, value in build.items()}
    return {
        "cuda": (clean.get("cuda_version") or "yes") if clean.get("is_cuda_build") == "True" else None,
        "cudnn": clean.get("cudnn_version") or None,
        "hip": "yes" if clean.get("is_rocm_build") == "True" else None,
    }


def _folder(package: str) -> Path | None:
    """The folder of the package; finding it runs nothing of it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def _constants(source: str) -> dict[str, Any]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, Any] = {}
    for node in tree.body:
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            found[target.id] = value.value
    return found


def _nvidia_packages() -> dict[str, str]:
    """Version by name, with and without the suffix such as -cu12."""
    found: dict[str, str] = {}
    try:
        for each in importlib.metadata.distributions():
            name = (each.metadata["Name"] or "").lower().replace("_", "-")
            if name.startswith("nvidia-"):
                found[name] = each.version
                found.setdefault(re.sub(r"-cu\d+$", "", name), each.version)
    except Exception:  # a damaged record shows in many ways
        return found
    return found


def _mismatched(packages: dict[str, str]) -> list[dict[str, str]]:
    """NVIDIA's packages that torch asks for in one version, installed in another."""
    try:
        asked = importlib.metadata.requires("torch") or []
    except Exception:
        return []
    found = []
    for line in asked:
        if pinned := _PINNED.match(line):
            name, version = pinned.group(1).lower().replace("_", "-"), pinned.group(2)
            if name in packages and packages[name] != version:
                found.append({"name": name, "asked": version, "installed": packages[name]})
    return found


def _toolkit(root: Path) -> str | None:
    """The CUDA of the system, which pip's packages do not use."""
    found = re.search(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([^"]+)"', text(root / "usr/local/cuda/version.json"))
    return found.group(1) if found else None
