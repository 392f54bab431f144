"""How data workers are started: in another way than the program's, on cores and with threads of their own."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from overdrive.core.rng import States
from overdrive.core.variables import variables_set
from overdrive.seams.points import reason_of
from overdrive.seams.torch.drawn_indices import begin
from overdrive.seams.torch.idle_workers import generator_of


class NoWorkers(Exception):
    """Workers do not start, or not in this way; the message is the reason."""


def start_methods() -> list[str]:
    return list(torch.multiprocessing.get_all_start_methods())


@dataclass(frozen=True)
class WorkerStart:
    """What a worker does first: take its core and threads, then what the program has for it to do."""

    spread: bool
    threads: int
    programs: Callable[[int], Any] | None

    def __call__(self, number: int) -> None:
        if self.spread:
            with contextlib.suppress(OSError, AttributeError):  # not on every system
                cores = sorted(os.sched_getaffinity(0))[1:]  # the first is left to the main thread
                if cores:
                    os.sched_setaffinity(0, {cores[number % len(cores)]})
        if self.threads > 1:
            os.environ["OMP_NUM_THREADS"] = str(self.threads)  # for what is loaded from here on
            torch.set_num_threads(self.threads)
        if self.programs is not None:
            self.programs(number)


@contextlib.contextmanager
def threads_of_children(count: int) -> Iterator[None]:
    """Processes that start inside load their libraries with so many threads, where that is more than one."""
    with variables_set({"OMP_NUM_THREADS": str(count)} if count > 1 else {}):
        yield


@contextlib.contextmanager
def script_not_run_again() -> Iterator[None]:
    """A new interpreter imports the script, and one without `if __name__ == "__main__"` would train once more."""
    names, space = ("__spec__", "__file__"), vars(sys.modules["__main__"])
    before = {name: space[name] for name in names if name in space}
    space.update(dict.fromkeys(before))
    try:
        yield
    finally:
        space.update(before)


def _look_for_the_script(loader: Any) -> None:
    """
    Raises:
        NoWorkers: what workers need is defined in the script.
    """
    # Worker functions and data sets of libraries are found by a new interpreter, those of the script are not.
    data = pickle.dumps((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    if b"__main__" in data:
        raise NoWorkers("workers that are not forked would have to run the script again, where the data set is defined")


def started(loader: Any, call: Callable[[], Any]) -> Any:
    """An iterator with workers, for a program that can do without these. Of its generators none has been drawn from
    where they do not start.

    Raises:
        NoWorkers: the system has no room for another process, say, or this process may have none.
    """
    generator = generator_of(loader)
    state = generator.get_state()
    try:
        return call()
    except Exception as error:
        _end_half_opened(error)
        generator.set_state(state)
        raise NoWorkers(f"workers cannot be started ({reason_of(error)})") from None


def _end_half_opened(error: Exception) -> None:
    """End what there is of the iterator that this error came from. It would wait for the garbage collector, and
    complain to standard error of what it does not have yet."""
    trace = error.__traceback__
    while trace is not None:
        iterator = trace.tb_frame.f_locals.get("self")
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            if "_workers_status" in vars(iterator):  # it is whole
                iterator._shutdown_workers()
            else:
                iterator._shutdown = True
                for worker in vars(iterator).get("_workers", ()):
                    worker.kill()
                    worker.join()
            return
        trace = trace.tb_next


def tried(loader: Any, call: Callable[[], Any]) -> Any:
    """An iterator whose first batch is here: what does not come up in a new interpreter shows only then.
    All random states are put back where it does not come.

    Raises:
        NoWorkers: it did not come.
    """
    states, own = States.now(), loader.generator.get_state() if loader.generator is not None else None
    iterator: Any = None
    try:
        _look_for_the_script(loader)
        iterator = call()
        if type(iterator) is _MultiProcessingDataLoaderIter:
            begin(iterator)  # earlier than the program: its sampler draws a seed now
            vars(iterator).update(overdrive_first=iterator._next_data())  # type: ignore[no-untyped-call]
            iterator.__class__ = _Trying
        return iterator
    except NoWorkers:
        raise
    except Exception as error:
        if iterator is not None:
            iterator._shutdown_workers()
        else:
            _end_half_opened(error)
        states.restore()
        if own is not None:
            loader.generator.set_state(own)
        first = str(error).strip().split("\n", 1)[0][:200]
        raise NoWorkers(f"workers started in another way fetch no batch ({type(error).__name__}: {first})") from None


class _Trying(_MultiProcessingDataLoaderIter):
    """torch's iterator with workers, the first batch of which has been taken already."""

    overdrive_first: Any

    def _next_data(self) -> Any:
        if "overdrive_first" in self.__dict__:
            return self.__dict__.pop("overdrive_first")
        return super()._next_data()  # type: ignore[no-untyped-call]
