"""Private names of PyTorch that the package relies on: each is listed, and a new PyTorch says at once which moved."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageFile, PngImagePlugin
from PIL.PngImagePlugin import PngImageFile
from torch.utils.data import dataloader

import overdrive
from tests.seams.keras.private_names import OF_KERAS
from tests.seams.scanned import attributes, dotted, imported

SOURCES = Path(overdrive.__file__).parent
# Public things in modules with a private name that PyTorch's own documentation imports from there.
DOCUMENTED = ("torch.utils._pytree.", "torch.utils._python_dispatch.TorchDispatchMode", "torch._foreach_")

# Seen in PyTorch 2.13.0.
IN_SEAMS = (
    "torch._C.DisableTorchFunction",
    "torch._C.DisableTorchFunctionSubclass",
    "torch._C._autograd.DeviceType.CPU",
    "torch._C._autograd._get_current_graph_task_keep_graph",
    "torch._C._autograd._get_sequence_nr",
    "torch._C._autograd._profiler_enabled",
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "torch._C._cuda_endAllocateToPool",
    "torch._C._cuda_releasePool",
    "torch._C._current_autograd_node",
    "torch._C._current_graph_task_id",
    "torch._C._dynamo.eval_frame.get_eval_frame_callback",
    "torch._C._functions.DelayedError",
    "torch._C._functorch.peek_interpreter_stack",
    "torch._C._get_fp32_precision_getter",
    "torch._C._get_function_stack_at",
    "torch._C._get_mkldnn_enabled",
    "torch._C._is_tracing",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack",
    "torch._C._nn._parse_to",
    "torch._C._profiler._EventType.Allocation",
    "torch._C._set_fp32_precision_setter",
    "torch._C._set_grad_enabled",
    "torch._C._storage_Use_Count",
    "torch._C._swap_tensor_impl",
    "torch._C._will_engine_execute_node",
    "torch._TorchCompileInductorWrapper",
    "torch._VF",
    "torch._compile._disable_dynamo",
    "torch._dynamo",
    "torch._dynamo.config.skip_nnmodule_hook_guards",
    "torch._dynamo.config.suppress_errors",
    "torch._dynamo.utils.counters",
    "torch._inductor.aoti_compile_and_package",
    "torch._inductor.compile_fx.compile_fx",
    "torch._inductor.compile_fx.compile_fx_inner",
    "torch._inductor.metrics.generated_kernel_count",
    "torch._inductor.runtime.cache_dir_utils.cache_dir",
    "torch._jit_internal.boolean_dispatched",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.autograd.forward_ad._current_level",
    "torch.jit._builtins._find_builtin",
    "torch.jit._builtins._get_builtin_table",
    "torch.jit._builtins._register_builtin",
    "torch.nn.Module._call_impl",
    "torch.nn.Module._wrapped_call_impl",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.batchnorm._NormBase",
    "torch.nn.modules.module._has_any_global_hook",
    "torch.nn.parameter.UninitializedTensorMixin._allowed_methods",
    "torch.nn.utils.clip_grad._get_total_norm",
    "torch.cuda._lazy_call",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported",
    "torch.ops.profiler._record_function_enter_new",
    "torch.ops.profiler._record_function_exit._RecordFunction",
    "torch.optim.optimizer._global_optimizer_post_hooks.values",
    "torch.optim.optimizer._global_optimizer_pre_hooks.values",
    "torch.overrides._get_overloaded_args",
    "torch.overrides._pop_mode",
    "torch.overrides._push_mode",
    "torch.serialization._package_registry.remove",
    "torch.utils._device._device_constructors",
    "torch.utils.checkpoint._StopRecomputationError",
    "torch.utils.checkpoint._checkpoint_without_reentrant_generator",
    "torch.utils.data.DataLoader._get_iterator",
    "torch.utils.data._utils.fetch._IterableDatasetFetcher",
    "torch.utils.data._utils.fetch._MapDatasetFetcher",
    "torch.utils.data._utils.fetch._MapDatasetFetcher.fetch",
    "torch.utils.data._utils.signal_handling._remove_worker_pids",
    "torch.utils.data._utils.worker.WorkerInfo",
    "torch.utils.data._utils.worker._worker_info",
    "torch.utils.data.dataloader._BaseDataLoaderIter",
    "torch.utils.data.dataloader._DatasetKind.Map",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter",
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter._next_data",
)
# Of objects, in PyTorch 2.13.0, Pillow 13.0, tyro 0.9 and 1.0, and Python 3.11. Those of Keras are in
# `keras/test_private_names.py`.
OF_OBJECTS: dict[str, tuple[str, ...]] = {
    "module": (
        *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
        *("_parameters", "_buffers", "_modules", "_apply", "_call_impl", "_compiled_call_impl"),
    ),
    "recurrent layer": ("_flat_weights", "_flat_weight_refs"),
    "compiled module": ("_orig_mod",),
    "graph": ("_tracer_cls",),
    "compiled function": ("_boxed_call",),
    "optimizer": ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_warned_capturable_if_run_uncaptured"),
    "parameter": ("_backward_hooks", "_post_accumulate_grad_hooks", "_version", "_is_view", "_base", "_cdata"),
    "sparse tensor": ("_indices", "_values"),
    "storage": ("_cdata",),
    "node of autograd": ("_sequence_nr",),
    "operator": ("_schema", "_overloadpacket"),
    "process group": ("_allgather_base",),
    "options of a process group": ("_timeout",),
    "distribution": ("_validate_args",),
    "loader": ("_iterator", "_get_iterator"),
    "iterator": (
        *("_dataset", "_dataset_kind", "_dataset_fetcher", "_collate_fn", "_index_sampler", "_sampler_iter"),
        *("_auto_collation", "_pin_memory", "_num_workers", "_next_data", "_reset"),
    ),
    "iterator with workers": (
        *("_prefetch_factor", "_try_put_index", "_worker_queue_idx_cycle", "_worker_init_fn", "_shutdown_workers"),
        *("_worker_pids_set", "_workers", "_shutdown"),
    ),
    "picture": ("_mode", "_size", "_exclusive_fp", "_close_exclusive_fp_after_loading"),
    "PNG": ("_PngImageFile__prepare_idat", "_PngImageFile__idat"),
    "Pillow's files": ("_Tile",),
    "argument parser": ("_actions",),
    "tyro": ("_calling", "_cli"),
    "tyro's command line": ("_cli_impl",),
}
# `machine` stands below the seams, and PyTorch has no public name for these products.
ELSEWHERE = {
    "machine/microbenchmarks/products.py": ("torch._int_mm", "torch._scaled_mm"),
    "targets/runners/aoti.py": ("torch._inductor.aoti_load_package",),  # the user's own file
}
# Outside of the seams, of objects that are not ours: `core` and `machine` stand below the seams, and Python's, NumPy's
# and click's are no framework's.
OF_OBJECTS_ELSEWHERE: dict[str, set[str]] = {
    "cli/misplaced.py": {"_flag_needs_value"},
    "cli/started_again.py": {"_args_from_interpreter_flags"},
    "core/rng.py": {"_bit_generator", "_inst", "_rand"},
    "datacache/draws.py": {"_inst", "_rand"},
    "datacache/encoding.py": {"_exif"},
    "datacache/offers.py": {"_version"},
    "changes/walk/arrays.py": {"_mmap"},
    "changes/walk/asked.py": {"_inst", "_rand"},
    "changes/walk/code_walk.py": {"_data"},
    "engines/bounds.py": {"_to_copy"},  # an operator
    "kernels/dropout/operator.py": {"_handle"},  # documented, of ctypes
    "machine/loaded.py": {"_C", "_cuda_getArchFlags"},
    "model_state/reach.py": {"_inst", "_rand"},
    "ranks/entropy.py": {"_identity", "_inst"},
    "sandbox/redirected_files.py": {"_TemporaryFileCloser"},
    "survive/words.py": {"_bit_generator", "_inst", "_rand"},
    "techniques/compile/steps_per_execution/passes.py": {"_get_iterator", "_num_batches", "_steps_seen"},
    "techniques/compile/steps_per_execution/technique.py": {"_num_batches"},
    "techniques/data/data_pipeline.py": {"_input_dataset", "_map_func"},
    "worker/saying.py": {"_instances"},
    "techniques/data/resident_arrays/keras_arrays.py": {"_batch_size", "_inputs", "_num_samples", "_shuffle"},
}


def private_names(path: Path) -> set[str]:
    """Dotted names below `torch` with a private part, as a file imports them or reaches them from what it imports."""
    tree = ast.parse(path.read_text())
    alias = imported(tree)
    found = {*alias.values(), *(dotted(node, alias) for node in ast.walk(tree) if isinstance(node, ast.Attribute))}
    private = {name for name in found if name.startswith("torch.") and "._" in name and ".__" not in name}
    longest = {name for name in private if not any(other.startswith(name + ".") for other in private)}
    return {name for name in longest if not name.startswith(DOCUMENTED)}


def resolve(name: str) -> Any:
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:size]))
        except ImportError:
            continue
        for part in parts[size:]:
            thing = getattr(thing, part)
        return thing
    raise AttributeError(name)


@pytest.mark.parametrize("name", sorted({*IN_SEAMS, *(name for names in ELSEWHERE.values() for name in names)}))
def test_this_pytorch_has_the_private_name(name: str) -> None:
    if "_cuda_" in name and not torch.backends.cuda.is_built():
        pytest.skip("only in builds with CUDA")
    resolve(name)


def objects() -> dict[str, Any]:
    """One of each kind; a text, where a name is given to an object only later: the source that gives it."""
    from torch._functorch.aot_autograd import make_boxed_func  # 80 MB in a process that others fork

    image, file = io.BytesIO(), Image.new("RGB", (2, 2))
    file.save(image, "png")
    tyro = importlib.import_module("tyro") if importlib.util.find_spec("tyro") else None
    layer, loader = torch.nn.Linear(1, 1), torch.utils.data.DataLoader(range(2))
    iterator = iter(loader)
    loss = layer(torch.ones(1, 1)).sum()
    return {
        "module": layer,
        "recurrent layer": torch.nn.LSTM(1, 1),
        "compiled module": torch.compile(layer),
        "graph": torch.fx.symbolic_trace(layer).graph,
        "compiled function": make_boxed_func(len),
        "optimizer": (torch.optim.SGD(layer.parameters()), inspect.getsource(torch.optim.Optimizer)),
        "parameter": layer.weight,
        "sparse tensor": torch.eye(2).to_sparse(),
        "storage": layer.weight.untyped_storage(),
        "node of autograd": loss.grad_fn,
        "operator": torch.ops.aten.add.Tensor,
        "process group": torch.distributed.ProcessGroup,
        "options of a process group": torch.distributed.ProcessGroupGloo._Options,
        "distribution": torch.distributions.Distribution,
        "loader": loader,
        "iterator": iterator,
        "iterator with workers": (
            dataloader._MultiProcessingDataLoaderIter,
            inspect.getsource(dataloader),
        ),
        "picture": Image.open(image),
        "PNG": (PngImageFile, inspect.getsource(PngImagePlugin).replace("self.__", "self._PngImageFile__")),
        "Pillow's files": ImageFile,
        "argument parser": argparse.ArgumentParser(),
        "tyro": tyro,
        "tyro's command line": tyro and tyro._cli,
    }


@pytest.mark.parametrize("kind", OF_OBJECTS)
def test_this_version_has_the_private_names_of_objects(kind: str) -> None:
    found = objects()[kind]
    if found is None:
        pytest.skip("not installed")
    thing, source = found if isinstance(found, tuple) else (found, "")
    assert [name for name in OF_OBJECTS[kind] if not hasattr(thing, name) and f".{name}" not in source] == []


def test_private_names_are_those_listed_and_no_more_outside_the_seams() -> None:
    in_seams: set[str] = set()
    elsewhere: dict[str, tuple[str, ...]] = {}
    for path in SOURCES.rglob("*.py"):
        names = private_names(path)
        place = path.relative_to(SOURCES)
        if place.parts[0] == "seams":
            in_seams |= names
        elif names:
            elsewhere[place.as_posix()] = tuple(sorted(names))
    assert in_seams == set(IN_SEAMS)
    assert elsewhere == ELSEWHERE


def test_private_names_of_objects_are_those_listed() -> None:
    listed = frozenset(name for names in (*OF_OBJECTS.values(), *OF_KERAS.values()) for name in names)
    in_seams: set[str] = set()
    elsewhere: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        place = path.relative_to(SOURCES)
        if place.parts[0] == "seams":
            in_seams |= attributes(path)
        elif names := attributes(path, listed):
            elsewhere[place.as_posix()] = names
    assert in_seams == listed
    assert elsewhere == OF_OBJECTS_ELSEWHERE


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(x): return x._hidden", {"_hidden"}),
        ("def f(x): return getattr(x, '_hidden', None)", {"_hidden"}),
        ("def f(x): return vars(x)['_hidden']", {"_hidden"}),
        ("class A:\n def f(self, other): self._own = other._own", set()),
        ("class A:\n def f(self, other): self._parameters = other._parameters", {"_parameters"}),
        ("import os\nos._exit(0)", set()),
    ],
)
def test_what_is_private_of_others_is_found(text: str, found: set[str], tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(text)
    assert attributes(tmp_path / "file.py", frozenset({"_parameters"})) == found
