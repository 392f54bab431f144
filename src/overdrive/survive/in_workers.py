"""In a worker of a loader, while a run that survives goes on: what has to be known of it comes with each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overdrive.core.flag import Flag

MARK = "overdrive: states"


class Worker:
    """In a loader's worker."""

    hands = Flag()  # up in the program's process while workers are started
    fetches = 0
    began: Any = None
    held: Any = None
    clear = True


def hand_over(data_set: Any, call: Callable[[], Any]) -> Any:
    """In a worker: the batch, and what has to be known of this worker."""
    from torch.utils.data import get_worker_info

    from overdrive.survive import data_sets, state

    worker = get_worker_info()
    if not Worker.hands or worker is None:
        return call()
    if Worker.began is None:
        Worker.began = (*state.host_state(), state.torch_state())
    batch = call()
    Worker.fetches += 1
    if Worker.clear and Worker.fetches & (Worker.fetches - 1) == 0:
        held = data_sets.digest_of([data_set], with_generators=True)
        Worker.clear = held is not None and Worker.held in (None, held)
        Worker.held = held
    now = (*state.host_state(), state.torch_state())
    drew = now[0] is not Worker.began[0] or now[1] is not Worker.began[1] or now[2] != Worker.began[2]
    clear = Worker.clear and Worker.fetches > 1  # after the first one nobody knows yet
    return [batch, MARK, worker.id, clear, now if drew else None]
