"""A tensor's fingerprint: the same for the same bits, another one for any others."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import pytest
import torch

from overdrive.seams.torch import fingerprints
from overdrive.seams.torch.fingerprints import fingerprint
from overdrive.seams.torch.step_recorder import update
from tests.fakes.cuda import fake_cuda

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fingerprints, "_WORDS", 16)
    fingerprints._places.cache_clear()
    yield
    fingerprints._places.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 3, 64, 257])
def test_any_bit_that_is_another_is_seen(dtype: torch.dtype, count: int) -> None:
    data = (torch.randn(count) * 100).to(dtype)
    told = fingerprint(data)
    assert told == fingerprint(data.clone()) == fingerprint(data.reshape(-1, 1).T)
    draw = random.Random(0)
    for _ in range(40 if count else 0):
        other = data.clone()
        byte = draw.randrange(data.nbytes)
        other.view(torch.uint8)[byte] ^= 1 if dtype is torch.bool else 1 << draw.randrange(8)
        assert fingerprint(other) != told


def test_what_cancels_in_a_sum_is_seen() -> None:
    data = torch.randn(64)
    signs, swapped, moved = data.clone(), data.clone(), data.roll(1)
    signs[[3, 11]] *= -1
    swapped[[2, 3, 34, 35]] = data[[34, 35, 2, 3]]  # whole words, in the same place of two parts
    told = [fingerprint(each) for each in (data, signs, swapped, moved, torch.zeros(64), -torch.zeros(64))]
    assert len(set(told)) == len(told)


def test_no_memory_format_and_no_offset_changes_it() -> None:
    data = torch.randn(2, 3, 5, 7)
    assert fingerprint(data.contiguous(memory_format=torch.channels_last)) == fingerprint(data)
    flat = torch.randn(41)
    assert fingerprint(flat[1:]) == fingerprint(flat[1:].clone())


def test_of_a_tensor_on_a_gpu_few_bytes_come_to_the_host() -> None:
    def hashed(value: object) -> str:
        digest = hashlib.sha256()
        update(digest, value)
        return digest.hexdigest()

    with fake_cuda() as gpu:
        tensor = torch.arange(1000.0).to("cuda")
        told = hashed([tensor])
        gpu.synced.clear()
        assert hashed([tensor]) == told and len(gpu.synced) == 1
        assert told == hashed([tensor.clone()]) and told != hashed([tensor + 1])
        tensor[999] = -1.0
        assert told != hashed([tensor])
    assert not gpu.order.found


def test_the_device_that_a_program_makes_the_usual_one_is_no_matter() -> None:
    told = fingerprint(torch.arange(40.0))
    fingerprints._places.cache_clear()
    torch.set_default_device("meta")
    try:
        assert fingerprint(torch.arange(40.0, device="cpu")) == told
    finally:
        torch.set_default_device(None)
