"""Makes the artefact of one model, with its signature, and leaves what it is to be proved and timed by."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from overdrive.core.units import several
from overdrive.engines.exported import exported
from overdrive.engines.proved import close
from overdrive.engines.runtime import NoEngine
from overdrive.engines.weights import Weights
from overdrive.model_state.quiet import quiet
from overdrive.model_state.state import State
from overdrive.seams.points import reason_of
from overdrive.targets.child import answers, dimensions, formats, runner, triton, values
from overdrive.targets.child.calls import CalledModel
from overdrive.targets.child.flat import FlatModel, tensors_of
from overdrive.targets.child.losses import Losses
from overdrive.targets.child.subject import Shapes, Subject, Tensors, subject_of
from overdrive.targets.child.timing import write_own_times, write_times
from overdrive.targets.order import FPGA, TRITON, Made, Order, made_in

_OTHER_SHAPES = "their shapes are other ones, and its own are fixed"


def export(
    called: CalledModel,
    name: str,
    others: Mapping[str, int],
    order: Order,
    folder: Path,
    losses: Losses | None = None,
) -> Made:
    """All of it; what cannot be is refused with the reason. `losses`: the program's, for what they show of outputs."""
    told = Made(model=name, calls=called.count, others=others)
    if not called.shapes:
        reason, count = called.left.most_common(1)[0]
        return replace(told, refused=f"{name} cannot be exported: {reason} in {several(count, 'call')}")
    try:
        subject = subject_of(called, name)
        if order.target == FPGA:
            return _designed(subject, order, told, folder, losses or Losses())
        made = _made(subject, order.target, made_in(folder))
    except NoEngine as error:
        return replace(told, refused=f"{name} cannot be exported: {error}")
    recorded = answers.write(subject.flat, subject.inputs(made.shapes), made.tried, folder, made.proved)
    timed = []
    for call, count in zip(subject.calls, subject.counts, strict=True):
        tensors = tensors_of(call)
        if dimensions.sizes_of(made.shapes, tensors) is None:
            subject.left[_OTHER_SHAPES] += count
        elif count:
            timed.append((tensors, count))
    for sizes, count in subject.beyond.items():
        if not dimensions.within(made.limits, dimensions.named(made.shapes, sizes)):
            subject.left[_OTHER_SHAPES] += count
    write_times(subject.flat, subject.names, made.answer, timed, folder)
    return replace(
        told,
        artefact=made.artefact,
        recorded=recorded,
        left=+subject.left,
        notes=(*subject.notes, *made.notes),
        sizes=made.sizes,
    )


def _designed(subject: Subject, order: Order, told: Made, folder: Path, losses: Losses) -> Made:
    from overdrive.targets.fpga.design import design

    calls = [tensors_of(each) for each in subject.calls]
    if any(len(each) > 1 for each in calls) or any(each is not None for each in subject.flat.constants):
        raise NoEngine("it is given more than one tensor")
    shape = calls[0][0].shape[1:]
    rows = [each for each, *_ in calls if each.dim() > 1 and each.shape[1:] == shape and each.is_floating_point()]
    if not rows:
        raise NoEngine("it is given no rows of fractions")
    notes = design(subject.flat.model, rows, order.margin, folder, losses.of_classes)
    write_own_times(subject.flat.model, rows, folder)
    recorded = sum(len(each) for each in rows)
    return replace(
        told,
        artefact="project",
        recorded=recorded,
        notes=[*subject.notes, *notes],
        versions=formats.versions(order.target),
    )


@dataclass(frozen=True)
class _Artefact:
    artefact: str
    shapes: Shapes
    limits: dimensions.Limits
    answer: runner.Answer
    tried: list[Tensors]  # inputs of other sizes than the program's, which it answers as the model does
    sizes: dict[str, list[int]]
    notes: list[str]
    proved: list[Mapping[str, Any]]  # of each input, the values that it takes


def _made(subject: Subject, target: str, folder: Path) -> _Artefact:
    """With dimensions that may vary, where it answers other sizes as the model does; else of fixed shapes."""
    first = subject.calls[0]
    with torch.no_grad(), quiet():
        outputs = subject.flat(*tensors_of(first))
    marks = dimensions.candidates(subject.calls, outputs, first)
    why = ""
    if any(marks):
        try:
            return _built(subject, target, folder, marks)
        except Exception as error:
            why = str(error) if isinstance(error, NoEngine) else reason_of(error)[:200]
            shutil.rmtree(folder)
            folder.mkdir()
    made = _built(subject, target, folder, [set() for _ in marks])
    return replace(made, notes=[*made.notes, f"all shapes are fixed: with others {why}"]) if why else made


def _built(subject: Subject, target: str, folder: Path, marks: dimensions.Marks) -> _Artefact:
    zeros = tuple(dimensions.example(subject.calls[0], marks))  # of recorded inputs it sees the shapes alone
    dynamic = dimensions.asked(marks) if any(marks) else None
    graph = exported(subject.flat, zeros, {}, State([subject.flat]), dynamic)
    shapes = dimensions.found(graph)
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        artefact = formats.write(target, graph, shapes, subject.names, folder)
    recorded = subject.inputs(shapes)
    signature = _signature(subject, target, artefact, shapes, folder)
    signature["values"] = values.proved(target, graph, subject.names.inputs, recorded)
    answer = runner.placed(target, folder, signature)
    compared: dict[str, set[int]] = {name: set() for name in signature["dimensions"]}
    left: dict[str, set[int]] = {name: set() for name in compared}  # that the model does not take
    tried = list(dimensions.others(shapes, recorded))
    kept = []
    for number, given in enumerate([*recorded, *tried]):
        sizes = dimensions.sizes_of(shapes, given) or {}
        wanted = _own(subject.flat, given, own=number < len(recorded))
        if wanted is None:
            for name, size in sizes.items():
                left[name].add(size)
            continue
        if not _answers_alike(answer, subject, given, wanted):
            raise NoEngine(f"it answers {_told(sizes)} otherwise than the model")
        kept += [given] if number >= len(recorded) else []
        for name, size in sizes.items():
            compared[name].add(size)
    _set_ends(signature["dimensions"], compared, left)
    takes = partial(_takes, subject.flat)
    notes = _find_ends(graph, shapes, recorded, signature["dimensions"], compared, takes)
    runner.write_signature(folder, signature)
    if target == TRITON:
        triton.write_config(folder, signature)
    if not compared and any(marks):
        notes.append("all shapes are fixed: the model's code asks for them")
    return _Artefact(
        artefact,
        shapes,
        signature["dimensions"],
        answer,
        kept,
        {name: sorted(each) for name, each in compared.items()},
        notes,
        [signature["values"].get(name, {}) for name in subject.names.inputs],
    )


def _set_ends(
    limits: dict[str, dict[str, int]], compared: Mapping[str, set[int]], left: Mapping[str, set[int]]
) -> None:
    """From where each dimension may vary.

    Args:
        left: sizes that the model does not take.

    Raises:
        NoEngine: there is none, or one within what it takes that it does not.
    """
    for name, sizes in compared.items():
        if len(sizes) < 2:
            raise NoEngine(f"the model itself takes no other {name}")
        if gaps := [size for size in left[name] - sizes if min(sizes) < size < max(sizes)]:
            raise NoEngine(f"the model itself takes {name} {min(sizes)} and {max(sizes)}, but not {min(gaps)}")
        limits[name]["min"] = min(sizes)


def _find_ends(
    graph: Any,
    shapes: Shapes,
    recorded: Sequence[Tensors],
    limits: dict[str, dict[str, int]],
    compared: Mapping[str, set[int]],
    takes: Callable[[Tensors], bool],
) -> list[str]:
    """How far each dimension may vary; and what is to be known of those that end where nothing larger was tried."""
    notes = []
    for name in limits:
        end, more = dimensions.end_in(graph, shapes, name), False
        if end is None:
            end, more = dimensions.end_tried(shapes, recorded, name, limits, takes)
        limits[name]["max"] = max(end, *compared[name])
        if more:
            notes.append(f"{name} ends at {end}, the largest that was tried: it may be that the model takes more")
    return notes


def _told(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "the recorded inputs"


def _own(flat: FlatModel, given: Tensors, own: bool) -> tuple[torch.Tensor, ...] | None:
    """The model's answers; None where it takes no inputs of such sizes. `own`: they are the program's."""
    try:
        with torch.no_grad(), quiet():
            return tuple(flat(*(each.clone() for each in given)))
    except Exception:
        if own:
            raise
        return None


def _takes(flat: FlatModel, given: Tensors) -> bool:
    return _own(flat, given, own=False) is not None


def _answers_alike(answer: runner.Answer, subject: Subject, given: Tensors, wanted: tuple[torch.Tensor, ...]) -> bool:
    arrays = {name: each.numpy() for name, each in zip(subject.names.inputs, given, strict=True)}
    found = answer(arrays)
    for name, own in zip(subject.names.outputs, wanted, strict=True):
        made = torch.from_numpy(found[name])
        if made.shape != own.shape or made.dtype != own.dtype or not close(own, made):
            return False
    return True


def _signature(subject: Subject, target: str, artefact: str, shapes: Shapes, folder: Path) -> dict[str, Any]:
    given = tensors_of(subject.calls[0])
    outputs = _own(subject.flat, given, own=True) or ()
    tensors = [*subject.flat.model.parameters(), *subject.flat.model.buffers()]
    names = dict.fromkeys(each for shape in shapes for each in shape if isinstance(each, str))
    return {
        "format": 1,
        "model": subject.name,
        "target": target,
        "artefact": artefact,
        "inputs": [
            {"name": name, "shape": shape, "dtype": _dtype(each)}
            for name, shape, each in zip(subject.names.inputs, shapes, given, strict=True)
        ],
        "outputs": [
            {"name": name, "shape": shape, "dtype": _dtype(each)}
            for name, shape, each in zip(
                subject.names.outputs, _shapes_of(outputs, subject.flat, shapes, given), outputs, strict=True
            )
        ],
        "dimensions": {name: {"min": 1} for name in names},
        "files": runner.digests(folder),
        "weights_sha256": Weights(tensors).digest(),
        "versions": formats.versions(target),
        **formats.processor(target),
    }


def _shapes_of(
    outputs: Sequence[torch.Tensor], flat: FlatModel, shapes: Shapes, given: Tensors
) -> list[list[int | str]]:
    """With the name of an inputs' dimension where theirs changes with it: of a hundred classes and a hundred samples,
    one varies and the other does not."""
    found: list[list[int | str]] = [list(each.shape) for each in outputs]
    sizes = dimensions.sizes_of(shapes, given) or {}
    for other in dimensions.others(shapes, [given]):
        changed = [name for name, size in (dimensions.sizes_of(shapes, other) or {}).items() if size != sizes[name]]
        for shape, one, two in zip(found, outputs, _own(flat, other, own=False) or (), strict=False):
            for place in range(min(one.dim(), two.dim())):
                if one.shape[place] != two.shape[place]:
                    shape[place] = changed[0]
    return found


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
