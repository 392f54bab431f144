"""The name under which samples are stored: another one for whatever could make other samples."""

from __future__ import annotations

import hashlib
import platform
import sys
from functools import cache
from pathlib import Path

from overdrive.samples.fingerprint import Fingerprint
from overdrive.samples.store import FORMAT

# Libraries that decode or compute; a data set may use them behind our back.
_PICTURES = {"PIL", "cv2", "imageio", "skimage", "torchvision", "av"}
_LIBRARIES = sorted(_PICTURES | {"h5py", "librosa", "numpy", "pandas", "scipy", "soundfile", "torchaudio"})


def key_of(fingerprint: Fingerprint, count: int) -> str:
    import torch

    versions = [
        (name, str(getattr(sys.modules[name], "__version__", None)))
        for name in _LIBRARIES
        if name in sys.modules
    ]
    parts = (
        FORMAT,
        fingerprint.digest,
        count,
        sys.version,
        torch.__version__,
        versions,
        surroundings(),
        # Another processor may take other paths through the same library, with other roundings.
        platform.machine(),
        _processor(),
        torch.backends.cpu.get_cpu_capability(),
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()


def surroundings() -> str:
    """Settings of torch that the samples may depend on."""
    import torch

    return str(torch.get_default_dtype())


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())
