"""A C file of ours made into functions: by this machine's compiler, for this process alone. Nothing of it is kept."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from overdrive.core import scratch

_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-w")
_PATIENCE = 60.0  # seconds for a compiler that takes half of one
# The OpenMP runtime that torch has brought. Another one beside it would have threads of its own, which wait for work
# by spinning on the same cores.
_OPENMP = re.compile(r"\S+/lib(?:gomp|iomp5|omp)(?:-[0-9a-f]+)?\.so\S*$")


class CannotBuild(Exception):
    """The message says why, for people."""


def cpp_compiler() -> str | None:
    """What PyTorch's compiler and others use on a CPU."""
    return shutil.which("g++") or shutil.which("clang++")


def compiler() -> str | None:
    return next((found for name in _COMPILERS if (found := shutil.which(name))), None)


class Building:
    """A file that is being compiled, beside whatever the process does meanwhile."""

    def __init__(self, source: str) -> None:
        """`source`: the path of a file under this folder.

        Raises:
            CannotBuild: there is no compiler, or it cannot be started.
        """
        name = compiler()
        if name is None:
            raise CannotBuild("there is no C compiler on this machine")
        self._source, self._compiler = Path(__file__).parent / source, name
        self._begin_here()

    def _begin_here(self) -> None:
        """In a folder of this process's own: one that was forked meanwhile would share the other's, and its compiler.

        Raises:
            CannotBuild: the compiler cannot be started.
        """
        self._owner = os.getpid()
        try:
            self._folder = scratch.made("overdrive-kernels-")
            self._process = self._begin("-fopenmp")
        except OSError as error:
            raise CannotBuild(f"the C compiler cannot be started ({error})") from None

    def _begin(self, *flags: str) -> subprocess.Popen[bytes]:
        # Compiled for OpenMP and linked without: its functions are those of the runtime that is there already.
        command = [self._compiler, *_FLAGS, *flags, "-c", str(self._source), "-o", self._object]
        return self._start(command)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(self._folder)},  # a compiler that is ended may leave files there
        )

    @property
    def _object(self) -> str:
        return os.path.join(self._folder, "kernel.o")

    def load(self) -> Any:
        """The functions, once torch has been imported. With threads where that can be had.

        Raises:
            CannotBuild: the compiler failed, or what it made cannot be loaded.
        """
        if os.getpid() != self._owner:
            self._begin_here()
        try:
            runtime = _openmp_runtime()
            if runtime is not None:
                with contextlib.suppress(CannotBuild, OSError):
                    self._finish(self._process)
                    ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
                    return self._linked("threads.so")
            self._end(self._process)
            self._process = self._begin()
            self._finish(self._process)
            return self._linked("alone.so")
        except OSError as error:
            raise CannotBuild(f"what the C compiler made cannot be loaded ({error})") from None
        finally:
            self.forget()

    def _linked(self, name: str) -> Any:
        library = os.path.join(self._folder, name)
        command = [self._compiler, "-shared", self._object, "-o", library]
        self._finish(self._start(command))
        return ctypes.CDLL(library, mode=os.RTLD_NOW)

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        try:
            _, told = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._end(process)
            raise CannotBuild(f"the C compiler had not ended after {_PATIENCE:.0f} s") from None
        if process.returncode:
            lines = (told or b"").decode(errors="replace").strip().splitlines()
            raise CannotBuild(f"the C compiler failed ({lines[-1] if lines else f'exit {process.returncode}'})")

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()

    def forget(self) -> None:
        """End the compiler, where it still runs, and remove what it has made: what is loaded stays."""
        if os.getpid() == self._owner:
            self._end(self._process)
            scratch.discard(self._folder)


def _openmp_runtime() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            if found := _OPENMP.search(line):
                return found[0]
    return None
