"""Makes the artefact of one model, with its signature, and leaves what it is to be proved and timed by."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.core.units import several
from overdrive.engines.closeness import close
from overdrive.engines.runtime import NoEngine
from overdrive.seams.points import reason_of
from overdrive.targets.child import answers, dimensions, formats, runner, triton, values
from overdrive.targets.child.dimensions import Arrays
from overdrive.targets.child.kept import KeptCalls
from overdrive.targets.child.subject import Model, Shapes, Subject, Written
from overdrive.targets.child.timing import write_own_times, write_times
from overdrive.targets.order import FPGA, TRITON, Made, Order, made_in

_OTHER_SHAPES = "their shapes are other ones, and its own are fixed"


SubjectOf = Callable[[Any, str], Subject]  # of what was kept of a model's calls, and its name; NoEngine: there is none


def export(
    called: KeptCalls, subject_of: SubjectOf, name: str, others: Mapping[str, int], order: Order, folder: Path
) -> Made:
    """All of it; what cannot be is refused with the reason."""
    told = Made(model=name, calls=called.count, others=others)
    if not called.shapes:
        reason, count = called.left.most_common(1)[0]
        return replace(told, refused=f"{name} cannot be exported: {reason} in {several(count, 'call')}")
    try:
        subject = subject_of(called, name)
        if order.target == FPGA:
            return _designed(subject, order, told, folder, called.of_classes)
        made = _made(subject, order.target, made_in(folder))
    except NoEngine as error:
        return replace(told, refused=f"{name} cannot be exported: {error}")
    recorded = answers.write(subject.model, subject.inputs(made.shapes), made.tried, folder, made.proved)
    timed = []
    for given, count in zip(subject.calls, subject.counts, strict=True):
        if dimensions.sizes_of(made.shapes, given) is None:
            subject.left[_OTHER_SHAPES] += count
        elif count:
            timed.append((given, count))
    for sizes, count in subject.beyond.items():
        if not dimensions.within(made.limits, dimensions.named(made.shapes, sizes)):
            subject.left[_OTHER_SHAPES] += count
    write_times(subject.model, subject.names, made.answer, timed, folder)
    return replace(
        told,
        artefact=made.artefact,
        recorded=recorded,
        left=+subject.left,
        notes=(*subject.notes, *made.notes),
        sizes=made.sizes,
    )


def _designed(subject: Subject, order: Order, told: Made, folder: Path, of_classes: Callable[[int], bool]) -> Made:
    from overdrive.targets.fpga.design import design

    if any(len(each) > 1 for each in subject.calls) or subject.with_values:
        raise NoEngine("it is given more than one tensor")
    shape = subject.calls[0][0].shape[1:]
    rows = [each for each, *_ in subject.calls if each.ndim > 1 and each.shape[1:] == shape and each.dtype.kind == "f"]
    if not rows:
        raise NoEngine("it is given no rows of fractions")
    notes = design(subject.model.front_end(), rows, order.margin, folder, of_classes)
    write_own_times(subject.model, rows, folder)
    recorded = sum(len(each) for each in rows)
    return replace(
        told,
        artefact="project",
        recorded=recorded,
        notes=[*subject.notes, *notes],
        versions=formats.versions(order.target, subject.model.framework),
    )


@dataclass(frozen=True)
class _Artefact:
    artefact: str
    shapes: Shapes
    limits: dimensions.Limits
    answer: runner.Answer
    tried: list[Arrays]  # inputs of other sizes than the program's, which it answers as the model does
    sizes: dict[str, list[int]]
    notes: list[str]
    proved: list[Mapping[str, Any]]  # of each input, the values that it takes


def _made(subject: Subject, target: str, folder: Path) -> _Artefact:
    """With dimensions that may vary, each or those together that always were equal, where it answers other sizes as the
    model does; else of fixed shapes."""
    marks = dimensions.candidates(subject.calls, subject.model.answers(subject.calls[0]))
    why = ""
    for together in (False, True) if any(marks) else ():
        try:
            return _built(subject, target, folder, marks, together)
        except Exception as error:
            if not isinstance(error, _AsBefore):
                why = str(error) if isinstance(error, NoEngine) else reason_of(error)[:200]
            shutil.rmtree(folder)
            folder.mkdir()
    made = _built(subject, target, folder, [set() for _ in marks])
    return replace(made, notes=[*made.notes, f"all shapes are fixed: with others {why}"]) if why else made


class _AsBefore(Exception):
    """No dimensions were always equal."""


def _built(subject: Subject, target: str, folder: Path, marks: dimensions.Marks, together: bool = False) -> _Artefact:
    zeros = dimensions.example(subject.calls[0], marks)  # of recorded inputs the exporter sees the shapes alone
    graph = subject.model.write(target, zeros, marks, subject.names, folder)
    recorded = subject.inputs(graph.shapes)
    if together:
        if (shapes := dimensions.tied(graph.shapes, recorded)) == graph.shapes:
            raise _AsBefore
        graph.shapes = shapes
    shapes = graph.shapes
    signature = _signature(subject, target, graph, folder)
    signature["values"] = values.proved(target, graph.bounds, subject.names.inputs, recorded)
    answer = runner.placed(target, folder, signature)
    compared: dict[str, set[int]] = {name: set() for name in signature["dimensions"]}
    left: dict[str, set[int]] = {name: set() for name in compared}  # that the model does not take
    tried = list(dimensions.others(shapes, recorded))
    kept = []
    for number, given in enumerate([*recorded, *tried]):
        sizes = dimensions.sizes_of(shapes, given) or {}
        wanted = _own(subject.model, given, own=number < len(recorded))
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
    notes = _find_ends(graph, recorded, signature["dimensions"], compared, partial(_takes, subject.model))
    runner.write_signature(folder, signature)
    if target == TRITON:
        triton.write_config(folder, signature)
    if not compared and any(marks):
        notes.append("all shapes are fixed: the model's code asks for them")
    return _Artefact(
        graph.artefact,
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
    graph: Written,
    recorded: Sequence[Arrays],
    limits: dict[str, dict[str, int]],
    compared: Mapping[str, set[int]],
    takes: Callable[[Arrays], bool],
) -> list[str]:
    """How far each dimension may vary; and what is to be known of those that end where nothing larger was tried."""
    notes = []
    for name in limits:
        end, more = graph.end(name), False
        if end is None:
            end, more = dimensions.end_tried(graph.shapes, recorded, name, limits, takes)
        limits[name]["max"] = max(end, *compared[name])
        if more:
            most = limits[name]["max"]
            notes.append(f"{name} ends at {most}, the largest that was tried: it may be that the model takes more")
    return notes


def _told(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "the recorded inputs"


def _own(model: Model, given: Arrays, own: bool) -> Arrays | None:
    """The model's answers; None where it takes no inputs of such sizes. `own`: they are the program's."""
    try:
        return model.answers(given)
    except Exception:
        if own:
            raise
        return None


def _takes(model: Model, given: Arrays) -> bool:
    return _own(model, given, own=False) is not None


def _answers_alike(answer: runner.Answer, subject: Subject, given: Arrays, wanted: Arrays) -> bool:
    found = answer(dict(zip(subject.names.inputs, given, strict=True)))
    for name, own in zip(subject.names.outputs, wanted, strict=True):
        made = np.asarray(found[name])
        if made.shape != own.shape or made.dtype != own.dtype or not close(own, made):
            return False
    return True


def _signature(subject: Subject, target: str, graph: Written, folder: Path) -> dict[str, Any]:
    given, shapes, model = subject.calls[0], graph.shapes, subject.model
    outputs = model.answers(given)
    names = dict.fromkeys(each for shape in shapes for each in shape if isinstance(each, str))
    return {
        "format": 1,
        "model": subject.name,
        "target": target,
        "artefact": graph.artefact,
        "inputs": _described(subject.names.inputs, shapes, given),
        "outputs": _described(subject.names.outputs, _shapes_of(outputs, model, shapes, given), outputs),
        "dimensions": {name: {"min": 1} for name in names},
        "files": runner.digests(folder),
        "weights_sha256": model.digest(),
        "versions": formats.versions(target, model.framework),
        **formats.processor(target),
    }


def _described(names: Sequence[str], shapes: Shapes, arrays: Arrays) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": shape, "dtype": str(each.dtype)}
        for name, shape, each in zip(names, shapes, arrays, strict=True)
    ]


def _shapes_of(outputs: Arrays, model: Model, shapes: Shapes, given: Arrays) -> list[list[int | str]]:
    """With the name of an inputs' dimension where theirs changes with it: of a hundred classes and a hundred samples,
    one varies and the other does not."""
    found: list[list[int | str]] = [list(each.shape) for each in outputs]
    sizes = dimensions.sizes_of(shapes, given) or {}
    for other in dimensions.others(shapes, [given]):
        changed = [name for name, size in (dimensions.sizes_of(shapes, other) or {}).items() if size != sizes[name]]
        for shape, one, two in zip(found, outputs, _own(model, other, own=False) or (), strict=False):
            for place in range(min(one.ndim, two.ndim)):
                if one.shape[place] != two.shape[place]:
                    shape[place] = changed[0]
    return found
