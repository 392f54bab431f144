"""What calls return and set, noted while a run is recorded."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from overdrive.seams.torch.internals import id_of, storage_id
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
        around = (given, list(model.parameters())) if found else ()
        for _ in range(2):  # with all that was set, or else with what can be told of it
            if not found:
                break
            with contextlib.suppress(structure.CannotTell):
                told = structure.told([result, *(value for _, value in found)], around)
                journal.add(kind, told, [place for place, _ in found])
                return
            found = [each for each in found if _can_be_told(each[1], around)]
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


def _can_be_told(value: Any, given: Any) -> bool:
    with contextlib.suppress(structure.CannotTell):
        structure.told(value, given)
        return True
    return False


def _form_alone(result: Any, given: Any) -> Any:
    """Of tensors each of which has a memory of its own, which nothing that was given shares; None of anything else."""
    tensors: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    skeleton = _skeleton(result, tensors, ())
    if skeleton is None or _skeleton(given, others, _PLAIN) is None:
        return None
    form, memories = [skeleton], set()
    try:
        for each in tensors:
            memory = each.untyped_storage()
            if each.layout is not torch.strided or memory.nbytes() != each.nbytes:
                return None
            memories.add(id_of(memory))
            place = each.shape, each.stride(), each.storage_offset()
            form.append((place, each.dtype, each.device, each.requires_grad))
    except (RuntimeError, NotImplementedError):  # one has no memory of its own
        return None
    if len(memories) < len(tensors):
        return None
    for each in others:
        if each.layout is not torch.strided or storage_id(each) in memories:
            return None
    return tuple(form)


def _skeleton(thing: Any, tensors: list[torch.Tensor], plain: tuple[type, ...]) -> Any:
    """Equal for what is built alike of tensors, None and what is `plain` in tuples, lists and dicts (these in what was
    given alone); None where there is anything else. Fills `tensors`."""
    kind = type(thing)
    if kind in (tuple, list) or (plain and kind is dict):
        parts = [_skeleton(each, tensors, plain) for each in (thing.values() if kind is dict else thing)]
        return None if None in parts else (kind, *parts)
    if isinstance(thing, torch.Tensor):
        tensors.append(thing)
        return kind
    return kind if thing is None or kind in plain else None
