"""Files of ours as somebody may have changed them: bytes flipped, cut, doubled, moved, or texts that mean something."""

from __future__ import annotations

import random
from collections.abc import Iterator

_WORDS = (b"../", b"\x00", b"\n[[technique]]\n", b"1e999", b"-1", b"nan", b'"', b"{", b"]", b"\xff\xfe", b"9" * 30)


def mutations(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """As many, of `data`; the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            begin = chance.randrange(len(changed) + 1)
            end = min(len(changed), begin + chance.choice((0, 1, 1, 2, 8, 40, 400)))
            kind = chance.randrange(5)
            if kind == 0 and begin < len(changed):
                changed[begin] ^= 1 << chance.randrange(8)
            elif kind == 1:
                del changed[begin:end]
            elif kind == 2:
                changed[begin:begin] = changed[begin:end]
            elif kind == 3:
                changed[begin:end] = chance.choice(_WORDS)
            else:
                changed[begin:end] = chance.randbytes(end - begin)
        yield bytes(changed)
