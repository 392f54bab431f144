"""The key under which samples are stored: it changes with everything that could change the samples."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from overdrive.datacache.fingerprint import Fingerprint
from overdrive.datacache.partial_table import FORMAT

# Packages that decode or compute; a data set may use them behind our back. Counted where they are
# installed, loaded or not: what else a run imports must not decide on the key.
_PICTURES = {"pillow", "pillow-simd", "opencv-python", "opencv-python-headless", "opencv-contrib-python"}
_OTHERS = {"numpy", "scipy", "pandas", "h5py", "librosa", "soundfile", "av", "scikit-image", "imageio"}
_PACKAGES = sorted(_PICTURES | _OTHERS | {"torchvision", "torchaudio", "albumentations"})


def key_of(fingerprint: Fingerprint, count: int) -> str:
    import torch

    parts = (
        FORMAT,
        fingerprint.digest,
        count,
        sys.version,
        torch.__version__,
        _versions(),
        _default_type(),
        # Another processor may take other paths through the same library, with other roundings.
        platform.machine(),
        _processor(),
        torch.backends.cpu.get_cpu_capability(),
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()


def settings() -> tuple[object, ...]:
    """Settings of this process that samples may depend on. Takes 3 µs."""
    import numpy as np
    import torch

    decimals = sys.modules.get("decimal")
    return (
        _default_type(),
        torch.get_num_threads(),
        os.getcwd(),
        np.geterr(),
        np.get_printoptions(),
        torch.is_autocast_enabled("cpu"),
        sys.getrecursionlimit(),
        decimals.getcontext().prec if decimals is not None else None,
    )


def _default_type() -> str:
    import torch

    return str(torch.get_default_dtype())


@cache
def _versions() -> list[tuple[str, str]]:
    found = []
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append((name, metadata.version(name)))
    return found


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    # Where `platform` has to start a program to know, warnings that the program has shown are shown once more.
    named = next((line for line in lines if line.startswith("model name")), "")
    return named or " ".join(sorted({line for line in lines if line.startswith("CPU ")}))
