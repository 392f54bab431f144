"""Whether a call or a module is transformed, traced or compiled by somebody, so that nothing may take its place."""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch._C import _functorch, _is_tracing, _len_torch_dispatch_stack
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from overdrive.seams.torch.internals import is_compiled


def transformed() -> bool:
    """Whether this runs within a function transform (vmap, grad, jvp)."""
    return _functorch.peek_interpreter_stack() is not None


def compiled(module: Any) -> bool:
    """Whether this module itself is compiled: in place, as a wrapper, or by its `forward`."""
    if module._compiled_call_impl is not None or "_orig_mod" in module._modules:
        return True
    return is_compiled(getattr(module.forward, "__func__", module.forward))


_COMPILER = ("torch._inductor.", "torch._functorch.", "torch._dynamo.")


def of_the_compiler(frame: FrameType) -> bool:
    """Whether this is code of PyTorch's compiler, which runs beside what it has compiled: no call of the program's."""
    return str(frame.f_globals.get("__name__", "")).startswith(_COMPILER)


def traced() -> bool:
    """Whether there is a trace, a transform (vmap, jvp) or an observer of operations.

    Or Python between two compiled pieces of a model, where functions that are called would be compiled, ours too.
    """
    return (
        is_compiling()
        or get_eval_frame_callback() is not None
        or _is_tracing()
        or _functorch.peek_interpreter_stack() is not None
        or _len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    )


def uncompiled(module: Any) -> Any:
    """The module as its author wrote it, where the program calls it through `torch.compile`."""
    return getattr(module, "_orig_mod", module)
