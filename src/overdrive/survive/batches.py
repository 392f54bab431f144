"""Batches that are fetched in this process: noted without their numbers, and made of zeros when the run is made again.

No number of a tensor counts there, so that nothing need be read, decoded and transformed; samplers draw as ever. What a
fetch changes besides is changed as well: words that it drew from Python's and NumPy's generators are drawn. Whether it
left the data set as it found it shows at the snapshot's step: if not, the run is made again with its fetches.

The first fetch of a data set is made, which opens its files, and so are the last: they leave them where they were.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from array import array
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.survive import words
from overdrive.survive.journal import Diverged, Entry
from overdrive.survive.journaled_run import next_entry

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.seams.points import Point
    from overdrive.survive.journaled_run import FetchingRun

# The kind of an entry: key, what was asked in it and is told again, number of the data set, structure, words drawn,
# whether its own tensors tell it the rest (the state of PyTorch's generator before it, where it draws from that).
BATCH = "batch"
_SAME = 0  # in the place of a structure: that of the batch before, from the same data set
_LAST = 2  # fetches of each data set that are made
_MOST = 1 << 16  # bytes of a structure that is noted: a batch may hold texts
_ALL = 1 << 27  # of all of them in one process
_READ = ("value", "shapes")  # what a data set asks its own tensors
_INT = {int}
_MANY = 256  # questions in a fetch, which take about as much room as a generator's state


class Batches:
    """
    Attributes:
        skipped: fetches that were left out.
    """

    def __init__(self, run: FetchingRun, passed_through: Callable[[], None]) -> None:
        self._run, self._passed_through = run, passed_through
        self.skipped = 0
        self._asked: list[Entry] = []  # in the fetch that is under way, or still to be asked in it
        self._within = False
        self._restful: tuple[Point, ...] = ()  # points where nobody is asked while its own tensors tell
        self._resting: Entry | None = None  # of the fetch that is under way, while its own tensors tell what it asks
        # Of data sets that drew or called a model in a fetch: what one asked whose questions were all noted, by number.
        self._asking: dict[int, int] = {}
        self._data_sets: dict[int, Any] = {}  # by number: a weak reference to each
        self._numbers: dict[int, int] = {}  # of these, by id
        self._structures: dict[int, Any] = {}  # the last one, by the data set's number
        self._signatures: dict[int, Any] = {}  # of the same batches
        self._left = _ALL
        self._to_come: Counter[int] | None = None
        self._seen: set[int] = set()
        self._noted, self._again = run.guarded(self._note_fetch), run.guarded(self._answer_fetch)
        self._told, self._over = run.guarded(self._note_batch), run.guarded(self._all_asked)
        self._begin, self._end = run.guarded(self._begin_fetch), run.guarded(self._end_fetch)

    def follow(self, seams: Seams) -> None:
        """PyTorch has arrived."""
        from overdrive.seams.torch.fetches import samples_of
        from overdrive.survive import state

        self._restful = seams.value_asked, seams.shape_asked
        self._samples_of, self._host_state, self._torch_state = samples_of, state.host_state, state.torch_state
        seams.samples_fetched.subscribe(self.fetched)

    def data_sets(self) -> list[Any]:
        """Those that live, in the order of their first fetch."""
        return [each for each in (found() for found in self._data_sets.values()) if each is not None]

    # -- what a fetch asks ------------------------------------------------------------------------

    def note(self, *entry: Any) -> bool:
        """Whether a fetch is under way, to which it now belongs."""
        if self._within:
            self._asked.append(list(entry))
        return self._within

    def answer(self, kind: str) -> tuple[bool, Entry | None]:
        """Whether a fetch is under way, and what it was told then.

        Raises:
            Diverged: it asked for something else.
        """
        if not self._within:
            return False, None
        if not self._asked or self._asked[0][0] != kind:
            raise Diverged("a fetch of samples asks for something else than it did")
        return True, self._asked.pop(0)

    def _rest(self, entry: Entry | None) -> None:
        self._resting = entry
        self._set_resting(entry is not None)

    def _set_resting(self, rests: bool) -> None:
        for point in self._restful:
            point.rest(rests)

    @property
    def rests(self) -> bool:
        """Whether a fetch is under way whose own tensors tell what it asks: they are to hold the right numbers."""
        return self._resting is not None

    def wake(self) -> None:
        """What is asked from here on in this fetch is noted: it calls a model, whose numbers do not count."""
        if self._resting is not None:
            self._asking[self._resting[3]] = 0
            self._end_rest()

    def _begin_fetch(self, entry: Entry) -> None:
        self._within, self._asked = True, entry[2]
        if isinstance(entry[6], str) and self._run.replaying:
            from overdrive.survive import state

            state.set_torch(entry[6])
        if entry[6]:
            self._rest(entry)

    def _end_fetch(self) -> None:
        self._within = False
        self._end_rest()

    def _end_rest(self) -> None:
        entry = self._resting
        if entry is None:
            return
        self._rest(None)
        if not self._run.replaying and self._torch_state() != self._before[1]:
            from overdrive.survive import state

            entry[6] = state.torch_told(self._before[1])
            self._asking.setdefault(entry[3], 0)

    # -- the fetch --------------------------------------------------------------------------------

    def fetched(self, subject: Any, call: Callable[[], Any]) -> Any:
        """Around a fetch; an error in it is the program's."""
        data_set = self._samples_of(subject[0])
        if data_set is None or self._run.aside():
            return self._beside(data_set, call)
        over = self._told
        if not self._run.replaying:
            entry = self._noted(data_set, subject[1])
        else:
            entry, over = self._again(data_set, subject[1]), self._over
            if (made := self._skipped(entry)) is not None:
                return made[0]
            self._begin(entry)
        try:
            result = call()
        except BaseException:
            self._end()
            raise
        over(entry, result)
        return result

    def _beside(self, data_set: Any, call: Callable[[], Any]) -> Any:
        """A fetch of which nothing is noted here."""
        from overdrive.seams.torch.fetchers import in_worker
        from overdrive.survive.in_workers import hand_over

        if not in_worker():
            self._run.by_thread()
            return call()
        self._set_resting(True)  # for good: nothing that a worker asks is ever noted
        return hand_over(data_set, call) if data_set is not None else call()

    def _note_fetch(self, data_set: Any, indices: Any) -> Entry:
        number = self._number_of(data_set)
        own = self._asking.get(number, _MANY) >= _MANY
        entry = self._run.journal.add(BATCH, key_of(indices), [], number, None, None, own)
        self._before = self._host_state(), self._torch_state(), self._run.journal.count
        self._begin_fetch(entry)
        return entry

    def _note_batch(self, entry: Entry, batch: Any) -> None:
        self._end_fetch()
        host, drawn, count = self._before
        if self._run.journal.count != count:  # it called a model
            return
        if not entry[6]:
            besides = [each for each in entry[2] if each[0] not in _READ]
            self._asking[entry[3]] = len(entry[2]) - len(besides)
            if self._torch_state() == drawn:  # it just read: its own tensors hold the right numbers the next time, too
                entry[2], entry[6] = besides, True
        after = self._host_state()
        if after[0] is not host[0] or after[1] is not host[1]:
            entry[5] = words.between(host, after)
            if entry[5] is None:
                return
        entry[4] = self.structure_of(entry[3], batch)

    def structure_of(self, number: int, batch: Any) -> Any:
        """None where the batch cannot be made again without a fetch."""
        from overdrive.survive import structure

        signature = structure.signature(batch)
        if signature is not None and self._signatures.get(number) == signature:
            return _SAME
        self._signatures.pop(number, None)
        try:
            told = structure.told_alone(batch)
        except structure.CannotTell:
            return None
        if self._structures.get(number) == told:
            self._signatures[number] = signature
            return _SAME
        size = len(json.dumps(told))
        if size > min(_MOST, self._left):
            return None
        self._left -= size
        self._structures[number], self._signatures[number] = told, signature
        return told

    def _number_of(self, data_set: Any) -> int:
        number = self._numbers.get(id(data_set))
        if number is not None and self._data_sets[number]() is data_set:
            return number
        try:
            found = weakref.ref(data_set)
        except TypeError:  # a list or the like, which keeps no place
            return -1
        number = self._numbers[id(data_set)] = len(self._data_sets)
        self._data_sets[number] = found
        return number

    def _answer_fetch(self, data_set: Any, indices: Any) -> Entry:
        if self._to_come is None:
            self._to_come = Counter(each[3] for each in self._run.journal.to_come if each[0] == BATCH)
        entry = next_entry(self._run, BATCH, "a batch")
        if entry[1] != key_of(indices) or entry[3] != self._number_of(data_set):
            self._run.begin_anew("it fetches another batch than it did")
        self._to_come[entry[3]] -= 1
        return entry

    def _skipped(self, entry: Entry) -> tuple[Any] | None:
        """The batch of zeros; None where it is to be fetched."""
        number, told, drawn = entry[3:6]
        if told is not None and told != _SAME:
            self._structures[number] = told
        assert self._to_come is not None
        first, last = number not in self._seen, self._to_come[number] < _LAST
        self._seen.add(number)
        if told is None or first or last or self._run.warming or not self._run.skips_fetches:
            return None
        if drawn is not None:
            words.draw(drawn)
        return (self.made(number, told),)

    def made(self, number: int, told: Any) -> Any:
        """A batch of zeros. `number`: of where it is from, as it was given when this was told."""
        from overdrive.survive import structure

        self.skipped += 1
        if told != _SAME:
            self._structures[number] = told
        return structure.made(self._structures[number], (), self._passed_through)

    def _all_asked(self, entry: Entry, batch: Any) -> None:
        self._end_fetch()
        if self._asked:
            self._run.begin_anew("a fetch of samples asks for less than it did")


def key_of(indices: Any) -> str:
    """Of a batch, which may be of thousands."""
    if type(indices) is list and set(map(type, indices)) == _INT:
        try:  # `suppress` takes as long as the sum
            return hashlib.blake2b(array("q", indices), digest_size=6).hexdigest()
        except OverflowError:
            pass
    return hashlib.blake2b(repr(indices).encode(errors="replace"), digest_size=6).hexdigest()
