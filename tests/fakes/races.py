"""Who has waited for whom: finds work on streams, and touches by the host, that nothing keeps in order.

Each stream and the host has a clock, and knows of the others' clocks what it has waited for. Work that touches memory
must know of all that it has to come after: a write after every touch before it, a read after the last write. On a real
GPU such a race shows once in a thousand runs; here it shows in each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HOST = "host"
Clocks = dict[str, int]


class Race(RuntimeError):
    """Two touches of the same memory that may come in either order."""


@dataclass
class _Memory:
    wrote: tuple[str, int] | None = None
    read: Clocks = field(default_factory=dict)
    home: str = HOST  # the stream that it was allocated on, to which the allocator may give it again
    recorded: set[str] = field(default_factory=set)  # streams that the allocator was told of


class Order:
    def __init__(self) -> None:
        self._now: Clocks = {HOST: 0}
        self._known: dict[str, Clocks] = {HOST: {}}
        self._memory: dict[int, _Memory] = {}
        self.found: list[str] = []

    def touch(self, actor: str, reads: set[int], writes: set[int], what: str) -> None:
        """
        Raises:
            Race: nothing keeps this in order with what came before.
        """
        known = self._knowledge(actor)
        if actor != HOST:
            _merge(known, self._known[HOST])  # it is launched after all that the host has waited for
            _merge(known, {HOST: self._now[HOST]})
        self._now[actor] += 1
        for key in reads | writes:
            memory = self._memory.setdefault(key, _Memory(home=actor))
            before = dict([memory.wrote]) if memory.wrote else {}
            if key in writes:
                before = {**memory.read, **before}
            late = [who for who, when in before.items() if who != actor and known.get(who, 0) < when]
            if late:
                self._raise(f"{what} on {actor} does not wait for what {late[0]} does with the same memory")
            if key in writes:
                memory.wrote, memory.read = (actor, self._now[actor]), {}
            else:
                memory.read[actor] = self._now[actor]

    def actors(self) -> list[str]:
        """The host, and the streams that had work."""
        return list(self._now)

    def waits(self, actor: str, clocks: Clocks) -> None:
        _merge(self._knowledge(actor), clocks)

    def at(self, actor: str) -> Clocks:
        """What one who waits for this actor now has waited for."""
        return {**self._knowledge(actor), actor: self._now[actor]}

    def done(self, clocks: Clocks) -> bool:
        """Whether the host has waited for all of it. On a real GPU it may be done before."""
        known = self._known[HOST]
        return all(known.get(who, 0) >= when for who, when in clocks.items() if who != HOST)

    def made(self, key: int, actor: str) -> None:
        """Fresh memory."""
        self._memory[key] = _Memory(home=actor)

    def record_stream(self, key: int, stream: str) -> None:
        self._memory.setdefault(key, _Memory(home=stream)).recorded.add(stream)

    def freed(self, key: int) -> None:
        """The allocator may hand it out again to its home stream, at once.

        Raises:
            Race: another stream may still be at work on it, and the allocator was not told.
        """
        memory = self._memory.pop(key, None)
        if memory is None or memory.home == HOST:
            return
        known = {**self._knowledge(memory.home)}
        _merge(known, self._known[HOST])
        touched = {**memory.read, **(dict([memory.wrote]) if memory.wrote else {})}
        for who, when in touched.items():
            if who not in (memory.home, HOST, *memory.recorded) and known.get(who, 0) < when:
                self._raise(f"memory of {memory.home} is freed while {who} may still use it (no record_stream)")

    def _knowledge(self, actor: str) -> Clocks:
        self._now.setdefault(actor, 0)
        return self._known.setdefault(actor, {})

    def _raise(self, what: str) -> None:
        self.found.append(what)  # who swallows the error does not hide the race
        raise Race(what)


def _merge(into: Clocks, more: Clocks) -> None:
    for who, when in more.items():
        into[who] = max(into.get(who, 0), when)
