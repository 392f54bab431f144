"""What code asks its process for: settings, which are watched, and what goes on by itself, which nobody can watch."""

from __future__ import annotations

import codecs
import copyreg
import gc
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from overdrive.changes.state import decimals

# A program has its loaders hand over batches in either mode; they count where code may ask for them.
_MODES = frozenset(("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "is_anomaly_enabled"))
_MODES |= {"are_deterministic_algorithms_enabled", "get_float32_matmul_precision", "get_default_device"}
# Other settings, that are asked for where code has one of these names, and a module is imported.
_SETTINGS: tuple[tuple[frozenset[str], str, Callable[[Any], object]], ...] = (
    (frozenset(("decimal", "Decimal", "getcontext")), "decimal", lambda module: decimals(module.getcontext())),
    (
        frozenset(("locale", "localeconv", "setlocale", "getlocale", "strcoll", "strxfrm")),
        "locale",
        lambda module: module.setlocale(module.LC_ALL),
    ),
    (
        frozenset(("fromtimestamp", "mktime", "ctime", "astimezone", "tzname", "timezone")),
        "time",
        lambda module: (module.tzname, module.timezone),
    ),
    (frozenset(("warnings", "warn")), "warnings", lambda module: tuple(module.filters)),
    (frozenset(("getswitchinterval",)), "sys", lambda module: module.getswitchinterval()),
    (
        frozenset(("csv", "reader", "DictReader", "Sniffer", "field_size_limit")),
        "csv",
        lambda module: (module.field_size_limit(), *map(module.get_dialect, module.list_dialects())),
    ),
)
# Tables that Python keeps, and that code comes to without naming them: how objects are copied and packed, and what is
# done with bytes that are no text.
_COPIES = frozenset(("copy", "deepcopy", "copyreg", "pickle", "dump", "dumps", "load", "loads", "save"))
_TEXTS = frozenset(("decode", "encode", "errors", "open", "fdopen", "read_text", "TextIOWrapper", "codecs", "str"))
_OF_ERRORS = ("strict", "xmlcharrefreplace")  # handlers that Python itself puts there as it starts
_handlers: list[dict[str, Any]] = []  # once it is found
# Rights and limits of a process are others in a forked one, which may have been given others, too.
_RIGHTS = frozenset(("getrlimit", "prlimit", "getsignal", "umask", "sched_getaffinity", "getpriority", "active_count"))
_RIGHTS |= {"process_cpu_count", "getxattr"}
_MEASURED = frozenset(("getloadavg", "getrusage", "disk_usage", "statvfs", "getallocatedblocks", "get_traced_memory"))
_MEASURED |= {"virtual_memory", "memory_info", "cpu_percent", "memory_allocated", "memory_reserved", "mem_get_info"}
_STATES = frozenset(("getstate", "get_state", "get_rng_state", "get_rng_state_all", "initial_seed", "fork_rng"))
_STATES |= {"get_bit_generator"}
# Who seeds in between and puts a state back depends on the seed alone, as a trial under other states shows.
_PUT_BACK = frozenset(("setstate", "set_state", "set_rng_state", "set_rng_state_all", "fork_rng"))
_SEEDS = frozenset(("seed", "manual_seed", "manual_seed_all"))
# Each worker of PyTorch's own recipe seeds other generators by its seed; who then draws is seen by trying.
_TO_SEED_BY = frozenset(("initial_seed",))
# What a result says of gradients hangs on the mode that it was made in.
_OF_GRADIENTS = frozenset(("requires_grad", "requires_grad_", "grad_fn", "is_leaf", "Parameter", "enable_grad"))


def settings_asked(names: set[str], gradients: bool) -> Iterator[Callable[[], object]]:
    """What gives each of the settings that code with these names may ask for.

    Args:
        gradients: it may come to a tensor of which gradients are taken.
    """
    torch = sys.modules.get("torch")
    if gradients or not _OF_GRADIENTS.isdisjoint(names):
        names = names | {"is_grad_enabled", "is_inference_mode_enabled"}
    for name in sorted(_MODES & names) if torch is not None else ():
        if hasattr(torch, name):
            yield getattr(torch, name)
    for some, asked, take in _SETTINGS:
        if asked in sys.modules and not some.isdisjoint(names):
            yield partial(take, sys.modules[asked])


def tables_asked(names: set[str]) -> Iterator[dict[Any, Any]]:
    """Tables of Python's own that code with these names may come to."""
    if not _COPIES.isdisjoint(names):
        yield copyreg.dispatch_table
    if not _TEXTS.isdisjoint(names) and (handlers := handlers_of_errors()) is not None:
        yield handlers


def handlers_of_errors() -> dict[str, Any] | None:
    """The table behind `codecs.register_error`, which has no name: it is found among all dicts (40 ms, once).

    None where the program has frozen what it holds (`gc.freeze`): that is in no list.
    """
    if not _handlers:
        known = [(name, codecs.lookup_error(name)) for name in _OF_ERRORS]
        for thing in gc.get_objects():
            if type(thing) is dict and all(thing.get(name) is handler for name, handler in known):
                _handlers.append(thing)
                break
    return _handlers[0] if _handlers else None


def not_to_be_watched(names: set[str], shared: bool) -> str | None:
    """Why it cannot be seen whether what code with these names asks for has changed; None where it can.

    Args:
        shared: it may come to a generator that the whole program draws from.
    """
    if not _RIGHTS.isdisjoint(names):
        return "its code may ask for rights, limits or threads of its process"
    if not _MEASURED.isdisjoint(names):
        return "its code may ask what the machine is doing"
    seeds = not _SEEDS.isdisjoint(names)
    puts_back = seeds and not _PUT_BACK.isdisjoint(names)
    read = _STATES & names - (_TO_SEED_BY if seeds else frozenset())
    if shared and read and not puts_back:
        return "its code may read the state of a generator that the whole program draws from"
    return None


def gives_state(name: str, thing: Any) -> bool:
    """Whether what a library has by this name is, or tells of, a generator that the whole program draws from."""
    return (name in _STATES and callable(thing)) or any(thing is each for each in shared_generators())


def shared_generators() -> list[Any]:
    of_torch = getattr(sys.modules.get("torch"), "default_generator", None)
    return [random._inst, np.random.mtrand._rand, *([] if of_torch is None else [of_torch])]
