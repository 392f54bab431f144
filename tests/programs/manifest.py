"""What the naive programs of this folder are and how they are started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NaiveProgram:
    """One naive training program.

    ``command`` is what follows ``python``, with paths relative to this folder; a ``-m`` command needs
    this folder as working directory (or on PYTHONPATH). ``needs`` names modules that must be importable.
    ``optimizer_steps`` counts the ``Optimizer.step()`` calls of a run with the default arguments that
    starts in an empty folder, over all optimizers; None where it isn't known. ``writes`` says whether the
    program writes into its working directory: start such a program in an empty folder.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    exit_code: int = 0
    optimizer_steps: int | None = None
    writes: bool = False


PROGRAMS: tuple[NaiveProgram, ...] = (
    NaiveProgram("cnn_argparse", ("cnn_argparse.py",), optimizer_steps=39),
    NaiveProgram("gan", ("gan.py",), optimizer_steps=120),
    NaiveProgram("vae", ("vae.py",), optimizer_steps=40),
    NaiveProgram("lstm_stateful", ("lstm_stateful.py",), optimizer_steps=60),
    NaiveProgram("timeseries_lbfgs", ("timeseries_lbfgs.py",), optimizer_steps=10),
    NaiveProgram("chargpt_memmap", ("chargpt_memmap.py",), optimizer_steps=40),
    NaiveProgram("iterable_dataset", ("iterable_dataset.py",), optimizer_steps=50),
    NaiveProgram("dict_collate", ("dict_collate.py",), optimizer_steps=48),
    NaiveProgram("padded_text", ("padded_text.py",), optimizer_steps=48),
    NaiveProgram("workers_fork", ("workers_fork.py",), optimizer_steps=40),
    NaiveProgram("workers_spawn", ("workers_spawn.py",), optimizer_steps=48),
    NaiveProgram("random_augment", ("random_augment.py",), optimizer_steps=40),
    NaiveProgram("several_models", ("several_models.py",), optimizer_steps=60),
    NaiveProgram("view_after_conv", ("view_after_conv.py",), optimizer_steps=48),
    NaiveProgram("self_compiled", ("self_compiled.py",), optimizer_steps=60),
    NaiveProgram("reinforce", ("reinforce.py",), optimizer_steps=50),
    NaiveProgram("package_script", ("package_script/run_training.py",), optimizer_steps=40),
    NaiveProgram("modpkg", ("-m", "modpkg.train"), optimizer_steps=40),
    NaiveProgram("checkpoint_resume", ("checkpoint_resume.py",), optimizer_steps=40, writes=True),
    NaiveProgram("hf_trainer", ("hf_trainer.py",), needs=("transformers", "accelerate"), optimizer_steps=30),
    NaiveProgram("lightning_module", ("lightning_module.py",), needs=("lightning",), optimizer_steps=30),
    NaiveProgram("raises_step5", ("raises_step5.py",), exit_code=1, optimizer_steps=5),
    NaiveProgram("no_training", ("no_training.py",), exit_code=3, optimizer_steps=0),
    NaiveProgram("overwrites_files", ("overwrites_files.py",), optimizer_steps=40, writes=True),
    NaiveProgram("weight_tied_ema", ("weight_tied_ema.py",), optimizer_steps=80),
    NaiveProgram("frozen_backbone", ("frozen_backbone.py",), optimizer_steps=36),
    NaiveProgram("mixed_loader_eval", ("mixed_loader_eval.py",), optimizer_steps=40),
    NaiveProgram("two_phase", ("two_phase.py",), optimizer_steps=60),
    NaiveProgram("functional_params", ("functional_params.py",), optimizer_steps=100),
    NaiveProgram("plain_sgd_by_hand", ("plain_sgd_by_hand.py",), optimizer_steps=0),
    NaiveProgram("jit_scripted", ("jit_scripted.py",), optimizer_steps=60),
    NaiveProgram("tensor_dataset", ("tensor_dataset.py",), optimizer_steps=40),
)
