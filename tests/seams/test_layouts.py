"""Sparse and nested tensors are watched as strided ones are: hashed by their parts, counted by their bytes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable

import pytest
import torch

from overdrive.seams.torch.layouts import bytes_of, strided_parts
from overdrive.seams.torch.step_recorder import update
from overdrive.worker.live_memory import LiveMemory
from overdrive.worker.operators import Operators
from overdrive.worker.torch.checksums import checksum

Make = Callable[[torch.Tensor], torch.Tensor]


def _nested(dense: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor(list(dense), layout=torch.strided)


def _jagged(dense: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor(list(dense), layout=torch.jagged)


LAYOUTS: dict[str, Make] = {
    "coordinates": torch.Tensor.to_sparse,
    "twice the same coordinate": lambda dense: torch.sparse_coo_tensor([[1, 1], [2, 2]], dense[0, :2], dense.shape),
    "rows": torch.Tensor.to_sparse_csr,
    "columns": torch.Tensor.to_sparse_csc,
    "blocks of rows": lambda dense: dense.to_sparse_bsr((2, 2)),
    "blocks of columns": lambda dense: dense.to_sparse_bsc((2, 2)),
    "nested": _nested,
    "jagged": _jagged,
    "MKL-DNN": torch.Tensor.to_mkldnn,
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    warnings.simplefilter("ignore")  # PyTorch tells of some layouts that they are in beta


def _hash(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256()
    update(digest, tensor)
    return digest.hexdigest()


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=list(LAYOUTS))
def test_equal_tensors_have_equal_hashes_and_others_have_others(make: Make) -> None:
    dense = torch.arange(1.0, 17).reshape(4, 4)
    for of in (checksum, _hash):
        assert of(make(dense)) == of(make(dense.clone()))
        assert of(make(dense)) != of(make(dense + 1))


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=list(LAYOUTS))
def test_bytes_are_those_of_the_parts(make: Make) -> None:
    tensor = make(torch.arange(1.0, 17).reshape(4, 4))
    parts = strided_parts(tensor)
    assert all(each.layout is torch.strided and not each.is_nested for each in parts)
    assert bytes_of(tensor) == sum(each.nbytes for each in parts) > 0


def test_products_of_sparse_matrices_are_counted_by_their_elements() -> None:
    sparse, dense = torch.eye(8).to_sparse(), torch.ones(8, 3)
    with Operators(LiveMemory("cpu")) as operators:
        torch.mm(sparse, dense)
        torch.mm(sparse.to_sparse_csr(), dense)
    products = [each for each in operators.calls if "mm" in each.name]
    assert len(products) == 2
    assert all(each.bytes >= 8 * 3 * 4 * 2 + 8 * 4 for each in products)
