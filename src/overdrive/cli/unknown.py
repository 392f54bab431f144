"""What was meant by a line that begins with no command."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Sequence


def meant(words: Sequence[str], commands: Sequence[str]) -> str:
    """One sentence. `words`: all that follows `overdrive`; the first is no command."""
    word = words[0]
    line = shlex.join(words)
    if word.endswith(".toml"):
        return f"No command named. Did you mean `overdrive report {line}`?"
    if word == "-m" or word.endswith(".py") or os.path.isfile(word):
        run, tune = f"overdrive run {line}", f"overdrive tune {line}"
        return f"No command named. Did you mean `{run}`, or `{tune}` to find a plan first?"
    if close := difflib.get_close_matches(word, commands, n=1, cutoff=0.5):
        return f"There is no command {word}. Did you mean `{shlex.join(['overdrive', close[0], *words[1:]])}`?"
    return f"There is no command {word}: {', '.join(commands)} are those there are."
