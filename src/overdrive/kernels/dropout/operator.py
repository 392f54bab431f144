"""What dropout multiplies by, drawn on a CPU by `dropout.c`: the operator `overdrive::dropout_noise`."""

from __future__ import annotations

from typing import Any

import torch

from overdrive.kernels.build import Building
from overdrive.kernels.plain import of_floats

LEAST = 8192  # numbers: torch needs 8 ns for each, this 0.7 and 25 us of Python
_STATE = 5056  # bytes of a generator's state, as `dropout.c` reads it
# Numbers, and the share dropped.
_CASES = ((1, 0.5), (311, 0.25), (312, 0.1), (313, 1 / 3), (400, 0.15), (500, 0.45), (2000, 0.9), (20000, 0.2))


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, float] | None:
    """Of a call of `torch.dropout` or `torch.dropout_`: the input, and the share that is dropped. None if the call is
    not one that is done here."""
    given = dict(zip(("input", "p", "train"), args, strict=False)) | kwargs
    x, p = given.get("input"), given.get("p")
    if given.get("train") is not True or type(p) is not float or not 0 < p < 1 or not of_floats(x):
        return None
    return (x, p) if x.is_contiguous() and x.numel() >= LEAST else None


class Dropout:
    """The compiled function, which `overdrive::dropout_noise` calls from now on."""

    def __init__(self, building: Building) -> None:
        """
        Raises:
            CannotBuild: see `Building.load`.
        """
        import ctypes

        # As a function of Python's own library: while it runs, no other thread of Python draws.
        function = ctypes.PyDLL(None, handle=building.load()._handle).kept
        function.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64, ctypes.c_double]
        function.restype = None
        _compiled["kept"] = function

    def __call__(self, name: str, x: torch.Tensor, p: float) -> torch.Tensor:
        """
        Args:
            name: `dropout`, or `dropout_` where `x` is changed.
        """
        before = torch.default_generator.get_state()
        try:
            with torch.no_grad():
                noise = torch.ops.overdrive.dropout_noise(x, p)
            return x.mul_(noise) if name == "dropout_" else x * noise
        except Exception:  # out of memory, say: torch is to draw the same numbers then
            torch.default_generator.set_state(before)
            raise

    def differs(self, plain: Any) -> str | None:
        """In what it differs from torch's `plain`, where it does. The generator's state is put back."""
        generator = torch.default_generator
        before = generator.get_state()
        try:
            for count, p in _CASES:
                x, found = torch.ones(count), []
                first = generator.get_state()
                for way in (lambda x, p: self("dropout", x, p), lambda x, p: plain(x, p, True)):
                    generator.set_state(first)
                    found.append((way(x, p), generator.get_state()))
                (one, after), (other, after_other) = found
                if not torch.equal(one, other):
                    return "torch draws otherwise on this machine: what is dropped differs"
                if not torch.equal(after, after_other):
                    return "its generator is left in another state than torch's"
        finally:
            generator.set_state(before)
        return None


class Disturbed(Exception):
    """Another thread has drawn meanwhile."""


_compiled: dict[str, Any] = {}
_library: Any = torch.library.Library("overdrive", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("dropout_noise(Tensor x, float p) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))


def _noise(x: torch.Tensor, p: float) -> torch.Tensor:
    """Returns: of `x`'s shape, 0, or 1 / (1 - p) where it is kept.

    Raises:
        Disturbed: nothing was drawn.
    """
    generator, noise = torch.default_generator, torch.empty_like(x)
    state = generator.get_state()
    if state.numel() != _STATE:
        raise Disturbed("the generator's state is of another size than torch's")
    before = state.clone()
    _compiled["kept"](state.data_ptr(), noise.data_ptr(), noise.numel(), 1 - p)
    if not torch.equal(generator.get_state(), before):
        raise Disturbed("another thread draws from the generator while the model is called")
    generator.set_state(state)
    return noise


_library.impl("dropout_noise", _noise, "CPU")
torch.library.register_fake("overdrive::dropout_noise", lambda x, p: torch.empty_like(x), lib=_library)
