"""A program that was written for the CPU, moved to a device when its first optimizer is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.seams.points import OBSERVER
from overdrive.seams.torch.functions import unseen
from overdrive.seams.torch.internals import forget_package
from overdrive.seams.torch.tracing import compiled
from overdrive.techniques.device.device.contact import Call, Contact, given_away
from overdrive.techniques.device.device.memo import Memo
from overdrive.techniques.device.device.place import Cuda, Place
from overdrive.techniques.device.device.residents import Residents

_LOOKS = 8
_KEPT_ELSEWHERE = 1 << 28  # bytes of copies on a device whose memory is not known


class Moved:
    """Subscribers of the seams. Before the first optimizer nothing is on the device, and nothing is looked at."""

    def __init__(self, seams: Seams, place: Callable[[], Place] | None, keep: float) -> None:
        self._seams = seams
        self._make_place = place
        self._keep = keep
        self._contact: Contact | None = None
        self._residents: Residents | None = None
        self._tf32 = False
        self._package: tuple[Any, ...] | None = None
        self._memo = Memo()
        self._looked: dict[int, int] = {}  # how often a module was looked at for compiled parts; -1: it has some

    def optimizer_made(self, optimizer: Any, models: list[Any]) -> None:
        if self._contact is None:
            self._start()
        assert self._residents is not None
        with unseen():  # what is done here is not the program's
            self._residents.optimizer(optimizer, models)

    def function_called(self, call: Call) -> Call:
        if self._contact is not None:
            return self._contact(call)
        if (given := given_away(call[0], call[1])) is not None:
            self._memo.given_away(given)
        return call

    def model_called(self, module: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        contact, residents = self._contact, self._residents
        if contact is None or residents is None:
            return call(*args, **kwargs)
        with unseen():
            if lives_there := residents.module(module):
                args, kwargs = contact.each(args, contact.send), contact.each(kwargs, contact.send)
        if not lives_there:
            return call(*args, **kwargs)
        if self._compiled(module):  # its compiler would look into the mode behind *function called*
            with unseen(), contact.place.made_there():
                return call(*args, **kwargs)
        before, contact.making = contact.making, True
        try:
            return call(*args, **kwargs)
        finally:
            contact.making = before

    def undo(self) -> None:
        if self._package is not None:
            with suppress(RuntimeError):  # the program has set it in the other of torch's two ways
                torch.backends.cudnn.allow_tf32 = self._tf32
            forget_package(self._package)
            self._package = None
        if self._contact is None or self._residents is None:
            return
        with unseen():
            self._residents.leave()
        self._contact.memo.clear()
        self._contact.home = True
        # What the program still holds there (a loss, a hidden state) comes back when it meets a tensor here.
        with self._seams.owned_by(OBSERVER):
            self._seams.function_called.subscribe(self._contact)

    def _start(self) -> None:
        if self._make_place is not None:
            place: Place = self._make_place()
            room = _KEPT_ELSEWHERE
        else:
            with suppress(RuntimeError):
                self._tf32 = torch.backends.cudnn.allow_tf32
                torch.backends.cudnn.allow_tf32 = False  # on by default, and of ten bits only
            place = Cuda()
            room = int(self._keep * torch.cuda.mem_get_info()[0])
            # Saved as if it were on the CPU: the file must open where there is no GPU.
            self._package = (5, lambda storage: "cpu" if storage.device.type == "cuda" else None, _none)
            torch.serialization.register_package(*self._package)
        self._memo.most = room
        self._contact = Contact(place, self._memo)
        self._residents = Residents(place)

    def _compiled(self, module: torch.nn.Module) -> bool:
        """Whether a part of it is compiled. Looked for in the first calls only: a large model has many parts."""
        looked = self._looked.get(id(module), 0)
        if 0 <= looked < _LOOKS:
            self._looked[id(module)] = looked + 1
            if any(map(compiled, module.modules())):
                self._looked[id(module)] = -1
        return self._looked[id(module)] < 0


def _none(*_: Any) -> None:
    return None
