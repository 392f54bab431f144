"""Whether something else than a computation is going on, in which nothing may be put into another's place."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


def traced() -> bool:
    """Whether there is a trace, a transform (vmap, jvp) or an observer of operations.

    Or Python between two compiled pieces of a model, where functions that are called would be compiled, ours too.
    """
    return bool(
        torch.compiler.is_compiling()
        or torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None
        or torch._C._is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
    )
