"""Where the keys and tables of a TOML text stand, so that an error can name the line."""

from __future__ import annotations

KeyPath = tuple[str | int, ...]  # ("technique", 0, "settings", "workers"): names, and indexes in arrays


class Lines:
    """Line numbers, from 1, by path; of `repeated` paths too, each with the line where it came again.

    Reads any text, but knows the truth only about valid TOML: it is for what a parser has accepted,
    and for finding the second of two equal keys.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._lines: dict[KeyPath, int] = {(): 1}
        self._stated: set[KeyPath] = set()
        self.repeated: dict[KeyPath, int] = {}
        self._arrays: dict[KeyPath, int] = {}  # how many [[tables]] there are so far
        self._read()

    def of(self, path: KeyPath) -> int:
        """The line of this key or table, or else of the nearest table that holds it."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def _read(self) -> None:
        table: KeyPath = ()
        while self._skip(" \t\r\n"):
            if self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> KeyPath:
        line = self._line
        array = self._text.startswith("[[", self._at)
        self._move(2 if array else 1)
        names = self._key()
        self._skip(" \t")
        self._move(2 if array else 1)
        path: KeyPath = ()
        for name in names[:-1]:
            self._imply((*path, name), line)
            path = self._last((*path, name))
        path = (*path, *names[-1:])
        if array:
            self._imply(path, line)
            index = self._arrays[path] = self._arrays.get(path, -1) + 1
            path = (*path, index)
        self._note(path, line)
        return path

    def _last(self, path: KeyPath) -> KeyPath:
        """`[technique.settings]` belongs to the latest `[[technique]]`."""
        return (*path, self._arrays[path]) if path in self._arrays else path

    def _pair(self, table: KeyPath) -> None:
        line = self._line
        names = self._key()
        path = (*table, *names)
        for depth in range(len(table) + 1, len(path)):
            self._imply(path[:depth], line)
        self._note(path, line)
        self._skip(" \t")
        if self._peek() == "=":
            self._move(1)
            self._skip(" \t")
            self._value(path)
        elif not names:  # not TOML: leave this line
            self._bare("\n")

    def _value(self, path: KeyPath) -> None:
        first = self._peek()
        if first and first in "\"'":
            self._string()
        elif first == "[":
            self._list(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self._bare(",]}#\n")

    def _list(self, path: KeyPath) -> None:
        self._move(1)
        index = 0
        while self._skip(" \t\r\n,") and self._peek() != "]":
            start = self._at
            self._note((*path, index), self._line)
            self._value((*path, index))
            index += 1
            if self._at == start:
                return
        self._move(1)

    def _inline_table(self, path: KeyPath) -> None:
        self._move(1)
        while self._skip(" \t\r\n,") and self._peek() != "}":
            start = self._at
            self._pair(path)
            if self._at == start:
                return
        self._move(1)

    def _key(self) -> list[str]:
        """The parts of a key such as `a."b.c".d`."""
        names: list[str] = []
        while self._skip(" \t"):
            quote = self._peek()
            if quote in "\"'":
                raw = self._string()
                names.append(_unescaped(raw) if quote == '"' else raw)
            else:
                start = self._at
                self._bare(".=]}#,\n \t")
                if self._at == start:
                    break
                names.append(self._text[start : self._at].strip())
            self._skip(" \t")
            if self._peek() != ".":
                break
            self._move(1)
        return names

    def _string(self) -> str:
        """Past any of the four kinds of string; what stands between its quotes."""
        quote = self._peek()
        mark = quote * 3 if self._text.startswith(quote * 3, self._at) else quote
        self._move(len(mark))
        start = self._at
        while self._at < len(self._text) and not self._text.startswith(mark, self._at):
            self._move(2 if quote == '"' and self._peek() == "\\" else 1)
        while len(mark) == 3 and self._text.startswith(mark, self._at + 1):  # """two quotes at the end"""""
            self._move(1)
        raw = self._text[start : self._at]
        self._move(len(mark))
        return raw

    def _bare(self, ends: str) -> None:
        while self._at < len(self._text) and self._text[self._at] not in ends:
            self._move(1)

    def _skip(self, spaces: str) -> bool:
        """Past these and, where a line may end, past comments; False at the end of the text."""
        while self._at < len(self._text):
            if self._peek() == "#" and "\n" in spaces:
                self._bare("\n")
            elif self._peek() in spaces:
                self._move(1)
            else:
                return True
        return False

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _move(self, count: int) -> None:
        self._line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def _note(self, path: KeyPath, line: int) -> None:
        if path in self._stated:
            self.repeated.setdefault(path, line)
        self._stated.add(path)
        self._imply(path, line)

    def _imply(self, path: KeyPath, line: int) -> None:
        """A table that a header or a dotted key names in passing may still get a header of its own."""
        self._lines.setdefault(path, line)


def _unescaped(raw: str) -> str:
    try:
        return raw.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        return raw
