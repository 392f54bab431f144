"""The versions of what a program runs on, read from the packages' records: nothing is imported."""

from __future__ import annotations

import importlib.metadata
import platform

from overdrive.version import __version__

_PACKAGES = (
    *("torch", "torchvision", "torchaudio", "triton", "numpy"),
    *("lightning", "pytorch-lightning", "accelerate", "transformers"),
    *("keras", "tensorflow", "jax"),
)
# The same package under other names: its record stands under the name that it was installed by.
_OTHER_NAMES = {"tensorflow": ("tensorflow-cpu", "tensorflow-intel", "tensorflow-rocm", "tf-nightly", "tf-nightly-cpu")}


def versions() -> dict[str, str]:
    """Versions by name; what is not installed is left out."""
    found = {"python": platform.python_version(), "overdrive": __version__}
    for package in _PACKAGES:
        names = (package, *_OTHER_NAMES.get(package, ()))
        if version := next(filter(None, map(_version, names)), None):
            found[package] = version
    library, version = _libc()
    if library:
        found[library] = version
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except Exception:  # not there, or its record is damaged, which shows in many ways
        return None


def _libc() -> tuple[str, str]:
    try:
        return platform.libc_ver()
    except OSError:  # it reads Python's own file
        return "", ""
