"""The first half of a method up to its first random draw, and the rows of bytes that its values make."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from overdrive.changes.code import is_library_module
from overdrive.changes.state import PLAIN
from overdrive.core.in_place import STANDS_FOR
from overdrive.datacache.decoding import decode
from overdrive.datacache.draws import Generators
from overdrive.datacache.encoding import encode
from overdrive.datacache.forms import Bytes, Form, Ragged
from overdrive.datacache.ragged import Filled
from overdrive.datacache.source import Source
from overdrive.forks.layout import Layout, Unfit
from overdrive.techniques.data.prefix_cache.cut import HALVED, Halves
from overdrive.techniques.data.prefix_cache.finding import Method
from overdrive.techniques.data.prefix_cache.guard import ABSENT, Reached, forbidding, guarded
from overdrive.techniques.data.prefix_cache.sequence import Chain


class Odd(Exception):
    """This sample is of another kind than those that were tried: it is not kept."""


class Prefix:
    """The first half of a method, on one object, up to a place; with `chain`, what comes next of a list too."""

    def __init__(
        self,
        method: Method,
        halves: Halves,
        names: frozenset[str] | None,
        form: Form | Ragged,
        chain: Chain | None = None,
    ) -> None:
        self.method = method
        self.halves = halves
        self.chain = chain
        self._advanced = halves.live.index(chain.live) if chain else 0
        self.names = names  # the attributes that it reads; None where that cannot be known
        self.form = form  # of all samples, or how they differ
        self._take()

    def _take(self) -> None:
        owner, names = self.method.owner, self.names
        self.guard = owner if names is None else guarded(owner, forbidding(owner, names), names)
        self._instance = {name: vars(owner).get(name, ABSENT) for name in names or ()}
        self._kind, self._specials = type(owner), _specials(type(owner))
        self._class = {name: _of_class(type(owner), name) for name in {*(names or ()), *_values_of(type(owner))}}

    def rebound(self) -> bool:
        """Whether one of the attributes is another thing than it was. An equal number or text is none."""
        if self.chain is not None and not self.chain.intact():
            return True
        space = self.method.owner.__dict__ if self.names else {}
        equal = False
        for name, value in self._instance.items():
            now = space.get(name, ABSENT)
            if now is not value:
                if type(now) is not type(value) or type(now) not in PLAIN or repr(now) != repr(value):
                    return True
                equal = True
        if equal:
            self._take()
        return False

    def class_rebound(self) -> bool:
        """The same of the class's attributes, and of the class."""
        kind = type(self.method.owner)
        if kind is not self._kind or _specials(kind) != self._specials:
            return True
        return any(
            len(now := _of_class(kind, name)) != len(value) or any(a is not b for a, b in zip(now, value, strict=True))
            for name, value in self._class.items()
        )

    @property
    def even(self) -> Form:
        """The form, where it is the same for all samples."""
        return None if isinstance(self.form, Ragged) else self.form

    @property
    def roots(self) -> tuple[Any, ...]:
        """All that its values depend on."""
        kind = type(self.method.owner)
        space = {name: value for name, value in self._instance.items() if value is not ABSENT}
        given = self.method.owner if self.names is None else space
        classes = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
        code = (self.halves.first, self.halves.live, self.method.kind.__name__, repr(self.even))
        chain = (self.chain.done_before, self.chain.live) if self.chain else ()
        of_class = {name: self._class[name] for name in sorted(self._class)}
        return (given, chain, of_class, classes, self._specials, *code)

    def begin(self, index: Any) -> tuple[Any, ...]:
        """The values at the cut, fetched for real.

        Raises:
            Odd: there are none; in this case the method did not come to the cut.
        """
        told = self.halves.first(self.guard, index)
        if type(told) is not tuple or len(told) != 2 or told[0] is not HALVED:
            raise Odd("it returned before the cut")
        try:
            values = [told[1][name] for name in self.halves.live]
        except KeyError as error:
            raise Odd(f"{error} was not set") from None
        if self.chain is not None:
            values[self._advanced] = self.chain.advance(values[self._advanced])
        return tuple(values)

    def finish(self, owner: Any, index: Any, values: tuple[Any, ...]) -> Any:
        """The sample, from the values at the cut on.

        Raises:
            Strayed: the real method has to make it.
        """
        if self.chain is None:
            return self.halves.second(owner, index, *values)
        return self.chain.run(lambda stand_in: self.halves.second(stand_in, index, *values), values[self._advanced])

    def encoded(self, index: Any) -> Bytes:
        """
        Raises:
            Odd: this sample cannot be kept.
        """
        try:
            return self.pack(self.begin(index))
        except Reached as error:
            raise Odd(str(error)) from None

    def pack(self, values: tuple[Any, ...]) -> Bytes:
        """
        Raises:
            Odd: the values are of another form than those that were tried.
        """
        try:
            form, row = encode(values)
            if isinstance(self.form, Ragged):
                return self.form.join(form, row)
        except Unfit as error:
            raise Odd(str(error)) from None
        if form != self.form:
            raise Odd("it is of another size or kind than those that were tried")
        return row

    def unpack(self, row: Bytes) -> tuple[Any, ...]:
        """The values of a row."""
        if isinstance(self.form, Ragged):
            return decode(*self.form.parts(row))
        return decode(self.form, row)


_NOT_READ = frozenset(("__init__", "__new__", "__getitem__", "__init_subclass__", "__class_getitem__"))


def _specials(kind: type) -> list[FunctionType]:
    """The methods of the class that Python calls by itself."""
    return [
        value
        for base in kind.__mro__[:-1]
        for name, value in vars(base).items()
        if isinstance(value, FunctionType) and name.startswith("__") and name not in _NOT_READ
    ]


def _values_of(kind: type) -> set[str]:
    """The names under which the user's classes hold values: `type(self).size` is read past any stand-in."""
    own = [base for base in kind.__mro__ if not is_library_module(base.__module__)]
    return {
        name
        for base in own
        for name, value in vars(base).items()
        if not name.startswith("__") and not isinstance(value, _METHODS) and not hasattr(type(value), "__get__")
    }


_METHODS = (FunctionType, classmethod, staticmethod, property, type)


def _of_class(kind: type, name: str) -> list[Any]:
    found = [vars(base)[name] for base in kind.__mro__ if name in vars(base)]
    return [getattr(each, STANDS_FOR, each) for each in found]


class _Rows:
    """A prefix as a data set of rows of bytes."""

    def __init__(self, prefix: Prefix, generators: Generators) -> None:
        self._prefix = prefix
        self._generators = generators
        self._count = len(prefix.method.owner)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        import torch

        before = self._generators.now()
        row = self._prefix.encoded(self._prefix.method.kind(index))
        if not before.same(self._generators.now()):
            before.restore()
            raise Odd("it draws random numbers")
        form = self._prefix.form
        whole = torch.zeros(form.room if isinstance(form, Ragged) else len(row), dtype=torch.uint8)
        whole.numpy()[: len(row)] = row
        return whole


def _stacked(rows: list[Any]) -> Any:
    import torch

    return torch.stack(rows)


@dataclass(frozen=True)
class PrefixSource(Source):
    """The rows of a prefix as a source, fetched here or as in the workers of a loader."""

    prefix: Prefix = field(kw_only=True)
    whole: Source = field(kw_only=True)  # the loader's own

    @classmethod
    def of_prefix(cls, prefix: Prefix, whole: Source, generators: Generators) -> PrefixSource:
        rows = _Rows(prefix, generators)
        return cls(rows, _stacked, whole.workers, whole.prepare_worker, 16, prefix=prefix, whole=whole)

    @property
    def roots(self) -> Any:
        return (*self.prefix.roots, self.prepare_worker, self.workers > 0)

    def bytes_of_all(self, layout: Layout) -> int:
        if isinstance(self.prefix.form, Ragged):
            return self.prefix.form.mean * len(self.dataset)
        return super().bytes_of_all(layout)

    @property
    def filled(self) -> Filled | None:
        return self.prefix.form.filled if isinstance(self.prefix.form, Ragged) else None

    def generators(self) -> Generators:
        """The global ones: for draws from the data set's own, each row looks itself."""
        return Generators()

    def enter_worker(self, number: int, epoch: int = 0) -> None:
        self.whole.enter_worker(number, epoch)
