"""The part of a step that is compared: from the fork to where its optimizer has stepped, or it asks for a batch.

It is the same in the program and in its copies; a copy ends with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from overdrive.core.rng import States
from overdrive.seams.hub import Seams
from overdrive.seams.points import OBSERVER, reason_of
from overdrive.worker.replay import DISTURBANCE
from overdrive.worker.sentinels.processes import Copy
from overdrive.worker.sentinels.replay import Picture, SentinelReplay
from overdrive.worker.session import Session
from overdrive.worker.switching import switch

if TYPE_CHECKING:
    from overdrive.worker.torch.picture import Subject

OWNER = f"{OBSERVER} of steps"
NEXT_BATCH, STEPPED = "it asks for the next batch", "its optimizer has stepped"  # where it ends


class Segment:
    """`copy`: in a process in which the step is made again. Someone else is to want losses and batches all the time:
    only then do the seams tell of them."""

    def __init__(self, session: Session, subject: Subject, replay: SentinelReplay, copy: Copy | None) -> None:
        self._session = session
        self._seams: Seams = session.seams
        self._subject = subject
        self._replay = replay
        self._copy = copy
        self._losses: list[float] = []
        if copy is not None:
            self._make_way(copy)
        if replay.needs_values:
            subject.note()
        with self._seams.owned_by(OWNER):
            self._seams.loss_backward.subscribe(self._sent)
            self._seams.batch_awaited.subscribe(self._awaited)

    def _make_way(self, copy: Copy) -> None:
        try:
            self._switch_off(copy, copy.way.off)
            if copy.way.seed:
                self._subject.disturb(DISTURBANCE, copy.way.seed)
            self._left_out = set(self._seams.left_out)
        except BaseException as error:
            copy.leave(reason_of(error))

    def _switch_off(self, copy: Copy, names: Collection[str]) -> None:
        before = set(self._seams.left_out)
        on = [name for name in self._session.active if name not in names and self._session.handles[name].active]
        switch(self._session, on)
        if set(self._seams.left_out) != before:
            copy.leave("a technique could not be switched off")

    def _sent(self, loss: Any) -> Any:
        self._losses.append(float(loss.detach().double().mean()))
        return loss

    def _awaited(self, iterator: Any, call: Callable[..., Any], *args: Any) -> Any:
        """A copy must not take the next batch from workers, nor wait for a thread of ours."""
        self.end(NEXT_BATCH)
        return call(*args)

    def end(self, where: str) -> None:
        """Keep what the program came to, or tell it."""
        replay = self._replay
        if replay.mine is not None:
            return
        began_at = time.perf_counter()
        try:
            if self._copy is not None and set(self._seams.left_out) != self._left_out:
                self._copy.leave("a technique was left out in it")
            picture = self._picture(where)
            if self._copy is not None:
                self._copy.tell(picture.plain())
            replay.mine = picture
        except Exception as error:
            if self._copy is not None:
                self._copy.leave(reason_of(error))
            replay.failed = reason_of(error)
        self.close()
        replay.in_program += time.perf_counter() - began_at

    def _picture(self, where: str) -> Picture:
        replay, subject = self._replay, self._subject
        return Picture(
            where,
            tuple(self._losses),
            States.now().digest(),
            subject.bits() if replay.needs_bits else {},
            subject.values() if replay.needs_values else {},
        )

    def close(self) -> None:
        self._seams.loss_backward.unsubscribe(self._sent)
        self._seams.batch_awaited.unsubscribe(self._awaited)
