"""Engines that are kept on disk: the next run takes them as they are, or builds its own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.core.places import engines_folder
from overdrive.engines import kept as kept_module
from overdrive.engines.answering import EngineAnswers
from overdrive.engines.kept import KeptEngines
from tests.engines.graph_runtime import Graphs

KEY, PARTS = "a" * 64, {"xml": b"<net/>", "bin": bytes(range(256)) * 5, "none": b""}


class Net(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(F.relu(self.conv(x)).mean((2, 3))) * self.scale


def run(
    model: nn.Module | None = None,
    runtime: Graphs | None = None,
    given: torch.Tensor | None = None,
    calls: int = 10,
) -> Graphs:
    """What an engine makes of a run of its own: all its answers are the model's, and some are the engine's."""
    torch.manual_seed(0)
    model, runtime = (model or Net()).eval(), runtime or Graphs()
    x = torch.randn(2, 3, 8, 8) if given is None else given
    answers = EngineAnswers(runtime, "engine")
    with torch.no_grad():
        for _ in range(calls):
            found = answers.called(model, model.forward, x)
            assert torch.allclose(found, model(x), rtol=1e-4, atol=1e-6)
    assert answers.answered > 0, answers.told()
    return runtime


def kept() -> list[Path]:
    folder = engines_folder()
    return sorted(folder.iterdir()) if folder.is_dir() else []


def test_the_second_run_takes_what_the_first_has_built() -> None:
    assert (len(run().built), len(kept())) == (1, 1)
    again = run()
    assert (again.built, again.loaded_again) == ([], 1)


CHANGES: dict[str, Callable[[], Graphs]] = {
    "other weights": lambda: run(_with(lambda model: model.fc.weight.data.mul_(2))),
    "one value": lambda: run(_with(lambda model: model.conv.weight.data.view(-1).__setitem__(7, 9.0))),
    "an attribute": lambda: run(_with(lambda model: setattr(model, "scale", 2.0))),
    "another class": lambda: run(_another()),
    "another layer": lambda: run(_with(lambda model: setattr(model, "conv", nn.Conv2d(3, 4, 3, bias=False)))),
    "another shape": lambda: run(given=torch.randn(3, 3, 8, 8)),
    "another type": lambda: run(_with(lambda model: model.double()), given=torch.randn(2, 3, 8, 8).double()),
    "another library": lambda: run(runtime=_of(versions="2")),
    "another precision": lambda: run(runtime=_of(title="the graph in int8")),
}


class Other(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(F.gelu(self.conv(x)).mean((2, 3))) * self.scale


def _another() -> Other:
    torch.manual_seed(0)
    return Other()


def _with(change: Callable[[Net], Any]) -> Net:
    torch.manual_seed(0)
    change(model := Net())
    return model


def _of(**attributes: str) -> Graphs:
    runtime = Graphs()
    for name, value in attributes.items():
        setattr(runtime, name, value)
    return runtime


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_engine_has_another_key(change: Callable[[], Graphs]) -> None:
    run(_with(lambda model: None))
    changed = change()
    assert (len(changed.built), changed.loaded_again, len(kept())) == (1, 0, 2)


def test_it_is_calibrated_by_the_same_inputs_or_anew() -> None:
    torch.manual_seed(1)
    one, other = torch.randn(2, 2, 3, 8, 8)
    assert len(run(runtime=Graphs(calibrating=4), given=one, calls=20).built) == 1
    assert run(runtime=Graphs(calibrating=4), given=one, calls=20).built == []
    assert len(run(runtime=Graphs(calibrating=4), given=other, calls=20).built) == 1


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def _foreign(path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, 12345)


def _a_link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def _another_version(path: Path) -> None:
    parts = KeptEngines().take(path.stem)
    assert parts is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_module, "_FORMAT", 0)
        assert KeptEngines().keep(path.stem, parts)


def _swapped(path: Path) -> None:
    run(_with(lambda model: model.fc.weight.data.mul_(2)))
    (other,) = set(kept()) - {path}
    other.replace(path)


def _of_other_weights(path: Path) -> None:
    """As nothing but a mistake of ours could make it: whole, and under this name."""
    run(_with(lambda model: model.fc.weight.data.mul_(2)))
    (other,) = set(kept()) - {path}
    parts = KeptEngines().take(other.stem)
    assert parts is not None and KeptEngines().keep(path.stem, parts)


SPOILT: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut at its head": lambda path: os.truncate(path, 20),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.open("ab").write(b"more"),
    "one bit": _flip,
    "writable for all": lambda path: path.chmod(0o666),
    "another user's": _foreign,
    "a link": _a_link,
    "no file": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "another version": _another_version,
    "swapped": _swapped,
    "of other weights": _of_other_weights,
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@pytest.mark.fault(12)
def test_what_is_not_what_was_written_is_built_anew(spoil: Callable[[Path], Any]) -> None:
    run(_with(lambda model: None))
    (path,) = kept()
    spoil(path)
    assert len(run(_with(lambda model: None)).built) == 1


def test_what_a_link_leads_to_is_neither_read_nor_written() -> None:
    run(_with(lambda model: None))
    (path,) = kept()
    _a_link(path)
    elsewhere = path.resolve()
    before = elsewhere.read_bytes()
    elsewhere.write_bytes(b"the user's own")
    run(_with(lambda model: None))
    assert elsewhere.read_bytes() == b"the user's own"
    assert not path.is_symlink() and len(path.read_bytes()) == len(before)


def test_a_wrong_engine_is_not_kept() -> None:
    torch.manual_seed(0)
    model, answers = Net().eval(), EngineAnswers(Graphs(lambda array: array * 1.1), "engine")
    with torch.no_grad():
        for _ in range(6):
            answers.called(model, model.forward, torch.randn(2, 3, 8, 8))
    assert answers.answered == 0 and kept() == []


def test_a_recurrent_model_is_kept_too() -> None:
    """Which holds weak references to its weights."""

    class Recurrent(nn.LSTM):
        def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]
            return super().forward(x)[0]

    given = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    for built in (1, 0):
        torch.manual_seed(0)
        assert len(run(Recurrent(8, 4), given=given).built) == built
    torch.manual_seed(1)
    assert len(run(Recurrent(8, 4), given=given).built) == 1, "other weights"


HELD_ELSEWHERE = nn.Linear(1, 1)


def test_a_model_that_cannot_be_told_in_another_process_is_built_in_each_run() -> None:
    def opaque(model: nn.Module) -> None:
        model.elsewhere = weakref.ref(HELD_ELSEWHERE)  # by nothing that the model has: it may be gone

    for _ in range(2):
        assert len(run(_with(opaque)).built) == 1
    assert kept() == []


def test_where_nothing_can_be_written_engines_answer_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERDRIVE_CACHE", "/proc/nowhere")
    assert len(run().built) == 1


def test_the_parts_come_back_as_they_were_and_the_longest_unused_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = KeptEngines(tmp_path / "engines")
    keys = [letter * 64 for letter in "abc"]
    assert engines.take(keys[0]) is None
    assert engines.keep(keys[0], PARTS) and engines.keep(keys[1], PARTS)
    assert engines.take(keys[0]) == PARTS and list(PARTS) == list(engines.take(keys[0]) or ())
    assert (tmp_path / "engines").stat().st_mode & 0o777 == 0o700
    for age, key in enumerate((keys[0], keys[1])):
        os.utime(tmp_path / "engines" / f"{key}.engine", (age, age))
    assert engines.take(keys[0]) == PARTS  # used again: the other is the older one now
    size = (tmp_path / "engines" / f"{keys[0]}.engine").stat().st_size
    monkeypatch.setattr(kept_module.shutil, "disk_usage", lambda folder: Room(free=8 * size))
    monkeypatch.setattr(kept_module, "_SHARE_OF_FREE_DISK", 0.2)
    assert engines.keep(keys[2], PARTS)
    assert [engines.take(key) is not None for key in keys] == [True, False, True]
    monkeypatch.setattr(kept_module.shutil, "disk_usage", lambda folder: Room(free=0))
    assert not engines.keep("d" * 64, {"bin": bytes(10 * size)}), "larger than all that there is room for"


class Room:
    def __init__(self, free: int) -> None:
        self.free = free


def test_what_a_process_left_half_written_goes(tmp_path: Path) -> None:
    engines = KeptEngines(tmp_path)
    assert engines.keep(KEY, PARTS)
    old, new = tmp_path / ".x.engine.1234.tmp", tmp_path / ".y.engine.1234.tmp"
    for each in (old, new):
        each.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert engines.keep("b" * 64, PARTS)
    assert not old.exists() and new.exists()
