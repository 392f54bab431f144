"""Technique `packed_files`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams


class PackedFiles(Technique):
    """Reads many small files from a few large ones that `overdrive pack` wrote.

    What it does: where the program opens one of the packed files with `open(PATH, "rb")` (as PIL, NumPy and
    most of Python do), its bytes come from a shard that is already open. Of opening, looking at, reading and
    closing the file there remain, as strace shows, one stat at its first opening and one read. Paths, sampler,
    order and shuffling are the program's own.

    When it helps: on parallel and network file systems, where opening a small file takes a round trip to
    another machine or two, and reading a large one does not.

    When it hurts: on a local disk it saves nothing: opening a small file takes no longer there than finding it
    in a shard (50 µs, both). It takes as much disk as the files themselves. Libraries that read in C
    (cv2.imread, h5py) and workers that are spawned rather than forked go to the files themselves; so does
    whatever asks a file for its handle, as np.load does of .npy files: `overdrive pack` leaves such files out.

    Contract: exact. Every content is checked against its crc32 whenever it is read, and a file's size and
    modification time against the index when it is first opened: what differs is read from its own place, and
    so is what the program itself overwrites, moves or removes through Python. A file that another program, or
    code in C, changes while this one runs is noticed by the next run only. The files must still be there: names,
    sizes and folders are looked up where they are.

    Source: the shards are plain tar archives, as in https://github.com/webdataset/webdataset; for what small
    files cost see https://arxiv.org/abs/2001.01858.
    """

    name = "packed_files"
    family = "data"
    contract = Contract.EXACT
    targets = ("data",)
    expected_saving = 0.5
    order = 5
    knobs = (Knob("index", "", "the index.json that `overdrive pack` wrote"),)

    def applies(self, facts: Facts) -> str | None:
        return "it needs shards, which `overdrive pack SCRIPT` writes together with a plan"

    def install(self, seams: Seams, settings: Settings) -> Handle:
        if not settings["index"]:
            raise CannotInstall("its plan names no index; `overdrive pack SCRIPT` writes one")
        from overdrive.datacache.shards import PackError
        from overdrive.samples.packed.reading import Packed
        from overdrive.seams.files import answer_opens

        try:
            packed = Packed(Path(str(settings["index"])), _warn)
        except PackError as error:
            raise CannotInstall(str(error)) from None
        seams.on_undo(packed.close)
        seams.on_undo(answer_opens(packed.open))
        return seams.handle()


def _warn(sentence: str) -> None:
    print(f"overdrive: packed_files: {sentence}", file=sys.stderr)
