"""Whether a model's call can be made in stages: whole and in stages, in fp64, with all ranks in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from overdrive.core.rng import States
from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.chance import Deviation
from overdrive.model_state.division.tree import flatten
from overdrive.model_state.exact_call import Exact, equal_in_fp64, exact, noise_of, weighted_sums, without_zeros
from overdrive.seams.torch.modules import buffers_in
from overdrive.techniques.parallel.pipeline_parallel.calling import Batches, StagedCall
from overdrive.techniques.parallel.pipeline_parallel.mailboxes import Mailboxes
from overdrive.techniques.parallel.pipeline_parallel.stages import Unstaged, of_a_stage
from overdrive.techniques.parallel.pipeline_parallel.uses import Uses, stages_of

_FEW = "it has fewer layers with weights than ranks"


class PipelineTrial:
    """In a process of its own: the model is changed for good."""

    def __init__(self, asked: CallToDivide, replicas: int) -> None:
        self._asked, self._model = asked, asked.model
        self._stages, self._replicas = asked.ranks // replicas, replicas
        model = asked.model.double()
        without_zeros(model)
        torch.set_default_dtype(torch.float64)
        self._leaves = [exact(each) for each in asked.leaves]
        self._parameters = dict(model.named_parameters())
        self._buffers = {name: (each, each.detach().clone()) for name, each in model.named_buffers()}
        self._chance = States.now()
        self._where = ""  # the last module that was called

    def found(self, batches: Batches | None) -> dict[str, Any]:
        """What JSON can hold.

        Returns:
            `stages`: by a weight's name, see `stages_of`; `split`: whether in these micro-batches, and `unsplit`: why
            not; `evaluates`: whether calls without gradients can be made so, too; `written`: the buffers that a call in
            training writes to. Or `reason`: why it stays whole.
        """
        with Uses(self._model) as uses:
            self._whole = self._trained(self._asked.made)
        self._gradients = {name: each.grad for name, each in self._parameters.items()}
        self._after = [each.detach().clone() for each, _ in self._buffers.values()]
        stages = stages_of(self._model, uses.order, self._stages)
        if not stages:
            return {"reason": _FEW}
        written = [name for name, (each, before) in self._buffers.items() if not torch.equal(each, before)]
        why = ""
        if batches is not None and written:  # it would be, once for each micro-batch: it may count calls
            batches, why = None, f"{written[0]} is written to in each call"
        tried = {choice is not None: self._difference(stages, choice) for choice in {batches, None}}
        split = tried.get(True) == ""
        if not split and tried[False]:
            return {"reason": tried[False]}
        return {
            "stages": {name: list(each) for name, each in stages.items()},
            "split": split,
            "unsplit": why or tried.get(True, ""),
            "evaluates": not self._evaluation_differs(stages),
            "written": written,
        }

    # -- inside -----------------------------------------------------------------------------------

    def _restore(self) -> None:
        self._chance.restore()
        for buffer, before in self._buffers.values():
            buffer.data.copy_(before)
        for each in self._parameters.values():
            each.grad = None

    def _given(self) -> list[Any]:
        """Of each rank its own, that it has gradients of its own."""
        return [
            each.detach().clone().requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor) else each
            for each in self._leaves
        ]

    def _trained(self, make: Callable[[list[Any]], Any]) -> tuple[list[Any], list[Any], States]:
        """Results, gradients of what is given, and random states afterwards; weights have theirs in `grad`."""
        given = self._given()
        with Exact():
            results = [each for each in flatten(make(given))[0] if isinstance(each, torch.Tensor)]
        after = States.now()
        if sums := weighted_sums(results):
            torch.stack(sums).sum().backward()  # type: ignore[no-untyped-call]
        gradients = [each.grad for each in given if isinstance(each, torch.Tensor) and each.is_leaf]
        return [each.detach() for each in results], gradients, after

    def _rows(self, batches: Batches | None) -> int:
        """How many rows of stages have to do with each other: with the whole batch, each is as if it were alone."""
        return self._replicas if batches is not None else 1

    def _staged(self, stages: dict[str, tuple[int, bool]], batches: Batches | None, work: Callable[[Any], Any]) -> Any:
        owners = {id(self._parameters[name]): each for name, each in stages.items()}
        boxes = Mailboxes(self._stages, self._rows(batches))

        def as_rank() -> Any:
            staged = StagedCall(boxes, owners, torch.device("cpu"), lambda: None)
            return work(lambda leaves: staged.make(replace(self._asked, leaves=leaves), batches))

        with self._naming():
            return boxes.run(as_rank)

    def _difference(self, stages: dict[str, tuple[int, bool]], batches: Batches | None) -> str:
        """What is not the same in stages; empty where all is."""
        self._restore()
        try:
            made = self._staged(stages, batches, self._trained)
        except Deviation as error:
            return str(error)
        except Unstaged as error:
            return f"{self._where}{error}"
        except Exception as error:
            return f"{self._where}it fails in stages ({_first_line(error)})"
        return self._kept() or self._compared(made, self._rows(batches))

    def _kept(self) -> str:
        """What modules still hold of a stage when the call is over; empty where that is nothing."""
        known = {id(each) for each, _ in self._buffers.values()} | {id(each) for each in self._parameters.values()}
        for path, module in self._model.named_modules():
            for name, value in {**buffers_in(module), **vars(module)}.items():
                if any(of_a_stage(each) and id(each) not in known for each in pytree.tree_leaves(value)):
                    full = f"{path}.{name}" if path else name
                    return f"it keeps what one stage has made ({full}), and other ranks would read it without numbers"
        return ""

    def _compared(self, made: Any, rows: int) -> str:
        results, gradients, chance = self._whole
        for theirs, given, after in made:
            if len(theirs) != len(results) or not all(map(equal_in_fp64, results, theirs)):
                return "what comes out differs in stages"
            if not all(map(equal_in_fp64, gradients, given)):
                return "the gradient of what it is given differs in stages"
            if not after.same(chance):
                return "it draws random numbers where only the stage itself can draw them"
        noise = noise_of([*self._gradients.values()])
        for name, each in self._parameters.items():
            mean = each.grad if each.grad is None else each.grad / rows  # all have added theirs to it
            if not equal_in_fp64(self._gradients[name], mean, noise):
                return f"{name}: its gradient differs in stages"
        for (name, (buffer, _)), expected in zip(self._buffers.items(), self._after, strict=True):
            if buffer.is_floating_point() and not equal_in_fp64(expected, buffer):  # ranks share those that count
                return f"{name}: it differs in stages"
        return ""

    def _evaluation_differs(self, stages: dict[str, tuple[int, bool]]) -> bool:
        self._restore()
        self._model.eval()

        def results(make: Callable[[list[Any]], Any]) -> list[Any]:
            with torch.no_grad(), Exact():
                return [each for each in flatten(make(self._given()))[0] if isinstance(each, torch.Tensor)]

        try:
            whole = results(self._asked.made)
            made = self._staged(stages, None, results)
        except Exception:
            return True
        return not all(len(each) == len(whole) and all(map(equal_in_fp64, whole, each)) for each in made)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Within it, which module is called is known."""
        names = {id(each): name for name, each in self._model.named_modules()}

        def called(module: nn.Module, given: Any) -> None:
            if names.get(id(module)):
                self._where = f"{names[id(module)]}: "

        handle = nn.modules.module.register_module_forward_pre_hook(called)
        try:
            yield
        finally:
            handle.remove()


def _first_line(error: Exception) -> str:
    first = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {first[:120]}" if first else type(error).__name__
