"""The kinds of places in a running program: what happened, what passes through, a call, a question.

Each holds its subscribers. One that fails is dropped together with its technique, by name and with the reason: it never
fails the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

OBSERVER = "observer"  # how the owners of subscribers that only watch are called, or how their names begin
_MOST_LETTERS = 200  # of an error's message
# Errors by which a framework ends a call of its own from within an operation: no technique failed. Its seams add them.
ENDS_A_CALL: set[type[BaseException]] = set()


class Hub(Protocol):
    """What a point asks of its session."""

    owner: str  # of what is subscribed now
    off: set[str]  # techniques that are switched off
    changes: int  # how often who is told of something has become another

    def leave_out(self, owner: str, reason: str) -> None: ...


class Again(Exception):
    """What a technique raises around a model's call that it had better not touched, and will not touch the next time:
    the call is undone and made again, and the technique stays."""


class Failing(BaseException):
    """A technique failed around a call that is undone as a whole and made again (`Around(undone=True)`).

    No `Exception`: what others do around the same call ends on its way out, and none takes it for the program's own.

    Args:
        reason: why it is left out; nothing where it asks for the call to be made `Again`.
    """

    def __init__(self, owner: str, reason: str) -> None:
        super().__init__(owner, reason)
        self.owner, self.reason = owner, reason


@dataclass(frozen=True, slots=True)  # slots are quicker to read
class Subscriber:
    owner: str  # the technique it belongs to, or OBSERVER
    act: Callable[..., Any]
    always: bool = False  # told while its technique is switched off, too
    innermost: bool = False
    replays: bool = False  # it may carry out what is inside of it without calling it
    # Asked first, where nobody is outside of it, with (subject, args, kwargs): gives the result, or None.
    ahead: Callable[..., Any] | None = None


class Point:
    """A place in the program's run that subscribers wait for.

    Attributes:
        rests: nobody is asked for now. Only seams that are come to many times a step look at it.
        reached: the program has come here.
    """

    def __init__(self, hub: Hub, always: bool = False) -> None:
        """`always`: who is switched off is told here all the same, since it will be on again."""
        self.hub = hub
        # Who is told: not those that are switched off. Never changed in place, so that it can be gone through while
        # somebody subscribes.
        self.subscribers: list[Subscriber] = []
        self.techniques: list[str] = []  # their owners, each once, without the observers
        self.rests = self.reached = False
        self._always = always
        self._all: list[Subscriber] = []

    def rest(self, rests: bool) -> None:
        """Of its one subscriber; where others share it they are asked all the same."""
        self.rests = rests and len(self.subscribers) == 1

    @property
    def wanted(self) -> bool:
        """Whether anyone waits here, switched off or not: then the framework is patched for it."""
        return bool(self._all)

    def waits(self, owner: str) -> bool:
        return any(each.owner == owner for each in self._all)

    def subscribe(
        self,
        act: Callable[..., Any],
        always: bool = False,
        replays: bool = False,
        ahead: Callable[..., Any] | None = None,
    ) -> None:
        """
        Args:
            always: while the technique is switched off, too.
            replays: it may carry out a call without calling what is inside of it: observers act outside of it.
            ahead: where nobody acts outside of it, asked before the call is prepared to be undone, which takes 30 us,
                with (subject, args, kwargs): gives the call's result, or None.
        """
        self._all.append(Subscriber(self.hub.owner, act, always or self._always, replays=replays, ahead=ahead))
        self.select()

    def subscribe_innermost(self, act: Callable[..., Any]) -> None:
        """As `subscribe`; but in a call it acts closest to the program, and sees what all others made of it.

        An observer acts just outside of a technique that replays calls: inside it would be called while a call is
        recorded, which what it reads may end, and in no replay.
        """
        self._all.insert(0, Subscriber(self.hub.owner, act, self._always, innermost=True))
        self.select()

    def unsubscribe(self, act: Callable[..., Any]) -> None:
        self._all = [each for each in self._all if each.act != act]
        self.select()

    def forget(self, owner: str | None = None) -> None:
        """Drop the subscribers of `owner`, or all."""
        self._all = [each for each in self._all if owner is not None and each.owner != owner]
        self.select()

    def select(self) -> None:
        """Find anew who is told."""
        self.hub.changes += 1
        told = [each for each in self._all if each.always or each.owner not in self.hub.off]
        watching = [each for each in told if each.innermost and _observes(each)]
        acting = [each for each in told if each not in watching]
        outside = max((place + 1 for place, each in enumerate(acting) if each.replays), default=0)
        self.subscribers = [*acting[:outside], *watching, *acting[outside:]]
        self.techniques = list(dict.fromkeys(each.owner for each in self.subscribers if not _observes(each)))


def _observes(subscriber: Subscriber) -> bool:
    return subscriber.owner.startswith(OBSERVER)


class Event(Point):
    """Something happened; subscribers are told, and what they return is ignored."""

    def publish(self, *subject: Any, to: Callable[[str], bool] | None = None) -> None:
        """`to`: which owners' subscribers are told; all, where it is not given."""
        hub, self.reached = self.hub, True
        for subscriber in self.subscribers:
            if to is not None and not to(subscriber.owner):
                continue
            before, hub.owner = hub.owner, subscriber.owner  # by hand: `owned_by` costs 1 us, many times a step
            try:
                subscriber.act(*subject)
            except Exception as error:
                hub.leave_out(subscriber.owner, reason_of(error))
            finally:
                hub.owner = before


class Transform(Point):
    """Something passes through; each subscriber may hand on another thing in its place."""

    def apply(self, thing: Any) -> Any:
        self.reached = True
        for subscriber in self.subscribers:
            try:
                thing = subscriber.act(thing)
            except Exception as error:
                self.hub.leave_out(subscriber.owner, reason_of(error))
        return thing


class Around(Point):
    """A call; each subscriber may act before and after it, and change what goes in and comes out.

    A subscriber is `act(subject, call, *args, **kwargs)`. An error that `call` itself raised is the
    program's own and passes; any other is the subscriber's, which is dropped. Where it had made the call, the result
    stands: the call may have had effects. Else it is made without the subscriber.
    """

    def __init__(self, hub: Hub, undone: bool = False) -> None:
        """`undone`: who runs it can undo the call. Where a technique fails while it runs, it is told so by `Failing`,
        undoes all of it and runs it again: what was made of arguments, surroundings or result is of no use then."""
        super().__init__(hub)
        self._undone = undone

    def answered_ahead(self, subject: Any, args: Any, kwargs: Any) -> Any:
        """The result, where the outermost subscriber has it without the call; else None, which no model returns."""
        if not self.subscribers or (outermost := self.subscribers[-1]).ahead is None:
            return None
        self.reached = True
        try:
            return outermost.ahead(subject, args, kwargs)
        except Exception as error:
            self.hub.leave_out(outermost.owner, reason_of(error))
            return None

    def run(self, subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.reached = True
        runs = [self._undone]  # a technique may call it again later, in a backward pass
        for subscriber in self.subscribers:
            call = self._guarded(subscriber, subject, call, runs)
        if not self._undone:
            return call(*args, **kwargs)
        try:
            return call(*args, **kwargs)
        finally:
            runs[0] = False

    def inside(self, owner: str, subject: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call as `owner` would make it: with the techniques that act inside of it."""
        for subscriber in self.subscribers:
            if subscriber.owner == owner or _observes(subscriber):
                break
            call = self._guarded(subscriber, subject, call, [False])
        return call

    def _guarded(
        self, subscriber: Subscriber, subject: Any, call: Callable[..., Any], runs: list[bool]
    ) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            outcome: dict[str, Any] = {}

            def inner(*inner_args: Any, **inner_kwargs: Any) -> Any:
                try:
                    outcome["result"] = call(*inner_args, **inner_kwargs)
                except BaseException as error:
                    outcome["error"] = error
                    raise
                return outcome["result"]

            try:
                return subscriber.act(subject, inner, *args, **kwargs)
            except Exception as error:
                if error is outcome.pop("error", None):  # kept there it would hold itself, and all that its call held
                    raise
                reason = "" if isinstance(error, Again) else reason_of(error)
                if runs[0] and not _observes(subscriber):
                    raise Failing(subscriber.owner, reason) from error
                if reason:
                    self.hub.leave_out(subscriber.owner, reason)
                return outcome["result"] if "result" in outcome else call(*args, **kwargs)

        return guarded


class Answer(Point):
    """An operation that a subscriber may carry out in its own way: the first answer stands, None is no answer.

    Attributes:
        came: it was come to since somebody set this back.
    """

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.came = False

    def ask(self, *subject: Any) -> Any:
        self.came = self.reached = True
        return None if self.rests else self._first_answer(self.subscribers, subject)

    def ask_others(self, owner: str, *subject: Any) -> Any:
        """Of those that are asked after `owner`, which makes its own answer of theirs."""
        subscribers = self.subscribers
        after = max((place + 1 for place, each in enumerate(subscribers) if each.owner == owner), default=0)
        return self._first_answer(subscribers[after:], subject)

    def _first_answer(self, subscribers: list[Subscriber], subject: tuple[Any, ...]) -> Any:
        for subscriber in subscribers:
            try:
                answer = subscriber.act(*subject)
            except Exception as error:
                if type(error) in ENDS_A_CALL:
                    raise
                self.hub.leave_out(subscriber.owner, reason_of(error))
                continue
            if answer is not None:
                return answer
        return None


def reason_of(error: BaseException) -> str:
    """An error as a reason in one line: its type and the first line of its message, of a long one the first sentences.

    PyTorch's dispatcher, say, tells in one line of a thousand letters what an operator is there for.
    """
    first = str(error).strip().split("\n", 1)[0]
    if len(first) > _MOST_LETTERS:
        whole, end, _ = first[:_MOST_LETTERS].rpartition(". ")
        first = whole if end else f"{first[: _MOST_LETTERS - 1]}…"
    name = type(error).__name__
    return first if name in ("CannotInstall", "NotHere") else f"{name}: {first}" if first else name
