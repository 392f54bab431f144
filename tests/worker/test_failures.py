"""How an error that ended a program is told to the tuner."""

from __future__ import annotations

import pytest
import torch

from overdrive.worker.failures import kind_of
from tests.fakes.cuda import fake_cuda


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "oom"),
        (RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable"), "busy"),
        (RuntimeError("CUDA error: device-side assert triggered"), "exception"),
        (ValueError("the program's own"), "exception"),
    ],
)
@pytest.mark.fault(6)
def test_what_a_gpu_without_room_says_is_known(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_an_error_that_one_of_memory_led_to_is_one_of_memory() -> None:
    """As PyTorch tells of a loader's worker that the kernel has ended."""
    error = RuntimeError("DataLoader worker (pid(s) 1857) exited unexpectedly")
    assert kind_of(error) == "exception"
    error.__cause__ = RuntimeError("DataLoader worker (pid 1857) is killed by signal: Killed. ")
    assert kind_of(error) == "oom"
    error.__cause__ = ValueError("the program's own")
    error.__cause__.__cause__ = error
    assert kind_of(error) == "exception"


def test_what_the_stand_in_says_is_known_too() -> None:
    with fake_cuda(memory=100) as gpu:
        with pytest.raises(RuntimeError) as full:
            torch.ones(100, device="cuda")
        gpu.busy = True
        with pytest.raises(RuntimeError) as busy:
            torch.ones(1, device="cuda")
    assert kind_of(full.value) == "oom" and kind_of(busy.value) == "busy"
