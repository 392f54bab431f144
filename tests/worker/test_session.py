"""What a session does to the process it is in, beside its techniques."""

from __future__ import annotations

import contextlib
import gc
import os

import pytest

from overdrive.worker.session import Session


class Told:
    """Garbage that only a collection finds, and that says so."""

    def __init__(self, pipe: int) -> None:
        self.pipe, self.itself = pipe, self

    def __del__(self) -> None:
        os.write(self.pipe, b"collected")


def said_in_a_fork() -> bytes:
    read, write = os.pipe()
    gc.disable()
    try:
        Told(write)
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        os.write(write, b".")
        said = os.read(read, 100)
    finally:
        gc.enable()
    gc.collect()
    os.close(read)
    os.close(write)
    return said


@pytest.mark.parametrize(("within", "said"), [(True, b"."), (False, b"collected.")])
def test_what_a_worker_inherits_is_not_collected_there(within: bool, said: bytes) -> None:
    """A loader's iterator that an error holds in a cycle would stop its workers from there, and print an error."""
    with Session() if within else contextlib.nullcontext():
        assert said_in_a_fork() == said


def test_collecting_goes_on_after_a_fork_in_both() -> None:
    with Session():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and gc.isenabled()
        gc.disable()
        try:
            child = os.fork()
            if not child:
                os._exit(1 if gc.isenabled() else 0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and not gc.isenabled()
        finally:
            gc.enable()


LOADS = {"sample_cache": {}, "prefetch": {}, "tf32": {}}


@pytest.mark.parametrize(("loads", "idle"), [(False, ["sample_cache", "prefetch"]), (True, [])])
def test_what_waits_for_a_loader_has_nothing_to_do_without_one(loads: bool, idle: list[str]) -> None:
    torch = pytest.importorskip("torch")
    with Session(list(LOADS.items())) as session:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.randn(8, 2))
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=4) if loads else [(torch.randn(4, 2),)]:
            model(batch).sum().backward()
            optimizer.step()
    assert sorted(session.idle) == sorted(each for each in idle if each in session.active)
    assert session.idle or loads
