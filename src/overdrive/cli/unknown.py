"""What was meant by a line that begins with no command."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Sequence

_SCRIPTS = ("run", "tune", "profile", "verify", "report")  # commands that people put behind the script


def meant(words: Sequence[str], commands: Sequence[str]) -> str:
    """One sentence. `words`: all that follows `overdrive`; the first is no command."""
    word = words[0]
    line = shlex.join(words)
    if word in ("help", "version"):
        return f"There is no command {word}. Did you mean `{_asked(word, words[1:], commands)}`?"
    if word.startswith("-") and word != "-m":
        return _options_first(words, commands)
    if word.endswith(".toml"):
        return f"No command named. Did you mean `overdrive report {line}`?"
    if word == "-m" or word.endswith(".py") or os.path.isfile(word):
        if len(words) > 1 and words[1] in _SCRIPTS:
            meant = ["overdrive", words[1], word, *words[2:]]
            return f"The command stands before the script. Did you mean `{shlex.join(meant)}`?"
        run, tune = f"overdrive run {line}", f"overdrive tune {line}"
        return f"No command named. Did you mean `{run}`, or `{tune}` to find a plan first?"
    if os.path.isfile(f"{word}.py"):
        return f"No command named. Did you mean `{shlex.join(['overdrive', 'run', f'{word}.py', *words[1:]])}`?"
    if close := difflib.get_close_matches(word, commands, n=1, cutoff=0.5):
        return f"There is no command {word}. Did you mean `{shlex.join(['overdrive', close[0], *words[1:]])}`?"
    return f"There is no command {word}: {', '.join(commands)} are those there are."


def _asked(word: str, rest: Sequence[str], commands: Sequence[str]) -> str:
    if word == "version":
        return "overdrive --version"
    return shlex.join(["overdrive", *(each for each in rest[:1] if each in commands), "--help"])


def _options_first(words: Sequence[str], commands: Sequence[str]) -> str:
    """Of a line that begins with options of a command's."""
    place = next((place for place, word in enumerate(words) if word in commands), None)
    if place is None and not any(word.endswith(".py") for word in words):
        return f"{words[0]} stands where a command should: `overdrive --help` lists them."
    line = [words[place], *words[:place], *words[place + 1 :]] if place is not None else ["tune", *words]
    return f"Options stand after the command. Did you mean `{shlex.join(['overdrive', *line])}`?"
