"""Private names of PyTorch that the package relies on: each is listed, and a new PyTorch says at once which moved."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest

import overdrive

torch = pytest.importorskip("torch")

SOURCES = Path(overdrive.__file__).parent
# Public things in modules with a private name that PyTorch's own documentation imports from there.
DOCUMENTED = ("torch.utils._pytree.", "torch.utils._python_dispatch.TorchDispatchMode", "torch._foreach_")

# Seen in PyTorch 2.13.0.
IN_SEAMS = (
    "torch._C.DisableTorchFunction",
    "torch._C._autograd.DeviceType.CPU",
    "torch._C._autograd._get_current_graph_task_keep_graph",
    "torch._C._autograd._get_sequence_nr",
    "torch._C._autograd._profiler_enabled",
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "torch._C._cuda_endAllocateToPool",
    "torch._C._current_autograd_node",
    "torch._C._current_graph_task_id",
    "torch._C._dynamo.eval_frame.get_eval_frame_callback",
    "torch._C._functorch.peek_interpreter_stack",
    "torch._C._get_fp32_precision_getter",
    "torch._C._get_function_stack_at",
    "torch._C._is_tracing",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack",
    "torch._C._nn._parse_to",
    "torch._C._profiler._EventType.Allocation",
    "torch._C._set_fp32_precision_setter",
    "torch._C._storage_Use_Count",
    "torch._TorchCompileInductorWrapper",
    "torch._VF",
    "torch._compile._disable_dynamo",
    "torch._dynamo",
    "torch._dynamo.config.suppress_errors",
    "torch._dynamo.utils.counters",
    "torch._inductor.compile_fx.compile_fx",
    "torch._inductor.compile_fx.compile_fx_inner",
    "torch._inductor.metrics.generated_kernel_count",
    "torch._inductor.runtime.cache_dir_utils.cache_dir",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.autograd.forward_ad._current_level",
    "torch.jit._builtins._get_builtin_table",
    "torch.jit._builtins._register_builtin",
    "torch.nn.Module._wrapped_call_impl",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.batchnorm._NormBase",
    "torch.nn.modules.module._has_any_global_hook",
    "torch.nn.utils.clip_grad._get_total_norm",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported",
    "torch.ops.profiler._record_function_enter_new",
    "torch.ops.profiler._record_function_exit._RecordFunction",
    "torch.overrides._pop_mode",
    "torch.overrides._push_mode",
    "torch.serialization._package_registry.remove",
    "torch.utils.data.DataLoader._get_iterator",
    "torch.utils.data._utils.fetch._IterableDatasetFetcher",
    "torch.utils.data._utils.fetch._MapDatasetFetcher",
    "torch.utils.data._utils.fetch._MapDatasetFetcher.fetch",
    "torch.utils.data._utils.worker.WorkerInfo",
    "torch.utils.data._utils.worker._worker_info",
    "torch.utils.data.dataloader._BaseDataLoaderIter",
    "torch.utils.data.dataloader._DatasetKind.Map",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter",
    "torch.utils.data.dataloader._SingleProcessDataLoaderIter._next_data",
)
# `machine` stands below the seams, and PyTorch has no public name for these products.
ELSEWHERE = {"machine/microbenchmarks/products.py": ("torch._int_mm", "torch._scaled_mm")}


def private_names(path: Path) -> set[str]:
    """Dotted names below `torch` with a private part, as a file imports them or reaches them from what it imports."""
    tree = ast.parse(path.read_text())
    alias: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                alias[each.asname or each.name.split(".")[0]] = each.name if each.asname else each.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                alias[each.asname or each.name] = f"{node.module}.{each.name}"
    found.update(alias.values())
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: Any = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in alias:
            found.add(".".join([alias[inner.id], *reversed(parts)]))
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
