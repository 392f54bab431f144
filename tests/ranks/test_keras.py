"""Programs of Keras on two ranks: on PyTorch they print the numbers of one process; elsewhere they are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.conftest import Run
from tests.ranks.comparing import difference

HERE = Path(__file__).parent
ROUNDING = 1e-6  # Keras multiplies matrices and adds up metrics in fp32, whatever a program asks for
LONG = ("compiled_by_torch",)  # a minute
NAMES = tuple(re.findall(r"^@program\ndef (\w+)", (HERE / "keras_programs.py").read_text(), re.MULTILINE))
DEFECTS = {
    name: program
    for program, name in re.findall(
        r'^@defect\("(\w+)"\)\ndef (\w+)', (HERE / "keras_defects.py").read_text(), re.MULTILINE
    )
}

pytestmark = pytest.mark.cluster
Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def on_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("keras") is None:
        pytest.skip("needs keras (an optional extra)")
    for name, value in {
        "KERAS_BACKEND": "torch",
        "KERAS_HOME": str(tmp_path / "keras"),
        "CUDA_VISIBLE_DEVICES": "",
    }.items():
        monkeypatch.setenv(name, value)


def numbers_of(ran: CompletedProcess[str]) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in ran.stdout.splitlines() if ": " in line)


def compare(names: tuple[str, ...], python: Run, overdrive: Run) -> str:
    """What was said of them on ranks."""
    expected = numbers_of(python("keras_programs.py", *names, cwd=HERE))
    told = overdrive("run", "--ranks", "2", "keras_programs.py", *names, cwd=HERE)
    got = numbers_of(told)
    assert told.returncode == 0, told.stderr
    assert expected.keys() == got.keys() == {*names} and not any("Error" in each for each in expected.values())
    differing = {name: difference(expected[name], got[name], ROUNDING) for name in names}
    assert not any(differing.values()), differing
    return told.stderr


def test_programs_print_the_numbers_of_one_process(python: Run, overdrive: Run) -> None:
    told = compare(tuple(name for name in NAMES if name not in LONG), python, overdrive)
    assert re.findall(r"overdrive: (\w+) is called whole on every rank: (.*)", told) == [
        ("Sequential", "it keeps something of the batch: a TrackedList, '_losses' of a Dense"),
        ("Sequential", "it draws random numbers (alpha_dropout) as it did not before"),
        ("Keeping", "it keeps something of the batch: its attribute 'inner'"),
    ]


@pytest.mark.long
def test_a_compiled_program_does_and_is_called_whole(python: Run, overdrive: Run) -> None:
    told = compare(LONG, python, overdrive)
    assert "Sequential is called whole on every rank: its steps are compiled (jit_compile)" in told


@pytest.mark.fault(19)
def test_seeded_defects_change_the_numbers(python: Run, overdrive: Run) -> None:
    one = numbers_of(python("keras_programs.py", *set(DEFECTS.values()), cwd=HERE))
    got = numbers_of(overdrive("run", "--ranks", "2", "keras_defects.py", cwd=HERE))
    assert got.keys() == DEFECTS.keys()
    assert not [name for name, program in DEFECTS.items() if not difference(one[program], got[name], ROUNDING)]


@pytest.mark.fault(19)
@pytest.mark.parametrize("name", ["each_rank_applies_its_own_gradients", "one_rank_with_other_weights"])
def test_a_rank_with_other_weights_stops_the_run(name: str, overdrive: Run) -> None:
    told = overdrive("run", "--ranks", "2", "keras_defects.py", "guarded", name, cwd=HERE)
    assert told.returncode == 1 and not told.stdout
    assert re.search(r"stopped at step 1: the parameters .* of rank 1 differ from those of rank 0", told.stderr)


SAVING = """
import os
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.rand(50, 6).astype("float32")
y = (x.sum(1) > 3).astype("int32")
print("loaded", flush=True)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
callbacks = [keras.callbacks.ModelCheckpoint("best.keras"), keras.callbacks.CSVLogger("history.csv")]
model.fit(x, y, batch_size=16, epochs=2, verbose=2, callbacks=callbacks, validation_data=(x[:20], y[:20]))
again = keras.saving.load_model("best.keras")
print("same", bool((again.predict(x, verbose=0) == model.predict(x, verbose=0)).all()))
"""


def test_files_are_written_once(script: Write, python: Run, overdrive: Run) -> None:
    folder = script(SAVING).parent
    one = python("train.py", cwd=folder)
    history = (folder / "history.csv").read_text()
    for each in ("best.keras", "history.csv"):
        (folder / each).unlink()
    many = overdrive("run", "--ranks", "2", "train.py", cwd=folder)
    assert many.returncode == one.returncode == 0, many.stderr
    assert one.stdout.endswith("same True\n") and many.stdout.endswith("same True\n")
    assert not difference(history, (folder / "history.csv").read_text(), 1e-4)
    assert sorted(each.name for each in folder.iterdir()) == ["best.keras", "history.csv", "train.py"]


@pytest.mark.parametrize(("backend", "title"), [("tensorflow", "TensorFlow"), ("jax", "JAX")])
def test_other_backends_are_refused_before_training(
    backend: str, title: str, script: Write, overdrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    folder = script(SAVING).parent
    told = overdrive("run", "--ranks", "2", "train.py", cwd=folder)
    assert told.returncode == 1 and told.stdout == "loaded\n"
    [sentence] = [line for line in told.stderr.splitlines() if line.startswith("overdrive: ")]
    assert "KERAS_BACKEND=torch" in sentence and title in sentence
    assert [each.name for each in folder.iterdir()] == ["train.py"]


def test_other_layouts_are_refused_before_training(script: Write, overdrive: Run) -> None:
    folder = script(SAVING).parent
    told = overdrive("run", "--ranks", "2", "--layout", "shard=2", "train.py", cwd=folder)
    assert told.returncode == 1 and told.stdout == "loaded\n"
    [sentence] = [line for line in told.stderr.splitlines() if line.startswith("overdrive: ")]
    assert (
        sentence == "overdrive: of a program of Keras only the batches are divided: leave out --layout, or give data=N"
    )


def test_there_are_enough_programs_and_defects() -> None:
    assert len(NAMES) >= 20 and len(DEFECTS) >= 6 and {*DEFECTS.values(), *LONG} <= {*NAMES}
