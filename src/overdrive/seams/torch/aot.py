"""PyTorch's own ahead-of-time compiler, which is reached by private names alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch._inductor


def package(graph: Any, path: Path) -> None:
    """Compile an exported graph into a package of AOTInductor at this path, which ends in `.pt2`."""
    torch._inductor.aoti_compile_and_package(graph, package_path=str(path))
