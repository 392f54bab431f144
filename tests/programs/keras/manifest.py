"""What the naive Keras programs of this folder are and how they are started."""

from __future__ import annotations

from tests.programs.manifest import NaiveProgram

_KERAS = ("keras", "tensorflow")

PROGRAMS: tuple[NaiveProgram, ...] = (
    NaiveProgram("fit_callbacks", ("fit_callbacks.py",), _KERAS, writes=True),
    NaiveProgram("train_on_batch", ("train_on_batch.py",), _KERAS, optimizer_steps=40),
    NaiveProgram("subclassed", ("subclassed.py",), _KERAS, optimizer_steps=30, writes=True),
    NaiveProgram("tape_loop", ("tape_loop.py",), _KERAS, optimizer_steps=48),
    NaiveProgram("tape_eager", ("tape_eager.py",), _KERAS, optimizer_steps=30, writes=True),
    NaiveProgram("multi_output", ("multi_output.py",), _KERAS, optimizer_steps=30),
    NaiveProgram("tf_data", ("tf_data.py",), _KERAS, optimizer_steps=48),
    NaiveProgram("pydataset", ("pydataset.py",), _KERAS, optimizer_steps=33),
    NaiveProgram("custom_train_step", ("custom_train_step.py",), _KERAS, optimizer_steps=40),
    NaiveProgram("normalised", ("normalised.py",), (*_KERAS, "sklearn"), optimizer_steps=48, writes=True),
    NaiveProgram("torch_loader", ("torch_loader.py",), (*_KERAS, "torch"), optimizer_steps=20),
    NaiveProgram("raises_in_callback", ("raises_in_callback.py",), _KERAS, exit_code=1),
)
