"""Whether any call of a program is of a kind that an engine takes: noted where facts are gathered.

A duel of an engine that takes none of them starts a process, makes eight calls and ends: 20 s of a tune for a program
that imports transformers, and there are two libraries. Imports no framework.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from overdrive.core.by_identity import ByIdentity

if TYPE_CHECKING:
    from overdrive.engines.submodules import Submodules
    from overdrive.seams.hub import Seams

_FEWEST, _MOST = 8, 64  # calls that are looked at; an engine leaves itself out after as many as the first
# Of a module within a model. What is asked before an engine's call takes 0.2 ms, and some engines are no faster than
# PyTorch: of a decoder of six layers with a cache (7.5 ms a token), whose layers' halves they answered, they made 0.40
# to 0.66x, in 100 s of a tune of 180.
_LEAST_SECONDS = 2e-3
_IN_VAIN = "in_vain"


def look_at_calls(seams: Seams) -> Callable[[], Mapping[str, Any]]:
    """Subscribe, for `Technique.observe`."""
    looked: Counter[str] = Counter()  # calls, by why they are the model's own
    submodules: ByIdentity[Submodules] = ByIdentity()
    seconds: ByIdentity[float] = ByIdentity()  # that a call of a module took, the quickest

    def called(model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if "" in looked or looked.total() >= _MOST:
            return call(*args, **kwargs)
        from overdrive.engines.answering import lasts, why_the_models_own
        from overdrive.engines.submodules import Submodules
        from overdrive.seams.torch.models import follow_forward
        from overdrive.seams.torch.modules import first_parameter

        if first_parameter(model) is None:  # a loss or a transform says nothing of the model
            return call(*args, **kwargs)
        looked[why := why_the_models_own(model, args, kwargs)] += 1
        if not lasts(why):
            return call(*args, **kwargs)
        found = submodules[model] = submodules.get(model) or Submodules(model, partial(follow_forward, seams))
        return found.call(call, args, kwargs)

    def submodule_called(module: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from overdrive.engines.answering import lasts, why_the_models_own
        from overdrive.engines.submodules import under_way

        if (found := under_way()) is None:
            return call(*args, **kwargs)
        found.came(module)
        if why := why_the_models_own(module, args, kwargs):
            if lasts(why):
                found.replace(module)
            return call(*args, **kwargs)
        began = time.perf_counter()
        result = call(*args, **kwargs)
        before = seconds.get(module, math.inf)
        seconds[module] = min(before, time.perf_counter() - began)
        if before < math.inf and seconds[module] >= _LEAST_SECONDS:  # the first call takes longer than others
            looked[""] += 1
        return result

    seams.submodule_called.subscribe(submodule_called)
    seams.model_called.subscribe(called)
    return lambda: {_IN_VAIN: looked.most_common(1)[0][0]} if looked.total() >= _FEWEST and "" not in looked else {}


def in_vain(own: Mapping[str, Any]) -> str:
    """Why no engine would answer, of what was found out; empty where one may."""
    return str(own.get(_IN_VAIN, ""))
