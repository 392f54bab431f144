"""Technique `fp32_from_fp64`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class Fp32FromFp64(Technique):
    """Computes in 32 bits what a program computes in 64, by accident or by habit.

    What it does: for models in double (`.double()`, `torch.set_default_dtype(torch.float64)`, batches from NumPy):
    `weights = "narrowed"` makes the parameters, buffers, gradients and optimizer's state of trained models 32-bit
    in place; the outermost model call narrows its inputs and hands its result back in 64 bits, so that losses,
    metrics and what goes to NumPy are as the program knows them; so does a call of a copy of such a model. The
    script sees 32-bit parameters and checkpoints, which load into its 64-bit model. `weights = "copied"` makes
    32-bit copies for the length of each training call and leaves all that the script can see in 64 bits;
    evaluation too.

    When it helps: nearly always: half the bytes everywhere, twice the numbers in each vector instruction (1.9 times
    measured for a three-layer MLP, 256 wide, on an EPYC, `narrowed`), and on GPUs for graphics and inference 32 or 64
    times the arithmetic.

    When it hurts: where 64 bits are needed: solvers, tiny differences of large numbers, long recurrences. A script that
    multiplies its narrowed parameters with 64-bit tensors by hand, outside the model's call, fails with `narrowed`:
    the trial finds that out where it happens within the steps it makes, and `copied` cannot fail so. A model that
    makes 64-bit tensors inside its call fails there: then the technique is left out.

    What it watches: the types of parameters at each call, types that the program gives models itself (`.float()`), and
    writes to the copies: a model that changes its weights or its inputs while it is called is left out. What would
    escape, with `copied`: a write to a weight through `.data` that begins after a model's first call; with
    `narrowed`: 64-bit tensors of the script's own that meet narrowed ones later than in the trial, and what shares a
    weight's memory from before its optimizer was made (a `state_dict()`, `weight.data`): it is left with the 64-bit
    weights of then.

    Contract: statistical. All is rounded to 24 significant bits instead of 53.

    Source: Micikevicius et al., Mixed Precision Training, ICLR 2018; CUDA C++ Programming Guide, arithmetic throughput
    """

    name = "fp32_from_fp64"
    contract = Contract.STATISTICAL
    targets = ("forward", "backward", "optimizer")
    expected_saving = 0.4
    aims = ("time", "memory")
    switchable = True
    survives = True
    order = 20
    knobs = (
        Knob("weights", "copied", "copies at each call, or 32-bit weights in place", choices=("copied", "narrowed")),
    )

    def applies(self, facts: Facts) -> str | None:
        if none := facts.without_module():
            return none
        if "torch.float64" not in facts.parameter_dtypes:
            return f"the parameters are {', '.join(facts.parameter_dtypes) or 'unknown'}, not 64-bit"
        return None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"weights": "copied"}, {"weights": "narrowed"}]

    def computes_in(self, settings: Settings) -> str:
        return "fp32"

    def install(self, seams: Seams, settings: Settings) -> Handle:
        if settings["weights"] == "copied":
            copied = _Copied()
            seams.model_called.subscribe(copied.call)
            seams.call_checkpointed.subscribe(copied.again)
            return seams.handle()
        narrowed = _Narrowed()
        seams.call_checkpointed.subscribe(_with_its_default_type)
        seams.optimizer_made.subscribe(narrowed.watch)
        seams.module_cast.subscribe(narrowed.cast, always=True)
        seams.model_called.subscribe(narrowed.call)
        seams.on_undo(narrowed.off)
        return seams.handle(narrowed.on, narrowed.off)


class _Copied:
    def __init__(self) -> None:
        self._copies: Any = None  # made when PyTorch is there

    def call(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        from overdrive.seams.torch.modules import first_parameter
        from overdrive.seams.torch.weights import Copies

        if self._copies is None:
            self._copies = Copies(torch.float64, torch.float32)
        first = first_parameter(model)
        if first is None or first.dtype != torch.float64 or not torch.is_grad_enabled():
            return call(*args, **kwargs)
        with _default_type():
            result = self._copies.call(model, call, args, kwargs)
        if self._copies.written:  # to a copy: it is undone, and made again without us
            raise CannotInstall(self._copies.written)
        return result

    def again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _with_its_default_type(self._copies.again(function)) if self._copies is not None else function


def _with_its_default_type(function: Callable[..., Any]) -> Callable[..., Any]:
    """For a checkpoint, which calls it again when the model's call is over."""
    import torch

    from overdrive.seams.torch.weights import default_dtype

    dtype = torch.get_default_dtype()

    def again(*args: Any, **kwargs: Any) -> Any:
        with default_dtype(dtype):
            return function(*args, **kwargs)

    return again


class _Narrowed:
    """The 64-bit tensors of trained models, narrowed in place; `off` brings all back."""

    def __init__(self) -> None:
        self._active = True
        self._optimizers: list[weakref.ref[Any]] = []
        self._models: list[weakref.ref[Any]] = []
        self._held: dict[int, weakref.ref[Any]] = {}  # parameters and buffers by their id
        self._ours: weakref.WeakSet[Any] = weakref.WeakSet()  # models that were seen to hold one of them
        self._apart: weakref.WeakSet[Any] = weakref.WeakSet()  # modules to which the program itself gave 32 bits

    def watch(self, optimizer: Any, models: list[Any]) -> None:
        self._optimizers.append(weakref.ref(optimizer))
        self._models += map(weakref.ref, models)
        if self._active:
            self._narrow()

    def call(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        from overdrive.seams.torch.weights import InAnotherType, cast

        if not self._is_ours(model) and not (_has_64_bits((args, kwargs)) and self._adopts(model)):
            return call(*args, **kwargs)
        given = InAnotherType(args, kwargs, torch.float64, torch.float32)
        with _default_type():
            result = call(*given.args, **given.kwargs)
        if reason := given.fault():
            raise CannotInstall(reason)
        return cast(result, torch.float32, torch.float64)

    def _is_ours(self, model: Any) -> bool:
        import torch

        from overdrive.seams.torch.modules import first_parameter

        first = first_parameter(model)
        if first is None:
            return False
        if first.dtype == torch.float64 and self._models:  # made double after its optimizer was made
            self._narrow()
        if model not in self._ours and any(map(self._holds, model.parameters())):
            self._ours.add(model)
        return model in self._ours

    def _adopts(self, model: Any) -> bool:
        """A copy of one that was narrowed (the best so far, an average of weights) is in 64 bits for the program."""
        import torch

        for original in filter(None, (each() for each in self._models)):
            held = {name: each for name, each in _tensors_of(original) if self._holds(each)}
            for module in model.modules():
                if type(module) is not type(original) or module in self._apart or not held:
                    continue
                narrow = {name: each for name, each in _tensors_of(module) if each.dtype == torch.float32}
                copies = {name: each for name, each in narrow.items() if name in held}
                if all(name in copies and copies[name].shape == each.shape for name, each in held.items()):
                    self._held.update((id(each), weakref.ref(each)) for each in copies.values())
                    self._ours.add(model)
        return model in self._ours

    def cast(self, module: Any, dtype: Any) -> None:
        """By the program: what it has in 32 bits is its own."""
        import torch

        if dtype != torch.float32:
            self._apart.difference_update(module.modules())
            return
        self._apart.update(module.modules())
        for _, tensor in _tensors_of(module):
            self._held.pop(id(tensor), None)
        self._ours.clear()

    def _holds(self, tensor: Any) -> bool:
        """A new tensor may have the id of one that is gone."""
        known = self._held.get(id(tensor))
        return known is not None and known() is tensor

    def on(self) -> None:
        self._active = True
        self._narrow()

    def _narrow(self) -> None:
        import torch

        for model in filter(None, (each() for each in self._models)):
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.dtype == torch.float64:
                    self._held[id(tensor)] = weakref.ref(tensor)  # first: should the next fail, it is put back
                    _retype(tensor, torch.float32)
        self._retype_states(torch.float64, torch.float32)

    def off(self) -> None:
        import torch

        self._active = False
        self._retype_states(torch.float32, torch.float64)
        for tensor in (each() for each in self._held.values()):
            if tensor is not None and tensor.dtype == torch.float32:
                _retype(tensor, torch.float64)
        self._held.clear()
        self._ours.clear()

    def _retype_states(self, old: Any, new: Any) -> None:
        """What the optimizers keep of the parameters, element by element (not the counts of steps)."""
        import torch
        from torch.utils._pytree import tree_leaves

        for optimizer in filter(None, (each() for each in self._optimizers)):
            for parameter, state in optimizer.state.items():
                if self._holds(parameter):
                    for each in tree_leaves(dict(state)):
                        if isinstance(each, torch.Tensor) and each.dim() and each.dtype == old:
                            each.data = each.data.to(new)


def _tensors_of(module: Any) -> list[tuple[str, Any]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _has_64_bits(given: Any) -> bool:
    import torch
    from torch.utils._pytree import tree_leaves

    return any(isinstance(each, torch.Tensor) and each.dtype == torch.float64 for each in tree_leaves(given))


def _retype(tensor: Any, dtype: Any) -> None:
    gradient, tensor.grad = tensor.grad, None
    tensor.data = tensor.data.to(dtype)
    tensor.grad = None if gradient is None else gradient.to(dtype)


def _default_type() -> AbstractContextManager[None]:
    """What the model makes itself, a first hidden state say, is of the default type, which may be 64-bit."""
    import torch

    from overdrive.seams.torch.weights import default_dtype

    before = torch.get_default_dtype()
    return default_dtype(torch.float32 if before == torch.float64 else before)
