"""How this `overdrive run` was begun, and how it begins again: with variables that must be there before the process
starts, or without a technique under which the program failed."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from overdrive.session import Chosen, environment_for

_HANDED_ON = "OVERDRIVE_HANDED_ON"  # from the process before this one


class Beginning:
    """Made before the program runs, which may change all of this."""

    def __init__(self) -> None:
        handed_on = json.loads(os.environ.pop(_HANDED_ON, "{}"))
        self.left_out: dict[str, str] = handed_on.get("left_out", {})  # the program failed under these
        self._prepared = "former" in handed_on
        self._former: dict[str, str | None] = handed_on.get("former", {})  # what variables were set to before
        self._words = sys.argv[1:]
        self._folder = os.getcwd()
        self._environment = dict(os.environ)

    def again_with_environment(self, techniques: list[Chosen]) -> None:
        """Begin again where variables are missing that must be there before the process starts."""
        needed = environment_for(techniques)
        missing = {name: value for name, value in needed.items() if os.environ.get(name) != value}
        if self._prepared or not missing:
            return
        former = {name: os.environ.get(name) for name in missing}
        self._replace({**self._environment, **missing}, {"former": former, "left_out": self.left_out})

    def again_without(self, failed: Mapping[str, str]) -> NoReturn:
        """Begin again without these techniques (name and reason), as if they had not been chosen.

        Raises:
            OSError: the folder that it was begun in is gone.
        """
        os.chdir(self._folder)
        environment = {
            **self._environment,
            **{name: value for name, value in self._former.items() if value is not None},
        }
        for name in [name for name, value in self._former.items() if value is None]:
            environment.pop(name, None)
        atexit._run_exitfuncs()  # this process will not come to its end, where they would be called
        self._replace(environment, {"left_out": {**self.left_out, **failed}})

    def _replace(self, environment: Mapping[str, str], handed_on: Mapping[str, Any]) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        command = [sys.executable, *_interpreter_flags(), "-m", "overdrive", *self._words]
        os.execve(sys.executable, command, {**environment, _HANDED_ON: json.dumps(handed_on)})


def _interpreter_flags() -> list[str]:
    import subprocess

    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined, no-any-return]
