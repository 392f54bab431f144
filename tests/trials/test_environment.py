"""The variables of a trial's processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.seams.hub import Seams
from overdrive.trials.environment import environment_of
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.worker import main
from tests.simulated import target

ONE_STEP = """
import torch
import helping
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
(weight * 2).sum().backward()
optimizer.step()
"""


def test_deterministic_operations_give_cublas_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch refuses each product of matrices on a GPU otherwise, and blames that."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    plain = TrialSpec(target(tmp_path))
    careful = TrialSpec(plain.program, deterministic=True)
    with TrialPool(isolate=False) as pool:
        assert "CUBLAS_WORKSPACE_CONFIG" not in environment_of(pool, plain, tmp_path)
        assert environment_of(pool, careful, tmp_path)["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        assert environment_of(pool, careful, tmp_path)["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.parametrize("isolation", ["overlay", "redirect"])
def test_trials_share_the_bytecode_of_what_has_none(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a trial writes beside the modules is thrown away with it."""
    monkeypatch.setattr("overdrive.trials.pool.lacks_bytecode", lambda: ("torch",))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("OVERDRIVE_ISOLATION", isolation)
    (tmp_path / "helping.py").write_text("started = True\n")
    (tmp_path / "train.py").write_text(ONE_STEP)
    with TrialPool() as pool:
        trial = Trial(pool, TrialSpec(Program(str(tmp_path / "train.py"), (), False)))
        trial.first_step()
        trial.stop()
        assert pool.bytecode is not None
        assert any(pool.bytecode.rglob("helping.*.pyc"))
        assert not list(tmp_path.rglob("*.pyc"))


# As the library of Rust does: past Python, into a file beside it that is renamed; and as its module for PyTorch has it.
SAFETENSORS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def serialize_file(tensors, filename, metadata=None):
    beside, data = os.fsencode(filename) + b".tmp", b"".join(tensors.values())
    handle = libc.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    if handle < 0:
        raise OSError(ctypes.get_errno(), "Error while serializing")
    libc.write(handle, data, len(data))
    libc.close(handle)
    if libc.rename(beside, os.fsencode(filename)):
        raise OSError(ctypes.get_errno(), "Error while serializing")
class safe_open:
    def __init__(self, filename, framework):
        handle, data = libc.open(os.fsencode(filename), os.O_RDONLY), ctypes.create_string_buffer(100)
        count = libc.read(handle, data, 100)
        self.data = data.raw[:count]
"""
SAVES = """
import os
from safetensors.torch import safe_open, serialize_file
os.makedirs("out", exist_ok=True)
for name in ("model.safetensors", "out/new.safetensors"):
    serialize_file({"w": b"of the trial"}, name)
    assert safe_open(name, "pt").data == b"of the trial"
"""


@pytest.mark.parametrize("isolation", ["overlay", "redirect"])
@pytest.mark.fault("files")
def test_what_a_trial_saves_by_safetensors_is_read_back_and_thrown_away(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERDRIVE_ISOLATION", isolation)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").write_text(SAFETENSORS)
    (tmp_path / "safetensors" / "torch.py").write_text("from safetensors import safe_open, serialize_file\n")
    (tmp_path / "helping.py").write_text("")
    (tmp_path / "train.py").write_text(SAVES + ONE_STEP)
    (tmp_path / "model.safetensors").write_text("of a week")
    with TrialPool() as pool:
        trial = Trial(pool, TrialSpec(Program(str(tmp_path / "train.py"), (), False)))
        trial.first_step()
        trial.stop()
    assert (tmp_path / "model.safetensors").read_text() == "of a week" and not (tmp_path / "out").exists()


def test_what_pytorch_writes_is_redirected_when_pytorch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Keras program it never is: an error of ours, and nothing of the program was followed."""
    told: list[str] = []
    monkeypatch.setattr(main, "redirect_torch", lambda: told.append(seams.frameworks[-1]))
    monkeypatch.setattr(main, "FOLLOWERS", {})
    seams = Seams()
    main._redirected(seams)
    for name in ("keras", "torch"):
        seams.frameworks.append(name)
        seams.framework_arrived.publish()
    assert told == ["torch"] and not seams.left_out


def test_python_keeps_its_own_bytecode_where_it_has_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overdrive.trials.pool.lacks_bytecode", tuple)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    with TrialPool(isolate=False) as pool:
        environment = environment_of(pool, TrialSpec(target(tmp_path)), tmp_path)
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1" and "PYTHONPYCACHEPREFIX" not in environment


@pytest.mark.parametrize(("asked", "told"), [("disabled", "disabled"), ("online", "offline"), (None, "offline")])
def test_a_tracker_that_is_off_stays_off(
    asked: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline it starts a process of its own, which the run does not have."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if asked:
        monkeypatch.setenv("WANDB_MODE", asked)
    with TrialPool() as pool:
        assert environment_of(pool, TrialSpec(target(tmp_path)), tmp_path)["WANDB_MODE"] == told


SERVER = """
import os
import torch
import mlflow
from mlflow.tracking import utils, models
print("given", utils._resolve_tracking_uri("http://server"), models._resolve_registry_uri("databricks-uc"))
os.environ["MLFLOW_TRACKING_URI"] = "https://server:5000/"
print("in the environment", utils._resolve_tracking_uri())
print("files", utils._resolve_tracking_uri("own"), os.environ["MLFLOW_ALLOW_FILE_STORE"], "MLFLOW_RUN_ID" in os.environ)
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
(weight * 2).sum().backward()
optimizer.step()
"""
# As in MLflow 3.17: what finds the address of a store.
STORES = """
import os
def {name}(uri=None): return uri or os.environ["MLFLOW_TRACKING_URI"]
"""


@pytest.mark.parametrize("in_environment", [True, False])
def test_a_trial_tells_no_server_of_its_run_even_where_the_program_names_one(
    in_environment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = tmp_path / "mlflow" / "tracking"
    for room, name in (("_tracking_service", "_resolve_tracking_uri"), ("_model_registry", "_resolve_registry_uri")):
        (tracking / room).mkdir(parents=True)
        (tracking / room / "__init__.py").touch()
        (tracking / room / "utils.py").write_text(STORES.format(name=name))
    (tracking / "__init__.py").write_text(
        "from mlflow.tracking._tracking_service import utils\n"
        "from mlflow.tracking._model_registry import utils as models\n"
    )
    (tmp_path / "mlflow" / "__init__.py").write_text("import mlflow.tracking\n")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)
    if in_environment:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
        monkeypatch.setenv("MLFLOW_RUN_ID", "1")
    (tmp_path / "train.py").write_text(SERVER)
    with TrialPool() as pool:
        trial = Trial(pool, TrialSpec(Program(str(tmp_path / "train.py"), (), False)))
        trial.first_step()
        said = trial.output_tail(5000)
        trial.stop()
    here = f"file://{pool.scratch}"
    assert "server" not in said and "databricks" not in said and said.count(here) == 3, said
    assert "files own true False" in said, said


def test_a_program_in_a_folder_and_with_words_that_are_no_text_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text("pass")
    one, other = (Program("train.py", (os.fsdecode(word),)).identity() for word in (b"\xe9", b"\xe8"))
    assert one != other
