"""Lets the kernel refuse this process, and all it starts, to write outside some folders.

Landlock needs no privilege and can't be undone. It covers making, writing, truncating, renaming and
removing files; not their permissions, owners, times or extended attributes.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence

_libc = ctypes.CDLL(None, use_errno=True)

# The same numbers on every architecture, as for all system calls since 2019.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PR_SET_NO_NEW_PRIVS = 38
RULE_PATH_BENEATH = 1
CREATE_RULESET_VERSION = 1

WRITE_FILE = 1 << 1
REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
REFER = 1 << 13  # renaming into another folder; from ABI 2
TRUNCATE = 1 << 14  # from ABI 3


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def allow_writes_only(paths: Sequence[str]) -> bool:
    """From here on, only files in `paths` can be written; False if this kernel has no Landlock."""
    version = _libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), CREATE_RULESET_VERSION)
    if version < 1:
        return False
    on_files = WRITE_FILE | (TRUNCATE if version >= 3 else 0)
    on_folders = on_files | REMOVE_AND_MAKE | (REFER if version >= 2 else 0)

    handled = ctypes.c_uint64(on_folders)
    rules = _libc.syscall(CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(ctypes.sizeof(handled)), 0)
    if rules < 0:
        return False
    try:
        for path in paths:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
                rule = _PathBeneath(on_folders if is_folder else on_files, handle)
                if _libc.syscall(ADD_RULE, rules, RULE_PATH_BENEATH, ctypes.byref(rule), 0):
                    return False
            finally:
                os.close(handle)
        if _libc.prctl(PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))):
            return False
        return bool(_libc.syscall(RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)
