"""Hadamard matrices: +1 and -1, any two columns orthogonal. With them 24 rows tell as much as 24 can about 23 factors.

Plackett and Burman, "The design of optimum multifactorial experiments", Biometrika 33 (1946); Paley's constructions
(1933). Those of Paley's come first: in Sylvester's (powers of two) a product of two columns is another column, and with
that an interaction cannot be told from others.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Signs = NDArray[np.integer[Any]]


def columns(least: int, rows: int = 12) -> Signs:
    """A matrix (n, n - 1) of balanced, orthogonal columns, at least `least` of them; n is `rows` or more."""
    order = max(4 * -(-rows // 4), 4 * -(-(least + 1) // 4))
    while (found := _hadamard(order)) is None:
        order += 4
    return found[:, 1:]


@cache
def _hadamard(order: int) -> Signs | None:
    """A Hadamard matrix whose first column is all +1; None where none of the constructions gives this order."""
    half = order // 2
    found: Signs | None = None
    if _is_prime(order - 1) and order % 4 == 0:
        found = _paley(order - 1)
    elif order % 4 == 0 and _is_prime(half - 1) and half % 4 == 2:
        found = _paley_symmetric(half - 1)
    elif order == 2:
        found = np.array([[1, 1], [1, -1]])
    elif order % 4 == 0 and (smaller := _hadamard(half)) is not None:
        found = np.kron(np.array([[1, 1], [1, -1]]), smaller)
    return None if found is None else found * found[:, :1]


def _paley(prime: int) -> Signs:
    """Of order prime + 1, for a prime that is 3 modulo 4."""
    skew = np.zeros((prime + 1, prime + 1), dtype=int)
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = _residues(prime)
    return skew + np.eye(prime + 1, dtype=int)


def _paley_symmetric(prime: int) -> Signs:
    """Of order 2 (prime + 1), for a prime that is 1 modulo 4."""
    conference = np.zeros((prime + 1, prime + 1), dtype=int)
    conference[0, 1:], conference[1:, 0] = 1, 1
    conference[1:, 1:] = _residues(prime)
    one = np.eye(prime + 1, dtype=int)
    return np.kron(conference, np.array([[1, 1], [1, -1]])) + np.kron(one, np.array([[1, -1], [-1, -1]]))


def _residues(prime: int) -> Signs:
    """The Legendre symbol of row - column."""
    squares = {value * value % prime for value in range(1, prime)}
    symbol = np.array([0, *(1 if value in squares else -1 for value in range(1, prime))])
    index = np.arange(prime)
    matrix: Signs = symbol[(index[:, None] - index[None, :]) % prime]
    return matrix


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % each for each in range(2, int(number**0.5) + 1))
