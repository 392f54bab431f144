"""What calls return and set, noted while a run is recorded."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from overdrive.seams.torch.internals import storage_id
from overdrive.survive import structure
from overdrive.survive.journal import NOTHING, Journal
from overdrive.survive.set_in_calls import SetInCalls

_PLAIN = (bool, int, float, str, type(None))
_MOST = 1000  # forms that are known: a length may be another one in each step


class Results:
    """Of one run.

    Attributes:
        set: hears of attributes that calls set.
    """

    def __init__(self) -> None:
        self.set = SetInCalls()
        self._known: dict[Any, Any] = {}

    def note(self, journal: Journal, kind: str, result: Any, given: Any, model: Any) -> None:
        """As an entry of this kind. What a call set and cannot be told shows when the run is made again.

        Raises:
            CannotTell: see `structure.told`.
        """
        found = self.set.found(model) if model is not None else []
        if found:
            values, places = [value for _, value in found], [place for place, _ in found]
            with contextlib.suppress(structure.CannotTell):
                of_all = structure.told([result, *values], (given, list(model.parameters())))
                journal.add(kind, of_all, places)
                return
        journal.add(kind, self.told(result, given))

    def told(self, result: Any, given: Any) -> Any:
        """As `structure.told`; of one that looks like an earlier one what was told then, in a fifth of the time.

        Raises:
            CannotTell: see `structure.told`.
        """
        if result is None:
            return NOTHING
        form = _form_alone(result, given)
        if form is None:
            return structure.told(result, given)
        found = self._known.get(form)
        if found is None:
            found = structure.told(result, given)
            if len(self._known) < _MOST:
                self._known[form] = found
        return found


def _form_alone(result: Any, given: Any) -> Any:
    """Of tensors each of which has a memory of its own, which nothing that was given shares; None of anything else."""
    tensors: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    if not _flatten(result, tensors, ()) or not _flatten(given, others, _PLAIN):
        return None
    if any(each.layout is not torch.strided for each in (*tensors, *others)):
        return None
    abouts = []
    try:
        for each in tensors:
            if each.untyped_storage().nbytes() != each.nbytes:
                return None
            place = each.shape, each.stride(), each.storage_offset()
            abouts.append((place, each.dtype, each.device, each.requires_grad, type(each)))
    except (RuntimeError, NotImplementedError):  # one has no memory of its own
        return None
    memories = {storage_id(each) for each in tensors}
    shared = len(memories) < len(tensors) or any(storage_id(each) in memories for each in others)
    return None if shared else (_skeleton(result), *abouts)


def _flatten(thing: Any, tensors: list[torch.Tensor], plain: tuple[type, ...]) -> bool:
    """Whether there is nothing but tensors, None and what is `plain` in tuples, lists and dicts; fills `tensors`."""
    if isinstance(thing, torch.Tensor):
        tensors.append(thing)
        return True
    if type(thing) in (tuple, list):
        return all(_flatten(each, tensors, plain) for each in thing)
    if type(thing) is dict:
        return bool(plain) and all(_flatten(each, tensors, plain) for each in thing.values())
    return thing is None or type(thing) in plain


def _skeleton(result: Any) -> Any:
    return (type(result), *map(_skeleton, result)) if type(result) in (tuple, list) else result is None
