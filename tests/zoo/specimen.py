"""A technique of the zoo from a function: `@specimen("images", Contract.ROUNDING)` over an `install(seams)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from overdrive.core.contract import Contract
from overdrive.seams.hub import Handle, Seams
from overdrive.seams.patch import Patches
from overdrive.techniques.technique import Settings, Technique


class Specimen(Technique):
    family = "zoo"
    targets = ()
    program: ClassVar[str]  # which of the zoo's programs it is tried on
    installs: ClassVar[Callable[[Seams], None]]

    def install(self, seams: Seams, settings: Settings) -> Handle:
        type(self).installs(seams)
        return seams.handle()


def specimen(program: str, contract: Contract) -> Callable[[Callable[[Seams], None]], type[Specimen]]:
    """`contract`: of a defect, the most lenient level that must catch it, and all stricter ones must as well; of a
    harmless technique, the strictest level that must let it pass, and all more lenient ones must as well.
    """

    def make(install: Callable[[Seams], None]) -> type[Specimen]:
        fields: dict[str, Any] = {
            "__doc__": install.__doc__,
            "__module__": install.__module__,
            "name": install.__name__,
            "contract": contract,
            "program": program,
            "installs": staticmethod(install),
        }
        return type(install.__name__, (Specimen,), fields)

    return make


class Swap:
    """Attributes put in the place of others, and back when the session ends."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams

    def __call__(self, holder: Any, name: str, value: Any) -> Any:
        """Returns what stood there."""
        before, patches = getattr(holder, name), Patches()
        patches.replace(holder, name, value)  # what was inherited is inherited again afterwards
        self._seams.on_undo(patches.restore)
        return before
