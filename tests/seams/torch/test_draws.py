"""Random numbers that PyTorch draws, as its subscribers hear of them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from overdrive.seams.hub import Seams  # noqa: E402
from overdrive.seams.patch import Patches  # noqa: E402
from overdrive.seams.torch import draws  # noqa: E402


def test_a_draw_is_heard_of_while_another_thread_draws() -> None:
    """As one that reads a data set ahead: the dropout of a rank was its own then, not its part of all ranks'."""
    seams, patches, heard = Seams(), Patches(), []
    begun, over = threading.Event(), threading.Event()

    def drawn(name: str, call: Any, args: Any, kwargs: Any) -> None:
        heard.append(name)
        if name == "randn":
            begun.set()
            over.wait(60)

    seams.random_drawn.subscribe(drawn)
    draws.enter(seams, patches)
    try:
        ahead = threading.Thread(target=torch.randn, args=(3,))
        ahead.start()
        assert begun.wait(60)
        torch.nn.functional.dropout(torch.ones(3))
        over.set()
        ahead.join(60)
    finally:
        over.set()
        patches.restore()
    assert heard == ["randn", "dropout"]
