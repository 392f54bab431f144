"""Makes small training programs at random, from a seed: a data set reads state from odd places, and the program, or the
data set itself, writes to it at odd moments. Each prints every batch, so that what it gets can be compared."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.adversarial.habits import HABITS
from tests.adversarial.idioms import ASSIGNABLE, BOXES, ROOTS, SAMPLES
from tests.adversarial.leaves import LEAVES, Leaf

_EPOCHS = 5
# Whose state cannot be seen, so that nothing is kept from the start: fewer of them.
_ODD = 0.3
_REFUSED = {
    "weak reference",
    "weak proxy",
    "weak value",
    "weak set",
    "context variable",
    "thread's own",
    "getattribute",
}
_REFUSED |= {"memory map", "shared memory", "memoryview", "mapped for both", "lock", "event", "shared number", "queue"}
_REFUSED |= {"weak keys", "plain context variable", "raw shared number", "raw shared array", "keys and values", "umask"}
_REFUSED |= {"state of Python's generator", "state of numpy's generator", "state of torch's generator", "seed of torch"}
_REFUSED |= {"shared array", "generator", "open file", "text file in memory", "bytes in memory", "iterator", "count"}
_BATCH = 6
_LEAVES: dict[str, Leaf] = {**LEAVES, **HABITS}

_HEAD = """
import abc, array, atexit, builtins, codecs, collections, contextvars, copy, copyreg, csv, ctypes, dataclasses, datetime
import decimal, enum, functools, gc, heapq, importlib, io, itertools, json, logging, math, mmap, multiprocessing, operator
import os, queue, random, re, resource, shlex, signal, sqlite3, statistics, string, subprocess, sys, textwrap, threading
import time, weakref, zipfile
from decimal import Decimal
from fractions import Fraction
from multiprocessing import shared_memory
from pathlib import Path
from types import MappingProxyType, MethodType, SimpleNamespace
import numpy as np, torch
from PIL import Image, ImageFile
from torch.utils.data import *
from torch.utils.data import default_collate, get_worker_info
import opts
from helpers import *
torch.set_num_threads(1); torch.manual_seed(0); np.random.seed(0); random.seed(0)
"""

_IMPORTS_OF_OPTS = """from helpers import *
import abc, array, collections, contextvars, copy, csv, ctypes, datetime, decimal, enum, functools, io, itertools, logging
import math, mmap, multiprocessing, operator, os, queue, random, re, resource, signal, sqlite3, string, sys, threading, time
import numpy as np, torch
from PIL import Image
from torch.utils.data import *
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import *
"""

HELPERS = f"""
import os, queue, sqlite3, zipfile
import numpy as np, torch
from PIL import Image
N = {SAMPLES}
class Thing:
    number = 0
    def __init__(self, it): self.it = it
class Zero: number = 0
class Holding(torch.nn.Module):
    def __init__(self, it): super().__init__(); self.it = it
class Slots:
    __slots__ = ('it',)
    def __init__(self, it): self.it = it
class Own(list): shift = 0
class OwnDict(dict):
    default = 0
    def __missing__(self, key): return self.default
class Sub(np.ndarray): more = 0
class Key:
    def __hash__(self): return 1
    def __eq__(self, other): return True
def same(x): return x
def as_objects(thing):
    held = np.empty(3, dtype=object)
    held[1] = thing
    return held
def as_lists(n):
    held = np.empty(n, dtype=object)
    for k in range(n): held[k] = [0]
    return held
def read_only(a):
    v = a.view(); v.flags.writeable = False
    return v
def written(name, data):
    with open(name, 'wb') as file: file.write(data)
    return name
def same_time(name, text):
    s = os.stat(name)
    with open(name, 'w') as file: file.write(text)
    os.utime(name, ns=(s.st_atime_ns, s.st_mtime_ns))
def timed(name, seconds):  # with the time of its writing, each run would see another one
    if not os.path.exists(name): written(name, b'')
    os.utime(name, (seconds, seconds)); return name
def saved(name, a): np.save(name, a); return name
def torch_saved(name): torch.save(torch.zeros(N), name); return name
def folder(name):
    os.makedirs(name, exist_ok=True); written(name + '/0', b'')
    return name
def linked(name, to): written(to, b'0'); os.symlink(to, name); return name
def relinked(name, to, text): written(to, text.encode()); os.unlink(name); os.symlink(to, name)
def linked_folder(name):
    os.mkdir(name + '0'); written(name + '0/x', b'0'); os.symlink(name + '0', name)
    return name
def relinked_folder(name, text):
    if not os.path.exists(name + '1'): os.mkdir(name + '1')
    written(name + '1/x', text.encode()); os.unlink(name); os.symlink(name + '1', name)
def database(name):
    with sqlite3.connect(name) as c: c.execute('create table t (v int)'); c.execute('insert into t values (0)')
    c.close()
    return name
def read_from(file): file.seek(0); return file.read()
def zipped(name, text):
    with zipfile.ZipFile(name, 'w') as z: z.writestr(zipfile.ZipInfo('x'), text)
    return name
def pictured(name): Image.new('L', (40, 40)).save(name); return name
def truncated(name): written(name, open(pictured(name), 'rb').read()[:-30]); return name
def attempted(call):
    try: return call()
    except Exception: return -1
def mask_of(name):
    if os.path.exists(name): os.unlink(name)
    os.close(os.open(name, os.O_CREAT, 0o777))
    return os.stat(name).st_mode & 0o777
class Wrapping:
    def __init__(self, *_, **__): pass
    def wrap(self, text): return []
def counting():
    level = 0
    while True:
        got = yield level
        level = got if got is not None else level
def filled_queue():
    q = queue.Queue(); q.put(0)
    return q
def end_of(memory):
    try: memory.close()
    except BufferError: pass
    memory.unlink()
"""

_LOOP = """
m = torch.nn.Linear(4, 1); opt = torch.optim.SGD(m.parameters(), lr=1e-3)
sch = torch.optim.lr_scheduler.LambdaLR(opt, lambda e: at('schedule', e) or 1.0)
m.weight.register_hook(lambda g: at('hook', EPOCH, B))
def train():
    global EPOCH, B
    for EPOCH in range(EPOCHS):
        at('epoch', EPOCH)
        try:
            for B, batch in enumerate(loader):
                at('got', EPOCH, B)
                x, i, lv = batch
                print(EPOCH, B, i.tolist(), lv.tolist(), repr(float(x.sum())), str(x.dtype)[6:], x.requires_grad)
                loss = m(x.float()).pow(2).mean()
                at('loss', EPOCH, B)
                opt.zero_grad()
                if loss.requires_grad: loss.backward()
                at('gradients', EPOCH, B)
                opt.step()
                at('step', EPOCH, B)
                {in_loop}
        except Exception as error: print(type(error).__name__, str(error).split('\\n')[0].split(' at 0x')[0])
        sch.step()
        {at_end}
    print(m.weight.tolist(), torch.rand(1).item(), np.random.rand(), random.random())
EPOCH = B = -1
if __name__ == '__main__': train()
"""

_LOADERS = {
    "shuffled": "DataLoader(data, batch_size={size}, shuffle=True)",
    "in order": "DataLoader(data, batch_size={size})",
    "last dropped": "DataLoader(data, batch_size={size} - 1, shuffle=True, drop_last=True)",
    "with replacement": "DataLoader(data, {size}, sampler=RandomSampler(data, replacement=True, num_samples=2 * len(data)))",
    "weighted": "DataLoader(data, {size}, sampler=WeightedRandomSampler(torch.ones(len(data)), 2 * len(data)))",
    "own generator": "DataLoader(data, {size}, shuffle=True, generator=torch.Generator().manual_seed(3))",
    "some of them": "DataLoader(data, {size}, sampler=SubsetRandomSampler(range(0, len(data), 2)))",
    "own sampler": "DataLoader(data, {size}, sampler=Order(len(data)))",
    "own batches": "DataLoader(data, batch_sampler=Batches(len(data), {size}))",
    "own collate": "DataLoader(data, {size}, shuffle=True, collate_fn=collated)",
    "workers": "DataLoader(data, {size}, shuffle=True, num_workers=2)",
    "workers that live on": "DataLoader(data, {size}, shuffle=True, num_workers=2, persistent_workers=True)",
    "anew in each epoch": "Anew(lambda: DataLoader(data, {size}, shuffle=True))",
    "of a data set made anew": "Anew(lambda: DataLoader(copy.copy(data), {size}, shuffle=True))",
}
_LOADER_WEIGHTS = (8, 3, 2, 3, 2, 1, 1, 2, 2, 3, 1, 1, 1, 3)
_SAMPLERS = """
class Order(Sampler):
    def __init__(self, n): self.n, self.epoch = n, 0
    def __len__(self): return self.n
    def __iter__(self):
        at('sampler', EPOCH)
        return iter(np.random.RandomState(EPOCH + 1).permutation(self.n).tolist())
class Batches(Sampler):
    def __init__(self, n, size): self.n, self.size = n, size
    def __len__(self): return self.n // self.size
    def __iter__(self):
        for k in range(len(self)):
            at('batches', EPOCH, k)
            yield torch.randperm(self.n)[:self.size].tolist()
class Anew:
    def __init__(self, make): self.make = make
    def __iter__(self): return iter(self.make())
def collated(samples):
    at('collate', EPOCH, B)
    x, i, lv = default_collate(samples)
    return x + collated.more, i, lv
collated.more = 0
"""
_WRAPPED = {
    "": "ds",
    "subset": "Subset(ds, CHOSEN)",
    "concatenated": "ConcatDataset([ds, Subset(ds, CHOSEN)])",
    "split": "random_split(ds, [N - 12, 12])[0]",
    "wrapped": "Wrapped(ds)",
    "whole batches": "Whole(ds)",
    "remembered": "Remembering(ds)",
}
_WRAPPERS = """
CHOSEN = list(range(0, N, 2)) + [1, 3, 5]
class Wrapped(Dataset):
    def __init__(self, inner, change=lambda s: s): self.inner, self.change = inner, change
    def __len__(self): return len(self.inner)
    def __getitem__(self, i): return self.change(self.inner[i])
class Whole(Wrapped):
    def __getitems__(self, indices): return [self.inner[i] for i in indices]
class Remembering(Wrapped):
    def __init__(self, inner): super().__init__(inner); self.memory = {}
    def __getitem__(self, i):
        if i not in self.memory: self.memory[i] = self.inner[i]
        return self.memory[i]
"""
_EARLY = ("epoch", "schedule")
_IN_EPOCH = ("got", "loss", "hook", "gradients", "step")
# Ways to write: by the training loop itself or by another hand that has ended when it goes on.
_BY = (
    "{call}",
    "thread(lambda: {call})",
    "exec('{call}')",
    "finalized(lambda: {call})",
    "(lambda: {call})()",
    "timer(lambda: {call})",
)
_HANDS = """
def thread(work):
    t = threading.Thread(target=work); t.start(); t.join()
def timer(work):
    t = threading.Timer(0.0, work); t.start(); t.join()
class Final:
    def __init__(self, work): self.work = work
    def __del__(self): self.work()
def finalized(work): Final(work)
"""
# What more a fetch does: draws, or writes, always or rarely.
_NOISE = {
    "": "",
    "draws": "x = x + torch.rand(4) * 1e-3",
    "draws of three": "x = x + torch.rand(4) * random.random() + np.float32(np.random.rand())",
    "draws rarely": "x = x + torch.rand(4) if i == {rare} else x",
    "draws rarely of Python": "x = x + random.random() if i == {rare} else x",
    "draws rarely of its own": "x = x + OWN.random() if i == {rare} else x",
    "draws late": "x = x + torch.rand(4) if AUG[0] else x",
    "counts rarely": "SEEN[0] += i == {rare}; lv += 100 * SEEN[0]",
    "remembers rarely": "self.last = i if i == {rare} else getattr(self, 'last', 0); lv += 100 * self.last",
    "notes rarely": "note(i) if i == {rare} else None; lv += os.path.getsize('noted')",
    "fails rarely": "check(i == {rare} and SEEN[0])",
    "in a worker or not": "lv += 1000 * (get_worker_info() is not None)",
    "process": "lv += 1000 * (os.getpid() != PID)",
    "time": "x = x + (STARTED is None)",
    "grad of a model": "x = x * FEATURES(torch.ones(1)) if i % 2 else x * FEATURES(torch.ones(1)).detach()",
    "logs": "log.append(i) if i == {rare} else None; lv += len(log)",
    "prints rarely": "print('rare') if i == {rare} else None",
}
_NOISE_WEIGHTS = (24, 5, 2, 1, 1, 1, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1)
_FETCHING = """
SEEN, AUG, OWN, PID, STARTED, log = [0], [False], np.random.default_rng(5), os.getpid(), time.time(), []
written('noted', b'')
FEATURES = torch.nn.Linear(1, 1)
def note(i):
    with open('noted', 'a') as file: file.write('x')
def check(bad):
    if bad: raise ValueError('bad sample')
def decode(i):  # 100 µs: well above the 15 µs that a prefix has to take to be kept (3,000 took 14 on a fast machine)
    a = np.arange(20_000, dtype=np.float64) + i
    return torch.from_numpy(np.sqrt(a).reshape(4, -1).sum(1))
"""


@dataclass
class _Parts:
    """What a program is put together from."""

    opts: list[str] = field(default_factory=lambda: ["LEVEL = 0"])
    before: list[str] = field(default_factory=list)
    in_class: list[str] = field(default_factory=list)
    in_init: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)  # of what it is made


def programs(count: int, seed: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Names, and files by their names; the first is the script."""
    for number in range(count):
        yield f"made{seed}_{number:03}", _program(random.Random(seed * 100_000 + number))


def each_leaf() -> Iterator[tuple[str, dict[str, str]]]:
    """Two programs for each leaf: their data set holds it, all is written that may be, and one draws random numbers."""
    for name, leaf in _LEAVES.items():
        for noise in ("", "draws"):
            parts, chance = _Parts(told=[name]), random.Random(1)
            if _put_state(parts, chance, 0, "attribute", [], leaf):
                words = ("leaf", noise, *name.replace("'", "").split())
                yield "_".join(filter(None, words)), _files(parts, chance, noise, "", "shuffled", False)


def _program(chance: random.Random) -> dict[str, str]:
    parts = _Parts()
    for number in range(chance.choice((1, 1, 2, 3))):
        _add_state(parts, chance, number)
    noise = chance.choices(list(_NOISE), _NOISE_WEIGHTS)[0]
    wrapped = chance.choices(list(_WRAPPED), (10, 1, 1, 1, 1, 1, 1))[0]
    loader = chance.choices(list(_LOADERS), _LOADER_WEIGHTS)[0]
    if noise == "notes rarely" and "workers" in loader:  # one writes to a file while the other asks how long it is
        noise = ""
    slow = chance.random() < 0.12
    return _files(parts, chance, noise, wrapped, loader, slow)


def _files(parts: _Parts, chance: random.Random, noise: str, wrapped: str, loader: str, slow: bool) -> dict[str, str]:
    text = "\n".join(
        (
            '"""' + "; ".join((*parts.told, f"noise: {noise}", f"{loader}, {wrapped}, slow: {slow}")) + '"""',
            _HEAD,
            _FETCHING,
            "EPOCHS, EPOCH, B = 5, -1, -1",
            _HANDS,
            "class Number: number = 0",
            *parts.before,
            _data_set(parts, chance, noise, slow),
            _WRAPPERS,
            *parts.writes,
            _moments(parts, chance, noise, wrapped, loader),
            _SAMPLERS,
            f"data = {_WRAPPED[wrapped]}",
            f"loader = {_LOADERS[loader].format(size=_BATCH)}",
            _loop(chance, loader),
        )
    )
    return {"train.py": text, "opts.py": "\n".join(parts.opts), "helpers.py": HELPERS}


def _add_state(parts: _Parts, chance: random.Random, number: int) -> None:
    """One thing that the data set reads and the program writes to."""
    while True:
        root_name = chance.choices(list(ROOTS), [_ODD if name in _REFUSED else 1 for name in ROOTS])[0]
        boxes = [chance.choice(list(BOXES)) for _ in range(chance.choice((0, 0, 1, 2)))]
        if chance.random() < 0.3:
            if not (BOXES[boxes[-1]][2] if boxes else ROOTS[root_name].holds):
                continue
            make, read, value = chance.choice(ASSIGNABLE)
            leaf_name, leaf = make, Leaf(make, read, ("{e} = " + value,))
        else:
            leaf_name = chance.choices(list(_LEAVES), [_ODD if name in _REFUSED else 1 for name in _LEAVES])[0]
            leaf = _LEAVES[leaf_name]
            leaf = replace(leaf, writes=tuple(chance.sample(leaf.writes, min(2, len(leaf.writes)))))
        if _put_state(parts, chance, number, root_name, boxes, leaf):
            parts.told.append(f"{root_name} > {' > '.join([*boxes, leaf_name])}")
            return


def _put_state(parts: _Parts, chance: random.Random, number: int, root_name: str, boxes: list[str], leaf: Leaf) -> bool:
    """Whether such a thing can be written down."""
    root, numbers, make = ROOTS[root_name], {"n": number}, leaf.make
    path = "".join(BOXES[each][1] for each in boxes)
    made = make.format(**numbers) if "{n}" in make or "{{" in make else make
    for each in reversed(boxes):
        made = BOXES[each][0].format(make=made)
    parts_read = leaf.read.format(e=root.read.format(**numbers) + path, n=number)
    at = root.write.format(**numbers) + path
    functions = [_write(at, each, number, place, chance) for place, each in enumerate(leaf.writes)]
    if not (all(map(_compiles, functions)) and _compiles(parts_read)):
        return False
    parts.before += [leaf.before.format(**numbers), root.before.format(make=made, **numbers)]
    if root.opts:
        parts.opts.append(_IMPORTS_OF_OPTS + root.opts.format(make=made, **numbers))
    parts.in_class.append(root.in_class.format(make=made, **numbers))
    parts.in_init.append(root.in_init.format(make=made, **numbers))
    parts.reads.append(parts_read)
    parts.writes += functions
    return True


def _write(at: str, statement: str, number: int, place: int, chance: random.Random) -> str:
    values = {"e": at, "n": number, "v": "PUT", "j": chance.randrange(SAMPLES), "k": chance.randrange(SAMPLES)}
    text = statement.format(**values)
    for quoted in ("'PUT'", "b'PUT'"):
        text = text.replace(quoted, f"{'b' * quoted.startswith('b')}'{number + 3}'")
    text = text.replace("PUT", "value")
    return f"def write_{number}_{place}(value):\n    {text}"


def _compiles(text: str) -> bool:
    try:
        compile(text, "", "exec")
    except SyntaxError:
        return False
    return True


def _data_set(parts: _Parts, chance: random.Random, noise: str, slow: bool) -> str:
    rare = chance.randrange(SAMPLES)
    read = " + ".join(f"({each})" for each in parts.reads)
    style = chance.choice(("straight", "method", "function", "nested", "rarely", "base"))
    head, inside = "class DS(Dataset):", []
    call = {"straight": f"({read})", "rarely": f"(({read}) if i > {SAMPLES // 3} else 0)"}.get(style, "self.label(i)")
    if style == "method":
        inside = ["def label(self, i):", f"    return {read}"]
    elif style == "nested":
        inside = ["def label(self, i):", f"    def look(): return {read}", "    return [look() for _ in range(1)][0]"]
    elif style == "function":
        head = f"def label_of(self, i): return {read}\n" + head
        inside = ["def label(self, i): return label_of(self, i)"]
    elif style == "base":
        head = f"class Base(Dataset):\n    def label(self, i): return {read}\nclass DS(Base):"
    init = [line for each in parts.in_init for line in each.splitlines()]
    own = [line for each in parts.in_class for line in each.splitlines()]
    fetch = ["x = decode(i)", f"lv = {call}"]
    if slow:
        fetch.insert(0, "time.sleep(0.012)")
    fetch.append(_NOISE[noise].format(rare=rare))
    body = [
        *own,
        "def __init__(self):",
        *("    " + line for line in init or ["pass"]),
        "def __len__(self): return N",
        *inside,
        "def __getitem__(self, i):",
        *("    " + line for line in fetch),
        "    return x, i, lv",
    ]
    lines = [line if line.startswith("    ") and line in own else "    " + line for line in body]
    return "\n".join([head, *lines, "ds = DS()"])


def _moments(parts: _Parts, chance: random.Random, noise: str, wrapped: str, loader: str) -> str:
    """When what is written."""
    writers = [
        line[4:].split("(")[0] for each in parts.writes for line in each.splitlines() if line.startswith("def write")
    ]
    extra = []
    if noise == "draws late":
        extra.append("AUG[0] = True")
    if noise == "fails rarely":
        extra.append("SEEN[0] = 1")
    if wrapped in ("subset", "concatenated"):
        extra.append("CHOSEN.reverse()")
    if loader == "own collate":
        extra.append("collated.more += 1")
    if wrapped == "wrapped":
        extra.append("data.change = lambda s: (s[0] + 1, *s[1:])")
    lines = []
    calls = [f"{chance.choice(writers)}({chance.randrange(1, 9)})" for _ in range(chance.choice((1, 1, 2, 3)))]
    for call in [*calls, *chance.sample(extra, chance.randrange(len(extra) + 1))]:
        place = chance.choice((*_EARLY, *_IN_EPOCH, "collate", "sampler", "batches"))
        if (place == "collate" and loader != "own collate") or place in ("sampler", "batches"):
            place = {"own sampler": "sampler", "own batches": "batches"}.get(loader, "step")
        when = (
            (chance.randrange(1, _EPOCHS),)
            if place in (*_EARLY, "sampler")
            else (
                chance.randrange(1, _EPOCHS),
                chance.randrange(SAMPLES // _BATCH - 2),
            )
        )
        by = chance.choice(_BY).format(call=call) if "=" not in call else f"exec({call!r}, globals())"
        lines.append(f"    if told == {(place, *when)!r}: {by}")
    return "\n".join(["def at(*told):", *(lines or ["    pass"]), "    return None"])


def _loop(chance: random.Random, loader: str) -> str:
    in_loop = chance.choice(
        ("pass", "pass", "pass", "if B == 3 and EPOCH == 1: break", "torch.rand(1)", "next(iter(loader))")
    )
    if "workers" in loader and "iter(" in in_loop:  # with workers that live on, the epoch would begin anew for ever
        in_loop = "pass"
    at_end = chance.choice(
        ("pass", "pass", "pass", "with torch.no_grad(): print([lv.tolist() for _, _, lv in loader][:2])")
    )
    return textwrap.dedent(_LOOP).format(in_loop=in_loop, at_end=at_end)
