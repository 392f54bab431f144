"""Technique `channels_last`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.seams.answering import AnsweringModel
from overdrive.techniques.technique import CannotInstall, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams
    from overdrive.techniques.technique import Settings


_ALONE = 2  # owners of a tensor's memory: it, and the handle to ask with
_VIEWS = ("view", "as_strided", "reshape")  # the last for all that makes a copy where it can make no view
_BY_STRIDES = ("view", "view_as")  # which can be made of some strides alone


class ChannelsLast(Technique):
    """Stores images and convolution weights with the channels innermost.

    What it does: when the optimizer is made, gives the model's four-dimensional weights the memory format
    `torch.channels_last`; the outermost call hands its image inputs on in that format. Shapes and indexing
    stay as they were.

    When it helps: convolutional networks: 1.1 to 1.6 times on a CPU, up to 1.7 times in half precision on
    a GPU with tensor cores.

    When it hurts: networks with few convolutions between operations that need the old format (each change
    is a copy). A program that needs the old format cannot use it, whenever it begins to: where `.view()` fails on a
    tensor in the other one, `as_strided` would read it, or what is written to the result of `reshape`, `flatten`,
    `ravel` or `contiguous()` of a weight, gradient or momentum would be lost, in the loop or in a hook, the format is
    put back, the view is made as the program meant it, and the technique is left out; where that is in the model's
    call, it is undone and made again. Weights whose memory somebody else refers to stay as they are: all of them where
    a program holds a `state_dict` whenever it calls its model (`state = model.state_dict()` in a loop).

    A `state_dict`, a copy and a pickle of a model or an optimizer are made in the usual format: libraries that refuse
    another one, or programs without it, read the files. What a program holds of a model's `state_dict` stays so for as
    long, and so do the weights, which it shares; of an optimizer's, until the next call of a model.

    What it watches: each call of the model; these functions, wherever the program calls them on a tensor in the other
    format; state and gradients before each step: state that was loaded is laid out as its weight is. What would escape:
    code in C++, or behind a pointer, that reads a weight's memory in order; what is written to
    `weight.numpy().reshape(-1)`; a program that asks for strides.

    Contract: rounding. The same products are summed in another order. It falls to statistical where a program
    draws dropout masks in the order of memory, or where a kernel for this layout is less exact (on a CPU, batch
    normalisation's backward pass came out four times as far from fp64).

    Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
    """

    name = "channels_last"
    programs = ("training", "inference")
    contract = Contract.ROUNDING
    fallback_contract = Contract.STATISTICAL
    targets = ("forward", "backward")
    expected_saving = 0.2
    switchable = True
    survives = True
    order = 30

    def applies(self, facts: Facts) -> str | None:
        return None if facts.convolutions else "the model has no convolution over images"

    def install(self, seams: Seams, settings: Settings) -> Handle:
        layout = _Layout()

        def left_out(optimizer: Any) -> None:
            if layout.refused:
                raise CannotInstall(layout.refused)

        seams.optimizer_made.subscribe(layout.made)
        seams.state_shown.subscribe(layout.show)
        seams.model_begins.subscribe(layout.hide)
        seams.model_called.subscribe(layout.called)
        seams.step_begins.subscribe(layout.stepping)
        for name in _VIEWS:
            seams.operator_called(name).subscribe(layout.viewed)
        seams.step_ends.subscribe(left_out)
        seams.on_undo(layout.off)
        return seams.handle(layout.on, layout.off)


class _Layout:
    """The four-dimensional weights of trained models, with what belongs to each: its gradient, its momentum."""

    def __init__(self) -> None:
        self.refused = ""  # why the program cannot use it, once that was found
        self._active = True
        self._calling = False
        self._shown: dict[int, weakref.ref[Any]] = {}  # weights that are in the usual format for now, by their ids
        self._optimizers: list[weakref.ref[Any]] = []
        self._models: list[weakref.ref[Any]] = []
        self._before: dict[int, _Before] = {}  # of weights, by their ids
        self._aside: dict[int, Any] = {}  # the memory of what is shown in the usual format now, by the tensor's id
        self._kernels: set[Any] = set()  # shapes of one output channel's weights

    def made(self, optimizer: Any, models: list[Any]) -> None:
        self._optimizers.append(weakref.ref(optimizer))
        self._models += map(weakref.ref, models)
        if self._active:
            self.on()

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._before:
            return call(*args, **kwargs)
        from overdrive.seams.torch.internals import writes_to
        from overdrive.seams.torch.layouts import in_channels_last

        given = [in_channels_last(each) for each in args]
        copies = [(own, each, writes_to(each)) for own, each in zip(args, given, strict=True) if each is not own]
        self._calling = True
        try:
            result = call(*given, **kwargs)
        finally:
            self._calling = False
        if self.refused:  # within this call, which is made again: what it wrote may be lost
            raise CannotInstall(self.refused)
        for own, copy, count in copies:
            if writes_to(copy) != count:
                _write_back(own, copy)
        return result

    def viewed(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A view that the program asks for, of what may lie otherwise than it thinks."""
        tensor, name = args[0], call.__name__
        if tensor.is_contiguous() or not (self._before or self.refused):
            return None
        from overdrive.seams.torch.layouts import has_channels_last

        if not has_channels_last(tensor):
            return None
        if name == "as_strided":
            if tensor.dim() != 4:
                return None
        elif name in _BY_STRIDES:
            with suppress(RuntimeError):
                return call(*args, **kwargs)  # some can be made all the same
        elif not self._is_lost(name, tensor, call, args, kwargs):
            return None
        found = call(self._in_usual_format(tensor), *args[1:], **kwargs)  # or it fails by itself
        self.refused = f"the program calls .{name}() on a tensor that it needs in the usual format"
        return found

    def _is_lost(self, name: str, tensor: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        """Whether what the program writes to the result would be written to a weight, or to what belongs to one, in the
        usual format, and now to a copy. Activations are copied, and what has a graph can only be read so."""
        import torch

        if tensor.requires_grad and (self._calling or torch.is_grad_enabled()):
            return False
        if tensor.shape[-3:] not in self._kernels or (name == "contiguous" and (kwargs or len(args) > 1)):
            return False
        from overdrive.seams.torch.internals import storage_id

        memory = storage_id(tensor)
        if all(storage_id(each) != memory for each in self._laid_out()):
            return False
        return storage_id(call(*args, **kwargs)) != memory  # some are views all the same

    def stepping(self, optimizer: Any) -> None:
        """State that was loaded lies as its checkpoint has it, and a gradient that was made by hand as the program
        thinks. Fused kernels for CPUs mix up what lies otherwise than its weight, those for GPUs refuse it."""
        from overdrive.seams.torch.layouts import lie_alike
        from overdrive.seams.torch.optimizer_state import state_of

        if isinstance(optimizer, AnsweringModel):
            return
        states, fused = state_of(optimizer), any(group.get("fused") for group in optimizer.param_groups)
        for tensor, usual in self._weights():
            held = [each for each in states.get(tensor, {}).values() if getattr(each, "shape", None) == tensor.shape]
            held += [tensor.grad] if fused and tensor.grad is not None else []
            for strides in (tensor.stride(), usual):  # the usual, where the program holds what would be laid out
                if all(lie_alike(each, tensor) for each in held):
                    break
                self._lay_out(tensor, strides)

    def _in_usual_format(self, tensor: Any) -> Any:
        """The same tensor where it is one that was laid out; what shares its memory otherwise. A copy of any other."""
        import torch

        from overdrive.seams.torch.internals import storage_id

        memory, owner, begin = storage_id(tensor), None, 0
        for each in self._laid_out():
            if storage_id(each) == memory and (owner is None or each is tensor):
                owner, begin = each, tensor.storage_offset() - each.storage_offset()
        if not self._calling:
            self.off(tensor)
        if owner is tensor and owner.is_contiguous():
            return tensor
        if owner is None or not owner.is_contiguous() or tensor.requires_grad:  # a part that has a graph is only read
            return tensor.contiguous()
        # It may be some of the weight's filters: these begin where they began.
        strides = torch.empty(tensor.shape, device="meta").stride()
        return owner.detach().as_strided(tensor.shape, strides, begin)

    def _laid_out(self) -> list[Any]:
        found = []
        for tensor, _ in self._weights():
            found += [each for each in self._with_it(tensor) if each is not None]
        return found

    def on(self) -> None:
        import torch

        from overdrive.seams.torch.layouts import strides_of

        if self.refused:
            return
        self._active = True
        for model in filter(None, (each() for each in self._models)):
            for tensor in (*model.parameters(), *model.buffers()):
                known = self._before.get(id(tensor))
                if tensor.dim() == 4 and (known is None or known.tensor() is not tensor):
                    self._before[id(tensor)] = _Before(weakref.ref(tensor), tensor.shape, tensor.stride())
                    self._kernels.add(tensor.shape[1:])
                    self._lay_out(tensor, strides_of(tensor.shape, torch.channels_last))

    def off(self, asked: Any = None) -> None:
        """`asked`: a tensor of which a view is asked. It, and what it is a part of, may own the memory, too."""
        self._active = False
        for tensor, usual in self._weights():
            self._lay_out(tensor, usual, asked)
        self._before.clear()
        self._aside.clear()
        self._shown.clear()

    def show(self, thing: Any) -> None:
        """In the usual format until a call of a model: `thing` is about to be saved, or copied."""
        if self._calling:
            return
        for tensor, usual in self._weights():
            if moved := self._lay_out(tensor, usual):
                self._aside |= {id(each): memory for each, memory in moved}
                self._shown[id(tensor)] = weakref.ref(tensor)

    def hide(self, model: Any) -> None:
        """Where nobody holds it any more: a program mostly holds its last checkpoint until the next one is made."""
        if not self._shown:
            return
        if _is_held(next(iter(self._shown.values()))()):
            self._aside.clear()  # as large as weights, gradients and momenta; what was recorded is recorded again
            return
        import torch

        from overdrive.seams.torch.layouts import strides_of

        for each in self._shown.values():
            if (tensor := each()) is not None and tensor.dim() == 4:
                self._lay_out(tensor, strides_of(tensor.shape, torch.channels_last))
        self._shown = {key: each for key, each in self._shown.items() if _is_held(each())}
        if not self._shown:
            self._aside.clear()

    def _weights(self) -> list[tuple[Any, tuple[int, ...]]]:
        """Those that were laid out, each with its usual strides."""
        known = [(each.tensor(), each) for each in self._before.values()]
        return [(tensor, each.usual(tensor)) for tensor, each in known if tensor is not None]

    def _lay_out(self, tensor: Any, strides: tuple[int, ...], asked: Any = None) -> list[tuple[Any, Any]]:
        """All that belongs to a weight together, unless somebody refers to its memory: who would be left with that.

        Returns: what lies otherwise now, each with the memory that it had.
        """
        from overdrive.seams.torch.internals import base_of, storage_id, storage_owners

        due = [each for each in self._with_it(tensor) if each is not None and each.stride() != strides]
        passing = () if asked is None else tuple(each for each in (asked, base_of(asked)) if each is not None)
        for each in due:
            others = [one for one in passing if one is not each and storage_id(one) == storage_id(each)]
            if storage_owners(each.untyped_storage()) not in (None, *range(_ALONE, _ALONE + len(others) + 1)):
                return []
        moved = [(each, each.data) for each in due]
        for each, data in moved:
            memory = self._aside.pop(id(each), None)  # its own: recorded graphs know it by its address
            if memory is None or not _alike(memory, data) or memory.stride() != strides:
                memory = data.new_empty_strided(data.shape, strides)
            each.data = memory.copy_(data)
        return moved

    def _with_it(self, tensor: Any) -> list[Any]:
        """A weight, its gradient, and what optimizers keep of its shape."""
        kept = [state for each in self._optimizers if (optimizer := each()) and (state := optimizer.state.get(tensor))]
        values = [value for state in kept for value in state.values() if getattr(value, "shape", None) == tensor.shape]
        return [tensor, tensor.grad, *values]


@dataclass(frozen=True)
class _Before:
    """A weight as it lay."""

    tensor: weakref.ref[Any]
    shape: Any
    strides: tuple[int, ...]

    def usual(self, tensor: Any) -> tuple[int, ...]:
        """A program may have cut it down since, or enlarged it."""
        import torch

        from overdrive.seams.torch.layouts import strides_of

        return self.strides if tensor.shape == self.shape else strides_of(tensor.shape, torch.contiguous_format)


def _is_held(weight: Any) -> bool:
    """Whether somebody else refers to its memory."""
    from overdrive.seams.torch.internals import storage_owners

    return weight is not None and storage_owners(weight.untyped_storage()) not in (None, *range(_ALONE + 1))


def _alike(one: Any, other: Any) -> bool:
    return bool(one.shape == other.shape and one.dtype == other.dtype and one.device == other.device)


def _write_back(own: Any, copy: Any) -> None:
    """What the model has written to an input of the program's, of which it was given a copy."""
    import torch

    if own.requires_grad or copy.requires_grad:
        raise CannotInstall("the model writes to an input that has a gradient")
    with torch.no_grad():
        own.copy_(copy)
