"""What comes and goes in the system's temporary folder, and is no file of a run's: names that are drawn by chance."""

from __future__ import annotations

import os
import re
import tempfile

_DRAWN = "[a-z0-9_]{8}"  # by `tempfile`
# Of `tempfile`, with an ending or none, `wandb`'s ending among them.
_OF_TEMPFILE = re.compile(rf"tmp{_DRAWN}([^a-z0-9_].*|wandb.*)?")
# Of multiprocessing; PyTorch's sockets, compiled code, and logs of ranks; modules of PyTorch Geometric; what TensorFlow
# makes of functions; ours.
_OF_OTHERS = re.compile(
    rf"pymp-{_DRAWN}|torch-shm-[^.]*|torchinductor_[^.]*|torchelastic_.*|torch_.*\.py|wandb(-[^.]*)?|"
    r"__autograph_generated_file.*|overdrive-.*"
)


class Temporary:
    """The system's temporary folder."""

    def __init__(self) -> None:
        """In the working folder nothing passes, be that one in the temporary folder."""
        self._folder = os.path.realpath(tempfile.gettempdir()) + "/"
        here = os.path.realpath(".") + "/"
        self._working_folder = here if here.startswith(self._folder) and here != self._folder else "\0"

    def name_of(self, path: str) -> str:
        """The file or folder there that has such a name, which `path` is or lies in; "" where it does not."""
        if not path.startswith(self._folder) or f"{path}/".startswith(self._working_folder):
            return ""
        name = path[len(self._folder) :].partition("/")[0]
        return self._folder + name if _OF_TEMPFILE.fullmatch(name) or _OF_OTHERS.fullmatch(name) else ""

    def may_be_kept(self, name: str) -> bool:
        """Of what `name_of` gave: whether the program may have made it for files of its own."""
        return bool(_OF_TEMPFILE.fullmatch(name[len(self._folder) :]))
