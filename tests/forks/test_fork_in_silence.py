"""What libraries write in forked processes is not read where plain Python would not have forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

# As tokenizers do it, by the environment of C.
_PROGRAM = """
import ctypes, os, sys, types
from overdrive.forks.forked_process import fork

library = ctypes.CDLL(None)
library.getenv.restype = ctypes.c_char_p
name = b"TOKENIZERS_PARALLELISM"
sys.modules["tokenizers"] = types.ModuleType("tokenizers")
os.register_at_fork(after_in_child=lambda: library.getenv(name) is None and os.write(2, b"just got forked"))
pid = fork()
if pid == 0:
    os._exit(0 if name.decode() in os.environ or library.getenv(name) == b"false" else 1)
print(os.waitpid(pid, 0)[1], os.environ.get(name.decode()), library.getenv(name))
"""


@pytest.mark.parametrize("own", [None, "true"])
def test_tokenizers_say_nothing_of_our_forks_and_the_program_s_environment_stays(
    own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    if own:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", own)
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"0 {own} {own.encode() if own else None}\n", "")
