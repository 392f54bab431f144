"""Batches that loaders' workers deliver: noted without their numbers, and made of zeros when the run is made again.

There no worker is started: an iterator without workers stands in, and draws the same indices at the same time. At the
snapshot's step those that are amid their epoch get their workers, each in the state in which the one before it was when
it had made its last batch. So a worker hands the states of its generators over with each batch, if it draws at all; and
whether it leaves its data set as it found it, looked at after 1, 2, 4, 8 ... batches. If not, it is started as ever.
"""

from __future__ import annotations

import base64
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from overdrive.core.rng import States
from overdrive.survive.batches import Batches, key_of
from overdrive.survive.in_workers import MARK, Worker
from overdrive.survive.journaled_run import FetchingRun, next_entry

DELIVERED = "delivered"  # the kind of an entry: number of the epoch, key, structure
Told = dict[str, Any]


@dataclass
class _Epoch:
    """One epoch of a loader with workers.

    Attributes:
        states: of each worker's generators, as they were after its last batch; None where they are as seeded.
        clear: whether each worker leaves the data set as it was.
        stands_in: whether it has no workers now.
    """

    number: int
    loader: Any
    iterator: Any = lambda: None  # a weak reference
    delivered: int = 0
    states: dict[int, Any] = field(default_factory=dict)
    clear: dict[int, bool] = field(default_factory=dict)
    stands_in: bool = False
    held: str | None = None  # what the data set held in this process when it was opened
    seed: int = 0


class Deliveries:
    def __init__(self, run: FetchingRun, batches: Batches) -> None:
        self._run, self._batches = run, batches
        self._opened = 0
        self._epochs: list[_Epoch] = []  # that may be under way
        self._untold: set[int] | None = None  # of which a batch cannot be made of zeros
        self._noted, self._again = run.guarded(self._note), run.guarded(self._made_again)
        self.going: dict[str, Any] = {}  # by number: epochs that were under way at the snapshot

    def opened(self, loader: Any, call: Callable[[], Any]) -> Any:
        """Around a loader's opening."""
        from overdrive.seams.torch import passed_iterators

        if self._run.aside():
            self._run.by_thread()
            return call()
        if not passed_iterators.suits(loader):
            return call()
        epoch = _Epoch(self._opened, weakref.ref(loader))
        self._opened += 1
        if self._run.replaying and self._stands_in(epoch):
            from overdrive.survive import data_sets

            epoch.stands_in, epoch.held = True, data_sets.digest_of([loader.dataset])
            iterator = passed_iterators.stand_in(loader, call, lambda indices: self._again(epoch, indices)[0])
        else:
            with Worker.hands:
                iterator = passed_iterators.open_passed(loader, call, self._passing(epoch))
        epoch.seed = passed_iterators.seed_of(iterator)
        living = [(each, each.iterator()) for each in self._epochs]
        epoch.states = next((each.states for each, found in living if found is iterator), {})
        epoch.iterator = weakref.ref(iterator)
        self._epochs = [*(each for each, found in living if found is not None and found is not iterator), epoch]
        return iterator

    def _stands_in(self, epoch: _Epoch) -> bool:
        if self._untold is None:
            entries = self._run.journal.to_come
            self._untold = {each[1] for each in entries if each[0] == DELIVERED and each[3] is None}
        going = self.going.get(str(epoch.number))
        clear = going is None or going["clear"]
        return self._run.skips_fetches and clear and epoch.number not in self._untold and not self._run.warming

    def _passing(self, epoch: _Epoch) -> Callable[[Any, Any], Any]:
        def passing(indices: Any, data: Any) -> Any:
            if type(data) is not list or len(data) != 5 or data[1] != MARK:
                epoch.clear[-1], batch = False, data  # of a worker that was not forked
            else:
                batch, _, worker, epoch.clear[worker], epoch.states[worker] = data
            epoch.delivered += 1
            if not self._run.aside():
                if self._run.replaying:
                    self._again(epoch, indices)
                else:
                    self._noted(epoch, indices, batch)
            return batch

        return passing

    def _note(self, epoch: _Epoch, indices: Any, batch: Any) -> None:
        structure = self._batches.structure_of(-2 - epoch.number, batch)
        self._run.journal.add(DELIVERED, epoch.number, key_of(indices), structure)

    def _made_again(self, epoch: _Epoch, indices: Any) -> tuple[Any]:
        entry = next_entry(self._run, DELIVERED, "a batch of a worker")
        if entry[1:3] != [epoch.number, key_of(indices)]:
            self._run.begin_anew("it fetches another batch than it did")
        if not epoch.stands_in:
            return (None,)
        epoch.delivered += 1
        return (self._batches.made(-2 - epoch.number, entry[3]),)

    # -- snapshots --------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """The epochs that are under way, as JSON."""
        from overdrive.seams.torch.passed_iterators import is_over

        self._epochs = [each for each in self._epochs if each.iterator() is not None and not is_over(each.iterator())]
        return {str(each.number): _told(each) for each in self._epochs}

    def go_on(self, going: dict[str, Any]) -> None:
        """Have those that stand in start their workers. All numbers are put back by now.

        Raises:
            OtherState: another epoch is under way than at the snapshot.
        """
        from overdrive.seams.torch import passed_iterators
        from overdrive.survive import data_sets
        from overdrive.survive.refusals import OtherState

        standing = [each for each in self._epochs if each.stands_in and each.iterator() is not None]
        for epoch in standing:
            then, iterator, loader = going.get(str(epoch.number)), epoch.iterator(), epoch.loader()
            if then is None and not passed_iterators.is_left(iterator):
                continue
            if then is None or loader is None or then["delivered"] != epoch.delivered:
                raise OtherState("an epoch with workers is under way that was not")
            if data_sets.digest_of([loader.dataset]) != epoch.held:
                raise OtherState("a data set was changed while its workers were at work")
            epoch.stands_in, epoch.states = False, _of_told(then["states"])
            self._start(epoch, iterator, loader, then["seed"])

    def _start(self, epoch: _Epoch, iterator: Any, loader: Any, seed: int) -> None:
        from overdrive.seams.torch import passed_iterators

        programs, states = loader.worker_init_fn, dict(epoch.states)
        before, own = States.now(), loader.generator.get_state() if loader.generator is not None else None
        try:
            init = lambda number: _begin(number, programs, states.get(number))  # noqa: E731
            with Worker.hands:
                passed_iterators.become_workers(iterator, loader, epoch.delivered, seed, init, self._passing(epoch))
        finally:
            before.restore()
            if own is not None:
                loader.generator.set_state(own)


def _begin(number: int, programs: Callable[[int], Any] | None, states: Any) -> None:
    """In a worker that takes another one's place."""
    from overdrive.survive import state

    if programs is not None:
        programs(number)
    Worker.began = (*state.host_state(), state.torch_state())
    if states is not None:
        state.set_states(*states)


def _told(epoch: _Epoch) -> Told:
    states = {str(worker): _states_told(each) for worker, each in epoch.states.items()}
    return {"delivered": epoch.delivered, "seed": epoch.seed, "clear": all(epoch.clear.values()), "states": states}


def _states_told(states: Any) -> Any:
    if states is None:
        return None
    python, numpy, torch = states
    plain = States(python, numpy, None, []).plain()
    return [plain["python"], plain["numpy"], base64.b64encode(torch).decode()]


def _of_told(told: dict[str, Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for worker, each in told.items():
        if each is None:
            found[int(worker)] = None
            continue
        states = States.of_plain({"python": each[0], "numpy": each[1], "torch": None, "cuda": []})
        found[int(worker)] = (states.python, states.numpy, base64.b64decode(each[2]))
    return found
