"""Where the state of a data set may lie, how it is read, and how a program writes to it: texts that `made` composes.

In each, `{n}` stands for a number of its own. A root says what the data set's code and the program call the thing; a box
holds another thing; a leaf is what is read and written in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

SAMPLES = 48


@dataclass(frozen=True)
class Root:
    """
    Attributes:
        read: how code of the data set gets at it.
        write: how the program does; both are expressions.
        before: code ahead of the data set's class; `in_class`, `in_init`: code within it. `{make}` makes the thing.
        holds: whether it may be assigned to where the program writes (`{write} = value`).
    """

    read: str
    write: str
    before: str = ""
    in_class: str = ""
    in_init: str = ""
    holds: bool = True
    opts: str = ""  # code of the module `opts`


ROOTS: dict[str, Root] = {
    "attribute": Root("self.a{n}", "ds.a{n}", in_init="self.a{n} = {make}"),
    "by name": Root("getattr(self, 'a' + str({n}))", "ds.a{n}", in_init="self.a{n} = {make}"),
    "vars": Root("vars(self)['a{n}']", "ds.__dict__['a{n}']", in_init="self.a{n} = {make}"),
    "attrgetter": Root("operator.attrgetter('a{n}')(self)", "ds.a{n}", in_init="self.a{n} = {make}"),
    "global": Root("G{n}", "globals()['G{n}']", before="G{n} = {make}"),
    "global by name": Root("globals()['G' + '{n}']", "globals()['G{n}']", before="G{n} = {make}"),
    "global by eval": Root("eval('G{n}')", "globals()['G{n}']", before="G{n} = {make}"),
    "of the class": Root("type(self).c{n}", "DS.c{n}", in_class="c{n} = {make}"),
    "of its base": Root("self.c{n}", "Base{n}.c{n}", before="class Base{n}:\n    c{n} = {make}"),
    "of a metaclass": Root(
        "Made{n}.c{n}",
        "Meta{n}.c{n}",
        before="class Meta{n}(type):\n    c{n} = {make}\nclass Made{n}(metaclass=Meta{n}): pass",
    ),
    "module": Root("opts.o{n}", "opts.o{n}", opts="o{n} = {make}"),
    "module by name": Root("sys.modules['opts'].o{n}", "opts.o{n}", opts="o{n} = {make}"),
    "module imported late": Root("importlib.import_module('opts').o{n}", "opts.o{n}", opts="o{n} = {make}"),
    "module's function": Root("opts.get{n}()", "opts.o{n}", opts="o{n} = {make}\ndef get{n}(): return o{n}"),
    "builtins": Root("LEVEL{n}", "builtins.LEVEL{n}", before="builtins.LEVEL{n} = {make}"),
    "closure": Root(
        "get{n}()",
        "get{n}.__closure__[0].cell_contents",
        before="def mk{n}():\n    it = {make}\n    def get(): return it\n    return get\nget{n} = mk{n}()",
    ),
    "closure's closure": Root(
        "self.get{n}()()",
        "get{n}()",
        before="def mk{n}():\n    it = {make}\n    def get(): return it\n    return get\nget{n} = mk{n}()",
        in_init="self.get{n} = lambda: get{n}",
        holds=False,
    ),
    "default argument": Root("get{n}()", "get{n}()", before="def get{n}(it={make}): return it", holds=False),
    "keyword default": Root("get{n}()", "get{n}.__kwdefaults__['it']", before="def get{n}(*, it={make}): return it"),
    "function's attribute": Root("get{n}()", "get{n}.it", before="def get{n}(): return get{n}.it\nget{n}.it = {make}"),
    "method's function": Root(
        "self.get{n}.it", "DS.get{n}.it", in_class="def get{n}(self): pass\n    get{n}.it = {make}"
    ),
    "property": Root(
        "self.p{n}",
        "ds._p{n}",
        in_class="@property\n    def p{n}(self): return self._p{n}",
        in_init="self._p{n} = {make}",
    ),
    "descriptor": Root(
        "self.d{n}",
        "KEPT{n}[ds]",
        before="KEPT{n} = weakref.WeakKeyDictionary()\nclass Kept{n}:\n    def __get__(self, one, kind): return KEPT{n}[one]",
        in_class="d{n} = Kept{n}()",
        in_init="KEPT{n}[self] = {make}",
    ),
    "descriptor by id": Root(
        "self.d{n}",
        "KEPT{n}[id(ds)]",
        before="KEPT{n} = {{}}\nclass Kept{n}:\n    def __get__(self, one, kind): return KEPT{n}[id(one)]",
        in_class="d{n} = Kept{n}()",
        in_init="KEPT{n}[id(self)] = {make}",
    ),
    "delegated": Root(
        "self.inner{n}.it",
        "INNER{n}.it",
        before="class Inner{n}: pass\nINNER{n} = Inner{n}(); INNER{n}.it = {make}\n"
        "class Proxy{n}:\n    def __getattr__(self, name): return getattr(INNER{n}, name)",
        in_init="self.inner{n} = Proxy{n}()",
    ),
    "getattribute": Root(
        "self.odd{n}.it",
        "HIDDEN{n}['it']",
        before="HIDDEN{n} = {{'it': {make}}}\nclass Odd{n}:\n    def __getattribute__(self, name): return HIDDEN{n}[name]",
        in_init="self.odd{n} = Odd{n}()",
    ),
    "transform": Root(
        "self.t{n}(0)",
        "ds.t{n}.it",
        before="class T{n}:\n    def __init__(self, it): self.it = it\n    def __call__(self, x): return self.it",
        in_init="self.t{n} = T{n}({make})",
    ),
    "weak reference": Root(
        "self.w{n}().it",
        "TR{n}.it",
        before="class Tr{n}: pass\nTR{n} = Tr{n}(); TR{n}.it = {make}",
        in_init="self.w{n} = weakref.ref(TR{n})",
    ),
    "weak proxy": Root(
        "self.w{n}.it",
        "TR{n}.it",
        before="class Tr{n}: pass\nTR{n} = Tr{n}(); TR{n}.it = {make}",
        in_init="self.w{n} = weakref.proxy(TR{n})",
    ),
    "weak value": Root(
        "self.w{n}['k'].it",
        "TR{n}.it",
        before="class Tr{n}: pass\nTR{n} = Tr{n}(); TR{n}.it = {make}",
        in_init="self.w{n} = weakref.WeakValueDictionary(k=TR{n})",
    ),
    "weak set": Root(
        "next(iter(self.w{n})).it",
        "TR{n}.it",
        before="class Tr{n}: pass\nTR{n} = Tr{n}(); TR{n}.it = {make}",
        in_init="self.w{n} = weakref.WeakSet([TR{n}])",
    ),
    "bound method": Root(
        "self.b{n}()",
        "TR{n}.it",
        before="class Tr{n}:\n    def get(self): return self.it\nTR{n} = Tr{n}(); TR{n}.it = {make}",
        in_init="self.b{n} = TR{n}.get",
    ),
    "partial of a method": Root(
        "self.b{n}()",
        "TR{n}.it",
        before="class Tr{n}:\n    def get(self, k): return self.it\nTR{n} = Tr{n}(); TR{n}.it = {make}",
        in_init="self.b{n} = functools.partial(TR{n}.get, 1)",
    ),
    "context variable": Root(
        "V{n}.get()[0]", "V{n}.get()[0]", before="V{n} = contextvars.ContextVar('V{n}')\nV{n}.set([{make}])"
    ),
    "thread's own": Root("L{n}.it", "L{n}.it", before="L{n} = threading.local(); L{n}.it = {make}"),
    "inner data set": Root(
        "self.in{n}[i]",
        "ds.in{n}.it",
        before="class In{n}(Dataset):\n    def __init__(self): self.it = {make}\n    def __len__(self): return N\n"
        "    def __getitem__(self, i): return self.it",
        in_init="self.in{n} = In{n}()",
    ),
    "module of a model": Root(
        "self.enc{n}.it",
        "ds.enc{n}.it",
        before="class Enc{n}(torch.nn.Module):\n    def __init__(self): super().__init__(); self.it = {make}",
        in_init="self.enc{n} = Enc{n}()",
    ),
    "table of functions": Root("FNS{n}['f']()", "H{n}[0]", before="H{n} = [{make}]\nFNS{n} = {{'f': lambda: H{n}[0]}}"),
    "cached by the program": Root(
        "self.look{n}()",
        "ds.a{n}",
        in_class="def look{n}(self): return self.a{n}",
        in_init="self.a{n} = {make}",
    ),
    "of a class method": Root(
        "self.get{n}()", "DS._c{n}", in_class="_c{n} = {make}\n    @classmethod\n    def get{n}(cls): return cls._c{n}"
    ),
    "static method": Root(
        "self.get{n}()", "S{n}[0]", before="S{n} = [{make}]", in_class="@staticmethod\n    def get{n}(): return S{n}[0]"
    ),
    "iterated": Root("next(iter(self.i{n}))", "ds.i{n}[0]", in_init="self.i{n} = [{make}]"),
    "slots": Root(
        "self.s{n}.it",
        "ds.s{n}.it",
        before="class Slot{n}:\n    __slots__ = ('it', '__weakref__')\n    def __init__(self, it): self.it = it",
        in_init="self.s{n} = Slot{n}({make})",
    ),
    "private slots": Root(
        "self.s{n}.get()",
        "ds.s{n}._Slot{n}__it",
        before="class Slot{n}:\n    __slots__ = ('__it',)\n    def __init__(self, it): self.__it = it\n"
        "    def get(self): return self.__it",
        in_init="self.s{n} = Slot{n}({make})",
    ),
    "named tuple": Root(
        "self.t{n}.it[0]",
        "ds.t{n}.it[0]",
        before="Pair{n} = collections.namedtuple('Pair{n}', 'it other')",
        in_init="self.t{n} = Pair{n}([{make}], 1)",
    ),
    "data class": Root(
        "self.s{n}.it",
        "ds.s{n}.it",
        before="@dataclasses.dataclass\nclass Data{n}:\n    it: object\n    other: int = 0",
        in_init="self.s{n} = Data{n}({make})",
    ),
    "reducing": Root(
        "self.s{n}.it",
        "ds.s{n}.it",
        before="class Red{n}:\n    def __init__(self, it=0): self.it = it\n    def __reduce__(self): return (Red{n}, ())",
        in_init="self.s{n} = Red{n}({make})",
    ),
    "equal to all": Root(
        "self.s{n}.it",
        "ds.s{n}.it",
        before="class Eq{n}:\n    def __init__(self, it): self.it = it\n    def __eq__(self, other): return True\n"
        "    def __hash__(self): return 1\n    def __repr__(self): return 'Eq'",
        in_init="self.s{n} = Eq{n}({make})",
    ),
}

# What holds another thing: how it is made, and how one gets at what is in it.
BOXES: dict[str, tuple[str, str, bool]] = {  # the last: whether what is in it may be assigned to
    "namespace": ("SimpleNamespace(x={make})", ".x", True),
    "dict": ("{{'k': {make}, 'other': 1}}", "['k']", True),
    "dict of numbers": ("{{7: {make}}}", "[7]", True),
    "list": ("[None, {make}, 'x']", "[1]", True),
    "tuple": ("(None, {make})", "[1]", False),
    "user dict": ("collections.UserDict(k={make})", "['k']", True),
    "user list": ("collections.UserList([{make}])", "[0]", True),
    "ordered dict": ("collections.OrderedDict(k={make}, l=1)", "['k']", True),
    "default dict": ("collections.defaultdict(int, k={make})", "['k']", True),
    "chain of maps": ("collections.ChainMap({{}}, {{'k': {make}}})", ".maps[1]['k']", True),
    "deque": ("collections.deque([{make}, 2])", "[0]", True),
    "proxy of a dict": ("MappingProxyType({{'k': [{make}]}})", "['k'][0]", True),
    "array of objects": ("as_objects({make})", "[1]", True),
    "object": ("Thing({make})", ".it", True),
    "partial": ("functools.partial(same, [{make}])", ".args[0][0]", True),
    "exception": ("ValueError([{make}])", ".args[0][0]", True),
    "module list": ("Holding({make})", ".it", True),
}
ASSIGNABLE = (
    # make, read of {e}, what is written to {e}
    ("0", "int({e})", "{v}"),
    ("0.0", "int({e})", "float({v})"),
    ("'0'", "int({e})", "str({v})"),
    ("b'0'", "int({e})", "str({v}).encode()"),
    ("(0, 'x')", "{e}[0]", "({v}, 'x')"),
    ("None", "0 if {e} is None else {e}", "{v}"),
    ("False", "int({e}) + 2 * ({e} is True)", "bool({v})"),
    ("frozenset()", "len({e})", "frozenset(range({v}))"),
    ("slice(0, 0)", "{e}.stop", "slice(0, {v})"),
    ("range(0)", "len({e})", "range({v})"),
    ("Path('0')", "int({e}.name)", "Path(str({v}))"),
    ("np.int32(0)", "int({e})", "np.int32({v})"),
    ("np.zeros(N, np.int64)", "int({e}[i])", "np.full(N, {v}, np.int64)"),
    ("torch.zeros(N, dtype=torch.int64)", "int({e}[i])", "torch.full((N,), {v})"),
    ("len", "{e}('')", "(lambda _, _v={v}: _v)"),
    ("(lambda _: 0)", "{e}('')", "(lambda _, _v={v}: _v)"),
    ("Zero", "{e}.number", "type('Number', (), {{'number': {v}}})"),
    ("functools.partial(same, 0)", "{e}()", "functools.partial(same, {v})"),
    ("Fraction(0)", "int({e})", "Fraction({v})"),
    ("Decimal(0)", "int({e})", "Decimal({v})"),
    ("datetime.date(2000, 1, 1)", "{e}.day", "datetime.date(2000, 1, 1 + {v})"),
    ("np.dtype('i4')", "{e}.itemsize", "np.dtype(['i1', 'i2', 'i4', 'i8'][{v} % 4])"),
    ("re.compile('0')", "int({e}.pattern)", "re.compile(str({v}))"),
)
