"""Keras 2, which has no other seam than this (`tf_keras`, which is `tf.keras` where TF_USE_LEGACY_KERAS is set):
whether a program trains with it. Else its user would only hear that no step was seen."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.seams.patch import Patches

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams

MODULE = "tf_keras"
NOT_FOLLOWED = "Keras 2 (tf_keras), which Overdrive does not follow; it follows Keras 3"


def enter(hub: Seams) -> Callable[[], None]:
    """It has been imported."""
    patches = Patches()
    optimizers = sys.modules[MODULE].optimizers
    for kind in (optimizers.Optimizer, optimizers.legacy.Optimizer):
        patches.replace(kind, "apply_gradients", _told(hub, kind.apply_gradients))
    return patches.restore


def _told(hub: Seams, plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def apply_gradients(*args: Any, **kwargs: Any) -> Any:
        hub.keras_2_applied.publish()
        return plain(*args, **kwargs)

    return apply_gradients
