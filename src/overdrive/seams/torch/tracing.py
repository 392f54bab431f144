"""Whether something else than a computation is going on, in which nothing may be put into another's place."""

from __future__ import annotations

from torch._C import _functorch, _is_tracing, _len_torch_dispatch_stack
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.autograd import forward_ad
from torch.compiler import is_compiling


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
