"""The key under which samples are stored: it changes with everything that could change the samples."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
from collections.abc import Callable
from contextvars import copy_context
from functools import cache, partial
from importlib import metadata
from pathlib import Path

import numpy as np

from overdrive.changes.fingerprint import Fingerprint
from overdrive.datacache.manifest import FORMAT

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
    return *_asked(), *_numpys()


_TINY, _ONE = 5e-310, 1.0
_DECIMAL_DIGITS = 28  # that `decimal` has when it is imported


class Settings:
    """The same, as they were when this was made: looked at before each batch, when the processor's caches are cold."""

    def __init__(self) -> None:
        self._asked = _asked()
        self._context = copy_context()
        self._numpys = _numpys()

    def changed(self) -> bool:
        if _asked() != self._asked:
            return True
        context = copy_context()
        if _context_tells() and context == self._context:
            return False
        if _numpys() != self._numpys:
            return True
        self._context = context
        return False


def _asked() -> list[object]:
    decimals = sys.modules.get("decimal")  # which may come to be there late: by a kernel's imports, say
    digits = _DECIMAL_DIGITS if decimals is None else decimals.getcontext().prec
    # Denormal numbers are nothing where somebody has the processor take them so.
    found = [*(ask() for ask in _askers()), digits, _TINY * _ONE == 0]
    return found + _modes() if found[0] or found[1] else found


def _modes() -> list[object]:
    import torch

    from overdrive.seams.torch.internals import all_function_modes

    return [*all_function_modes(), torch.get_autocast_dtype("cpu")]


@cache
def _askers() -> tuple[Callable[[], object], ...]:
    import torch

    from overdrive.seams.torch.internals import count_of_function_modes, onednn_precisions, uses_onednn

    autocast = partial(torch.is_autocast_enabled, "cpu")
    by_torch = (count_of_function_modes(), autocast, torch.get_default_dtype, torch.get_num_threads, uses_onednn())
    of_python = (sys.getrecursionlimit, getattr(sys, "get_int_max_str_digits", int))  # the last one since 3.10.7
    deterministic = torch.are_deterministic_algorithms_enabled
    return *by_torch, deterministic, *onednn_precisions(), os.getcwd, *of_python


def _numpys() -> tuple[object, ...]:
    return np.geterr(), np.geterrcall(), np.getbufsize(), np.get_printoptions()


@cache
def _context_tells() -> bool:
    """Whether numpy keeps its settings in context variables (from 2.2 on), so that an equal context says all."""

    def differs(made: contextlib.AbstractContextManager[object]) -> bool:
        before = copy_context()
        with made:
            return copy_context() != before

    changes = (
        np.errstate(all="raise"),
        np.errstate(all="ignore"),
        np.printoptions(precision=1),
        np.printoptions(precision=2),
    )
    return all(copy_context().run(differs, each) for each in changes)


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
