"""What tensors of a data set hold is watched, however they lie in their memory and whoever writes to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from overdrive.changes.fingerprint import fingerprint  # noqa: E402
from overdrive.changes.walk import arrays  # noqa: E402
from overdrive.datacache.unchanged import Unchanged  # noqa: E402

KINDS = ["uint8", "bool", "float16", "bfloat16", "float32", "int64", "complex64", "complex128", "float8_e5m2"]
VIEWS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda whole: whole,
    "permuted": lambda whole: whole.permute(2, 0, 1),
    "a column": lambda whole: whole[:, 1],
    "expanded": lambda whole: whole[:1, 1].expand(9, -1),
    "in no dimension": lambda whole: whole[0, 1, 2],
}
OF_COMPLEX: list[Callable[[Any], Any]] = [lambda whole: whole.conj(), lambda whole: whole.conj().imag[:, 1]]


def memory(whole: Any) -> Any:
    """Its bytes, of writes to which PyTorch does not know."""
    return np.from_dlpack(torch.empty(0, dtype=torch.uint8).set_(whole.untyped_storage()))


def assert_watched(tensor: Any, bytes_: Any) -> None:
    unchanged = Unchanged((tensor,), fingerprint(tensor))
    assert unchanged.seen.hidden_here is None
    assert unchanged.changed() is None and unchanged.changed() is None
    bytes_ ^= 0x38
    assert unchanged.changed() is not None


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_count_however_they_lie(kind: str, view: str) -> None:
    whole = torch.zeros(4, 5, 6, dtype=torch.uint8).to(getattr(torch, kind))
    assert_watched(VIEWS[view](whole), memory(whole))


@pytest.mark.parametrize("view", OF_COMPLEX)
def test_bytes_of_what_is_only_conjugated_or_negated_when_it_is_read_count(view: Callable[[Any], Any]) -> None:
    whole = torch.zeros(4, 5, dtype=torch.complex64)
    assert_watched(view(whole), memory(whole))


def test_a_large_array_that_is_permuted_is_watched() -> None:
    array = np.zeros((100, 60, 3), np.float32)
    unchanged = Unchanged((tensor := torch.from_numpy(array).permute(2, 0, 1),), fingerprint(tensor))
    assert unchanged.changed() is None
    array[50, 3, 1] = 1
    assert unchanged.changed() is not None


@pytest.mark.parametrize("size", [4, 100_000])
def test_a_tensor_that_is_watched_may_be_resized(size: int) -> None:
    """It could not be: `numpy()` had made its memory one that nobody may resize."""
    tensor = torch.zeros(size)
    unchanged = Unchanged((tensor,), fingerprint(tensor))
    tensor.resize_(100 * size)
    assert unchanged.changed() is not None
    assert tensor.untyped_storage().resizable()


def test_what_is_watched_of_a_permuted_tensor_has_no_gaps() -> None:
    """It is not read before each batch: an MNIST whose channels come first is 150 MB."""
    for view in (torch.zeros(100, 60, 3).permute(2, 0, 1), torch.zeros(100, 200)[:, :150], torch.zeros(1).expand(9999)):
        content, around = arrays._memory_of(view, torch)
        assert around.flags.forc
        assert content.nbytes <= view.numel() * view.element_size()
