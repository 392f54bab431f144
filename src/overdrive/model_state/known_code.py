"""What is known of Python's and libraries' code and values without a look at them (see `reach`)."""

from __future__ import annotations

import datetime
import enum
import pathlib
import re
import types
import weakref
from collections import namedtuple

import numpy as np
import torch

# Nothing of these changes.
VALUES: tuple[type, ...] = (
    *(str, bytes, int, float, complex, type(None), type(...), type(NotImplemented), range, slice, re.Pattern),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, np.dtype, np.generic, np.ufunc),
    *(enum.Enum, datetime.date, datetime.time, datetime.timedelta, pathlib.PurePath, types.CodeType, weakref.ref),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.MethodWrapperType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, types.ClassMethodDescriptorType, types.GenericAlias, types.UnionType),
    type(vars(namedtuple("_", "field"))["field"]),  # what a field of a named tuple is got by
)
# Of these libraries code is taken to compute and nothing else; that of others is looked at.
COMPUTES = frozenset((
    "__future__", "abc", "bisect", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "einops",
    "enum", "functools", "heapq", "importlib", "inspect", "itertools", "keras", "math", "numbers", "numpy",
    "operator", "packaging", "random", "re", "scipy", "string", "torch", "torchaudio", "torchvision", "transformers",
    "types", "typing", "typing_extensions", "warnings",
))  # fmt: skip
# Of `sys`, what does not do more: an end is an exception like others, as where a model is given what it does not know.
OF_SYS = frozenset(("byteorder", "exit", "float_info", "maxsize", "platform", "version", "version_info"))
# Of Python's own functions those that do more than to compute.
OUTWARD = frozenset(("open", "input", "exec", "eval", "compile", "globals", "__import__", "breakpoint"))
# What each class has, whatever it is for.
CLASS_NOISE = frozenset((
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__static_attributes__", "__firstlineno__",
    "__parameters__", "__orig_bases__", "__abstractmethods__", "__match_args__", "__qualname__", "__slotnames__",
    "_abc_impl",
))  # fmt: skip
MAKERS = ("__init__", "__new__", "__post_init__")
# Methods with such names are called by no name, but not in computing.
ASIDE = frozenset((
    "__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__",
    "__del__", "__dir__", "__init_subclass__", "__sizeof__", *MAKERS,
))  # fmt: skip
