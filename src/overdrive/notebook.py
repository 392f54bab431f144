"""Overdrive in a notebook, after `%load_ext overdrive`.

%overdrive tune --budget 5m train.py      any command, its output in the cell
%%overdrive train.overdrive.toml          this cell's code under a plan
"""

from __future__ import annotations

import ast
import codecs
import os
import shlex
import subprocess
import sys
from typing import Any


def load(shell: Any) -> None:
    """Give the magics to an IPython shell."""
    shell.register_magic_function(line_magic, "line", "overdrive")
    shell.register_magic_function(lambda line, cell: cell_magic(shell, line, cell), "cell", "overdrive")


def line_magic(line: str) -> None:
    """`%overdrive COMMAND …`: as in a terminal. What it prints appears as it comes."""
    words = shlex.split(line)
    if not words:
        raise _fault("Write for example: %overdrive tune --budget 5m train.py")
    command = [sys.executable, "-m", "overdrive", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            _show(process.stdout)
        except KeyboardInterrupt:  # the command was interrupted, too: a tune says what it leaves. Once more ends this
            _show(process.stdout)
            raise
    if process.returncode:
        print(f"overdrive {words[0]} ended with {process.returncode}", file=sys.stderr)
        if any(word.endswith(".py") and not os.path.exists(word) for word in words):
            print("`%%writefile train.py` at the top of a cell makes a script of it.", file=sys.stderr)


def _show(output: Any) -> None:
    """As it comes, and as it is: a bar that is drawn over itself stays one line, and no byte is an error."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while chunk := output.read1(1 << 16):
        print(decoder.decode(chunk), end="", flush=True)
    print(decoder.decode(b"", final=True), end="", flush=True)


def cell_magic(shell: Any, line: str, cell: str) -> None:
    """`%%overdrive PLAN`: run the cell under the plan, in this process. Make the optimizer in the same cell: that is
    where models are altered. What must be there before a process starts is left out, and named.
    """
    from overdrive.api import using

    words = shlex.split(line)
    if len(words) != 1 or not words[0].endswith(".toml"):
        raise _fault("Write for example: %%overdrive train.overdrive.toml")
    source = shell.transform_cell(cell)
    tree = ast.parse(source)
    shown = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []  # as a cell's last value is
    name = shell.compile.cache(source)  # where tracebacks find its lines
    block = using(words[0])
    with block:
        exec(compile(tree, name, "exec"), shell.user_ns)
        exec(compile(ast.Interactive(shown), name, "single"), shell.user_ns)
        told = block.so_far()
    if told:
        print(f"overdrive: {told}", file=sys.stderr)


def _fault(sentence: str) -> Exception:
    """Shown as one line, without a traceback."""
    from IPython.core.error import UsageError

    made: Exception = UsageError(sentence)
    return made
