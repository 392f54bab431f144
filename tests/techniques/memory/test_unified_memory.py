"""The library between PyTorch and the CUDA runtime, on a stand-in for that; and when it is left out."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from overdrive.core.facts import Facts
from overdrive.seams.torch import control
from overdrive.techniques.catalogue import catalogue
from overdrive.techniques.memory import unified_memory
from overdrive.techniques.memory.unified_memory import build, opened
from overdrive.techniques.technique import CannotInstall
from overdrive.worker.session import Session
from tests.fakes.cuda import fake_cuda

needs_a_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


@needs_a_compiler
def test_it_takes_no_more_than_its_room_and_gives_it_back(tmp_path: Path) -> None:
    runtime = tmp_path / "libcudart.so.99"
    (tmp_path / "runtime.c").write_text(
        "#include <stdlib.h>\n"
        "int alive; unsigned seen;\n"
        "int cudaHostAlloc(void **p, size_t n, unsigned f) { seen = f; alive++; return !(*p = malloc(n)); }\n"
        "int cudaFreeHost(void *p) { alive--; free(p); return 0; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "runtime.c"), "-o", str(runtime)], check=True)
    library = opened(build(tmp_path), str(runtime), 1000)
    library.overdrive_alloc.restype = ctypes.c_void_p
    library.overdrive_alloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    library.overdrive_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    one, other = library.overdrive_alloc(600, 0, None), library.overdrive_alloc(500, 0, None)
    assert one and other is None
    library.overdrive_free(one, 600, 0, None)
    assert library.overdrive_alloc(1000, 0, None)
    stand_in = ctypes.CDLL(str(runtime))
    assert ctypes.c_int.in_dll(stand_in, "alive").value == 1
    assert ctypes.c_uint.in_dll(stand_in, "seen").value == 3  # portable and mapped


@needs_a_compiler
def test_without_a_cuda_runtime_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(CannotInstall, match=r"libcudart\.so\.99 was not found"):
        opened(build(tmp_path), "libcudart.so.99", 1)


def test_never_more_than_is_free_and_only_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    technique = catalogue()["unified_memory"]
    assert "main memory already" in (technique.applies(Facts()) or "")
    on_gpu = Facts(device="cuda", parameters=1, own={"unified_memory": {"memory_available": 20 << 30}})
    assert technique.candidates(on_gpu) == [{"gib": 8}]
    with Session([("unified_memory", {"gib": 1})]) as session:
        torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    assert "main memory already" in session.seams.left_out["unified_memory"]
    monkeypatch.setenv("PATH", "")
    assert "no C compiler" in (technique.applies(on_gpu) or "")


@needs_a_compiler
def test_what_it_reserves_in_main_memory_is_no_peak_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's allocator counts it as held, as if it were the GPU's. A pool has no stand-in here: what is reserved is
    counted in the same place without one."""
    monkeypatch.setattr(control, "_set_aside", {})
    monkeypatch.setattr(unified_memory, "available_memory", lambda: 64 << 30)
    monkeypatch.setattr(unified_memory, "opened", lambda *_: None)
    pluggable = SimpleNamespace(allocator=lambda: None)
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", lambda *_: pluggable)
    monkeypatch.setattr(torch.cuda, "MemPool", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", lambda *_: contextlib.nullcontext())
    with fake_cuda(), Session([("unified_memory", {"gib": 1})]) as session:
        model = torch.nn.Linear(8, 8).cuda()
        before = control.peak_memory()
        torch.optim.SGD(model.parameters(), lr=0.1)
        assert not session.seams.left_out
        assert torch.cuda.max_memory_reserved() > 1000 << 20 and control.peak_memory() == before
