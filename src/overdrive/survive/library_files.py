"""Libraries that open files past Python: what they write is noted, and goes elsewhere while the run is made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from overdrive.sandbox.redirect import have_follow, have_hdf5_follow
from overdrive.seams.arrival import Arrival

if TYPE_CHECKING:
    from overdrive.survive.files import Files
    from overdrive.survive.rehearsed_files import RehearsedFiles


class LibraryFiles:
    def __init__(self, files: Files, rehearsed: Callable[[], RehearsedFiles | None]) -> None:
        """`rehearsed`: gives where files are while the run is made again."""
        self._files, self._rehearsed = files, rehearsed

    def listen(self) -> None:
        Arrival("safetensors", lambda: have_follow("safetensors", self._path_to_write, self._path_to_read)).watch()

    def torch_arrived(self) -> None:
        have_follow("torch", self._path_to_write, self._path_to_read)

    def keras_arrived(self) -> None:
        Arrival("h5py", lambda: have_hdf5_follow(self._path_in_mode)).watch()

    def _path_to_write(self, path: str) -> str:
        rehearsed = self._rehearsed()
        return self._files.noted(path) if rehearsed is None else rehearsed.path_to_write(path)

    def _path_to_read(self, path: str) -> str:
        rehearsed = self._rehearsed()
        return path if rehearsed is None else rehearsed.path_to_read(path)

    def _path_in_mode(self, path: str, mode: str) -> str:
        return (self._path_to_read if mode == "r" else self._path_to_write)(path)
