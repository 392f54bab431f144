"""Memory of batches is filled again when nobody has it any more, whichever way it was held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from overdrive.datacache import buffers as buffers_module  # noqa: E402
from overdrive.datacache.buffers import Buffers  # noqa: E402

SIZES = (64, 3, 32, 32)


def take(buffers: Buffers, value: float) -> Any:
    return buffers.take(SIZES, torch.float32).fill_(value)


def test_a_loop_uses_two_pieces_of_memory_in_turn() -> None:
    buffers, places = Buffers(), set()
    for number in range(20):
        batch = take(buffers, number)
        places.add(batch.data_ptr())
    assert len(places) == 2


def test_a_batch_looks_as_if_it_were_fresh() -> None:
    buffers = Buffers()
    for _ in range(4):
        batch, fresh = take(buffers, 1.0), torch.empty(SIZES)
        assert batch.stride() == fresh.stride() and batch.is_contiguous() and batch._base is None
        assert batch.untyped_storage().nbytes() == fresh.untyped_storage().nbytes()
        assert batch.data_ptr() % 64 == 0 and not batch.requires_grad and not batch.is_inference()
        with torch.inference_mode():
            assert take(buffers, 1.0).is_inference()


def with_gradient(batch: Any) -> Any:
    weight = torch.ones(SIZES, requires_grad=True)
    loss = (weight * batch).sum()

    def content() -> Any:
        loss.backward()
        return weight.grad

    return content


def with_storage(batch: Any) -> Any:
    storage = batch.untyped_storage()
    return lambda: torch.empty(0).set_(storage)


def shared(batch: Any) -> Any:
    return batch.share_memory_()


def resized(batch: Any) -> Any:
    size = batch.numel()
    batch.resize_(4 * size)
    return lambda: batch.view(-1)[:size]


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda batch: batch,
    "a view": lambda batch: batch[3:, :, 4],
    "detached": lambda batch: batch.detach(),
    "its data": lambda batch: batch.data,
    "an array": lambda batch: batch.numpy(),
    "a memory view": lambda batch: memoryview(batch.numpy().reshape(-1)),
    "a capsule": torch.utils.dlpack.to_dlpack,
    "its storage": with_storage,
    "what a gradient needs": with_gradient,
    "a parameter": torch.nn.Parameter,
    "a lazy copy": torch._lazy_clone,
    "in shared memory": shared,
    "with more room": resized,
    "another type": lambda batch: batch.view(torch.int32),
    "in a module": lambda batch: torch.nn.ParameterList([torch.nn.Parameter(batch, requires_grad=False)])[0],
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_held_is_left_alone(name: str) -> None:
    buffers = Buffers()
    take(buffers, 1.0)
    held = HOLDERS[name](take(buffers, 7.0))
    for _ in range(6):
        take(buffers, 9.0)
    held = held() if callable(held) and not isinstance(held, torch.Tensor) else held
    if type(held).__name__ == "PyCapsule":
        held = torch.utils.dlpack.from_dlpack(held)
    content = torch.as_tensor(held) if not isinstance(held, torch.Tensor) else held
    content = content.view(torch.float32) if content.dtype == torch.int32 else content
    assert content.numel() and bool((content == 7.0).all())


def test_of_what_a_program_keeps_nothing_is_touched_and_no_more_is_kept_for_it() -> None:
    buffers = Buffers()
    kept = [take(buffers, number) for number in range(40)]
    assert all(bool((batch == number).all()) for number, batch in enumerate(kept))
    assert not buffers._slots  # it will not let go of the others either
    assert len({batch.data_ptr() for batch in kept}) == 40


def test_other_sizes_and_small_ones() -> None:
    buffers = Buffers()
    for rows in (64, 63, 64, 17, 64):
        batch = buffers.take((rows, 3, 32, 32), torch.float32)
        assert batch.shape[0] == rows and batch.untyped_storage().nbytes() == batch.nbytes
    assert sorted(buffers._slots) == [17 * 12288, 63 * 12288, 64 * 12288]
    assert buffers.take((64,), torch.int64).shape == (64,) and 512 not in buffers._slots
    for rows in range(20, 40):
        buffers.take((rows, 3, 32, 32), torch.float32)
    assert len(buffers._slots) == buffers_module._MOST_SIZES


def test_threads_never_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers_module, "_MOST_IN_VAIN", 10**9)
    buffers, wrong = Buffers(), []

    def use(value: float) -> None:
        for _ in range(300):
            batch = take(buffers, value)
            if not bool((batch == value).all()):
                wrong.append(value)

    threads = [threading.Thread(target=use, args=(value,)) for value in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_a_count_of_owners_all_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    buffers = Buffers()
    batches = [take(buffers, number) for number in range(5)]
    assert all(bool((batch == number).all()) for number, batch in enumerate(batches))
    del batches
    assert not any(buffers._slots.values())
