"""How training scripts change their data late: curricula, buffers that grow, teachers, registries, settings of the process.

As in `leaves`: `{e}` is the thing, `{v}` the value, `{j}` and `{k}` samples' numbers.
"""

from __future__ import annotations

from tests.adversarial.leaves import Leaf

_ONES = "torch.ones(1, 1)"
_OUT = "int(1000 * float({e}(" + _ONES + ").detach()))"
_NET = "NET{n} = torch.nn.Linear(1, 1, bias=False); NET{n}.weight.data.fill_(0.25); NET{n}.requires_grad_(False)"

HABITS: dict[str, Leaf] = {
    # Data sets and samplers of PyTorch's.
    "subset's indices": Leaf(
        "Subset(list(range(N)), list(range(N)))",
        "{e}[i]",
        ("{e}.indices[{j}] = {k}", "{e}.indices = {e}.indices[::-1]", "{e}.dataset = [{v}] * N"),
    ),
    "tensor data set": Leaf(
        "TensorDataset(torch.zeros(N))",
        "int({e}[i][0])",
        ("{e}.tensors[0][{j}] = {v}", "{e}.tensors = (torch.full((N,), float({v})),)"),
    ),
    "concatenated lists": Leaf(
        "ConcatDataset([[0] * 20, [1] * 40])",
        "{e}[i]",
        ("{e}.datasets.reverse()", "{e}.datasets[0][{j} % 20] = {v}", "{e}.cumulative_sizes[0] = 20 - {v}"),
    ),
    "weights of a sampler": Leaf(
        "WeightedRandomSampler(torch.ones(N), N)",
        "int({e}.weights[i])",
        ("{e}.weights[{j}] = {v}", "{e}.weights = torch.full((N,), float({v}))", "{e}.weights.mul_({v})"),
    ),
    # Objects of the script's own.
    "curriculum": Leaf(
        "Curriculum{n}()",
        "int({e}.order[i])",
        ("{e}.learn({j}, {v}.5)", "{e}.hardest_first()"),
        "class Curriculum{n}:\n    def __init__(self): self.losses = np.zeros(N); self.order = np.arange(N)\n"
        "    def learn(self, i, loss): self.losses[i] = loss; self.order = np.argsort(self.losses, kind='stable')\n"
        "    def hardest_first(self): self.order = self.order[::-1]",
    ),
    "replay": Leaf(
        "Replay{n}()",
        "{e}.kept[i % len({e}.kept)]",
        (
            "{e}.fed.put({v}); {e}.drain()",
            "{e}.fed.put({v}); t = threading.Thread(target={e}.drain); t.start(); t.join()",
        ),
        "class Replay{n}:\n    def __init__(self): self.fed, self.kept = FED{n}, collections.deque([0, 1], maxlen=5)\n"
        "    def drain(self):\n        while not self.fed.empty(): self.kept.append(self.fed.get())\n"
        "    def __getstate__(self): return {{'kept': self.kept}}\nFED{n} = queue.SimpleQueue()",
    ),
    "timer": Leaf(
        "Thing(0)",
        "{e}.it",
        ("t = threading.Timer(0.0, setattr, ({e}, 'it', {v})); t.start(); t.join()",),
    ),
    "nonlocal": Leaf(
        "made_of{n}()",
        "{e}()",
        ("{e}.put({v})",),
        "def made_of{n}():\n    level = 0\n    def get(): return level\n    def put(v):\n        nonlocal level\n"
        "        level = v\n    get.put = put\n    return get",
    ),
    "count of a class": Leaf(
        "Counted{n}()",
        "{e}.count",
        ("{e}.bump({v})", "Counted{n}.count = {v}", "Counted{n}()"),
        "class Counted{n}:\n    count = 0\n    def __init__(self): type(self).count += 1\n"
        "    @classmethod\n    def bump(cls, v): cls.count += v",
    ),
    "dispatched by type": Leaf(
        "of{n}",
        "{e}(i)",
        ("{e}.register(int, lambda x: {v})", "{e}.register(object, lambda x: {v})"),
        "@functools.singledispatch\ndef of{n}(x): return 0",
    ),
    "method dispatched by type": Leaf(
        "By{n}()",
        "{e}.of(i)",
        ("By{n}.__dict__['of'].register(int, lambda self, x: {v})",),
        "class By{n}:\n    @functools.singledispatchmethod\n    def of(self, x): return 0",
    ),
    "registry": Leaf(
        "REGISTRY{n}",
        "{e}['first'](i)",
        ("enter{n}('first')(lambda i: {v})", "{e}['first'] = functools.partial(same, {v})"),
        "REGISTRY{n} = {{}}\ndef enter{n}(name):\n    def put(f): REGISTRY{n}[name] = f; return f\n    return put\n"
        "@enter{n}('first')\ndef first{n}(i): return 0",
    ),
    "remembered by the program": Leaf(
        "known{n}",
        "{e}(0)",
        ("FROM{n}[0] = {v}; {e}.cache_clear()",),
        "FROM{n} = [0]\n@functools.lru_cache(maxsize=None)\ndef known{n}(k): return FROM{n}[k]",
    ),
    "weak keys": Leaf(
        "WEAK{n}",
        "{e}.get(KEY{n}, 0)",
        ("{e}[KEY{n}] = {v}",),
        "class Of{n}: pass\nKEY{n} = Of{n}(); WEAK{n} = weakref.WeakKeyDictionary()",
    ),
    "plain context variable": Leaf("contextvars.ContextVar('plain{n}', default=0)", "{e}.get()", ("{e}.set({v})",)),
    "enumeration": Leaf(
        "Thing(Stage{n}.EASY)",
        "{e}.it.value",
        (
            "{e}.it = Stage{n}.HARD",
            "Stage{n}.EASY._value_ = {v}",
            "Stage{n}.EASY = SimpleNamespace(value={v}); {e}.it = Stage{n}.EASY",
        ),
        "class Stage{n}(enum.Enum):\n    EASY = 0\n    HARD = 7",
    ),
    "flags": Leaf(
        "Thing(Flags{n}.CROP)",
        "int(Flags{n}.FLIP in {e}.it)",
        ("{e}.it |= Flags{n}.FLIP",),
        "class Flags{n}(enum.Flag):\n    CROP = enum.auto()\n    FLIP = enum.auto()",
    ),
    "frozen settings": Leaf(
        "Thing(Frozen{n}())",
        "{e}.it.level",
        ("{e}.it = dataclasses.replace({e}.it, level={v})", "object.__setattr__({e}.it, 'level', {v})"),
        "@dataclasses.dataclass(frozen=True)\nclass Frozen{n}:\n    level: int = 0\n    name: str = 'x'",
    ),
    "frozen slots": Leaf(
        "Thing(Frozen{n}())",
        "{e}.it.level",
        ("object.__setattr__({e}.it, 'level', {v})",),
        "@dataclasses.dataclass(frozen=True, slots=True)\nclass Frozen{n}:\n    level: int = 0",
    ),
    "property with a setter": Leaf(
        "Set{n}()",
        "{e}.level",
        ("{e}.level = {v}",),
        "LEVELS{n} = {{}}\nclass Set{n}:\n    @property\n    def level(self): return LEVELS{n}.get('it', 0)\n"
        "    @level.setter\n    def level(self, v): LEVELS{n}['it'] = v",
    ),
    "descriptor that keeps": Leaf(
        "Described{n}()",
        "{e}.level",
        ("{e}.level = {v}",),
        "class Keeps{n}:\n    kept = 0\n    def __get__(self, one, kind): return self.kept\n"
        "    def __set__(self, one, v): self.kept = v\nclass Described{n}: level = Keeps{n}()",
    ),
    "proxy whose target changes": Leaf(
        "Proxy{n}(Thing(0))",
        "{e}.it",
        ("{e}.to(Thing({v}))", "{e}._target.it = {v}"),
        "class Proxy{n}:\n    def __init__(self, target): object.__setattr__(self, '_target', target)\n"
        "    def __getattr__(self, name): return getattr(object.__getattribute__(self, '_target'), name)\n"
        "    def to(self, target): object.__setattr__(self, '_target', target)",
    ),
    "method put on an object": Leaf(
        "Thing(0)", "{e}.get() if hasattr({e}, 'get') else 0", ("{e}.get = MethodType(lambda one: {v}, {e})",)
    ),
    "default of a factory": Leaf(
        "collections.defaultdict(lambda: 0)", "{e}.default_factory()", ("{e}.default_factory = lambda: {v}",)
    ),
    "caller of methods": Leaf(
        "operator.methodcaller('get', 'k', 0)", "{e}(KEPT{n})", ("KEPT{n}['k'] = {v}",), "KEPT{n} = {{}}"
    ),
    "view of a dict": Leaf(
        "VIEWED{n}.values()", "next(iter({e}))", ("VIEWED{n}['k'] = {v}",), "VIEWED{n} = {{'k': 0}}"
    ),
    "order that is moved": Leaf(
        "collections.OrderedDict((k, k) for k in range(N))",
        "next(iter({e}))",
        ("{e}.move_to_end({v} - 3, last=False)", "{e}.move_to_end(0)"),
    ),
    "vectorised": Leaf("np.vectorize(lambda x: 0)", "int({e}(i))", ("{e}.pyfunc = lambda x: {v}",)),
    "template": Leaf("string.Template('0')", "int({e}.substitute())", ("{e}.template = '{v}'",)),
    "registered with an abstract class": Leaf(
        "Abstract{n}",
        "int(isinstance(i, {e}))",
        ("{e}.register(int)",),
        "class Abstract{n}(abc.ABC): pass",
    ),
    "annotations": Leaf(
        "Annotated{n}",
        "len({e}.__annotations__)",
        ("{e}.__annotations__['late'] = int",),
        "class Annotated{n}:\n    level: int = 0",
    ),
    # Numbers in other hands.
    "raw shared number": Leaf("multiprocessing.RawValue('i', 0)", "{e}.value", ("{e}.value = {v}",)),
    "raw shared array": Leaf("multiprocessing.RawArray('i', N)", "{e}[i]", ("{e}[{j}] = {v}",)),
    "array that is saved anew": Leaf(
        "saved('again{n}.npy', np.zeros(N, int))",
        "int(np.load({e}, mmap_mode='r')[i])",
        (
            "np.save('again{n}.npy', np.full(N, {v}))",
            "saved('other{n}.npy', np.full(N, {v})); os.replace('other{n}.npy', 'again{n}.npy')",
            "m = np.load('again{n}.npy', mmap_mode='r+'); m[{j}] = {v}; m.flush()",
        ),
    ),
    "keys and values": Leaf(
        "KeyValue{n}(written('kv{n}', bytes(N)))",
        "{e}.get(i)",
        ("{e}.put({j}, {v})", "open('kv{n}', 'r+b').write(bytes([{v}]))"),
        "class KeyValue{n}:\n    def __init__(self, path): self.path, self.file = path, None\n    def get(self, i):\n"
        "        if self.file is None: self.file = open(self.path, 'rb', buffering=0)\n"
        "        self.file.seek(i); return self.file.read(1)[0]\n    def put(self, i, v):\n"
        "        with open(self.path, 'r+b') as file: file.seek(i); file.write(bytes([v]))",
    ),
    # Models that make or score samples.
    "weights seen by the data": Leaf(
        "NET{n}.weight.detach()[0]",
        "int(1000 * float({e}[0]))",
        (
            "NET{n}(" + _ONES + ").sum().backward(); torch.optim.SGD(NET{n}.parameters(), lr={v}).step()",
            "NET{n}.load_state_dict({{'weight': torch.full((1, 1), float({v}))}})",
        ),
        "NET{n} = torch.nn.Linear(1, 1, bias=False); NET{n}.weight.data.fill_(0.25)",
    ),
    "teacher": Leaf(
        "torch.optim.swa_utils.AveragedModel(NET{n})",
        _OUT,
        ("NET{n}.weight.data.add_({v}); {e}.update_parameters(NET{n})", "{e}.module = torch.nn.Identity()"),
        _NET,
    ),
    "mode of what is around": Leaf(
        "AROUND{n}['augment']",
        "int({e}.training)",
        ("AROUND{n}.eval()", "AROUND{n}.train(False)"),
        "AROUND{n} = torch.nn.ModuleDict({{'augment': torch.nn.Dropout(0.0)}})",
    ),
    "late buffer": Leaf(
        "torch.nn.Identity()",
        "int(getattr({e}, 'late', 0))",
        ("{e}.register_buffer('late', torch.tensor({v}))", "{e}.late = torch.nn.Parameter(torch.tensor(float({v})))"),
    ),
    "order of modules": Leaf(
        "torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Threshold(0.5, -3.0))",
        "int({e}(torch.tensor(-1.0)))",
        (
            "{e}.insert(0, torch.nn.Hardtanh({v}, {v} + 1.0))",
            "{e}.pop(1)",
            "{e}._modules = dict(reversed({e}._modules.items()))",
        ),
    ),
    "distribution": Leaf(
        "torch.distributions.Normal(torch.zeros(1), torch.ones(1))",
        "int({e}.mean)",
        ("{e}.loc.fill_({v})", "{e}.loc = torch.full((1,), float({v}))"),
    ),
    "rate of an optimizer": Leaf(
        "OPT{n}",
        "int(1000 * {e}.param_groups[0]['lr'])",
        ("{e}.param_groups[0]['lr'] = {v}.0", "torch.optim.lr_scheduler.LambdaLR({e}, lambda epoch: {v}.0)"),
        "OPT{n} = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)",
    ),
    "smoothed labels": Leaf(
        "Smooth{n}(0.5)",
        "int(1000 * {e}(i))",
        ("{e}.by *= 0.5", "{e}.table = {e}.table.clone().add_({v})"),
        "class Smooth{n}:\n    def __init__(self, by): self.by, self.table = by, torch.arange(N)\n"
        "    def __call__(self, i): return float(self.table[i]) * (1 - self.by)",
    ),
    "share of a mixture": Leaf(
        "Mixup{n}()",
        "int(97 * {e}.share)",
        ("{e}.draw()", "{e}.share = float(np.random.RandomState({v}).beta(1, 1))"),
        "class Mixup{n}:\n    def __init__(self): self.own, self.share = np.random.default_rng(3), 0.5\n"
        "    def draw(self): self.share = self.own.beta(0.4, 0.4)",
    ),
    "gradient of a result": Leaf(
        "FREE{n}",
        "int({e}(" + _ONES + ").requires_grad)",
        ("{e}.requires_grad_(False)",),
        "FREE{n} = torch.nn.Linear(1, 1)",
    ),
    # What a process, or a library, is told for all.
    "state of Python's generator": Leaf("random", "{e}.getstate()[1][-1]", ("{e}.seed({v})",)),
    "state of numpy's generator": Leaf("np.random", "int({e}.get_state()[2])", ("{e}.rand({v})",)),
    "state of torch's generator": Leaf("torch", "int({e}.get_rng_state()[:16].sum())", ("{e}.manual_seed({v})",)),
    "seed of torch": Leaf("torch", "{e}.initial_seed() % 97", ("{e}.manual_seed({v})",)),
    "number of threads": Leaf("torch", "{e}.get_num_threads()", ("{e}.set_num_threads({v})",)),
    "threads that live": Leaf(
        "threading",
        "{e}.active_count()",
        ("t = threading.Thread(target=time.sleep, args=(3,), daemon=True); t.start()",),
    ),
    "limit of the process": Leaf(
        "resource",
        "{e}.getrlimit({e}.RLIMIT_CORE)[0] % 97",
        ("{e}.setrlimit({e}.RLIMIT_CORE, ({v}, -1))",),
        "resource.setrlimit(resource.RLIMIT_CORE, (0, -1))",
    ),
    "handler of a signal": Leaf(
        "signal",
        "int({e}.getsignal({e}.SIGUSR2) is SEEN{n})",
        ("{e}.signal({e}.SIGUSR2, SEEN{n})",),
        "def SEEN{n}(*_): pass",
    ),
    "umask": Leaf("'um{n}'", "mask_of({e})", ("os.umask({v})",)),
    "affinity": Leaf(
        "os", "len({e}.sched_getaffinity(0))", ("{e}.sched_setaffinity(0, sorted({e}.sched_getaffinity(0))[:1])",)
    ),
    "niceness": Leaf("os", "{e}.getpriority({e}.PRIO_PROCESS, 0)", ("{e}.nice({v})",)),
    "oneDNN": Leaf("torch", "int({e}.backends.mkldnn.enabled)", ("torch._C._set_mkldnn_enabled(False)",)),
    "oneDNN's arithmetic": Leaf(
        "torch.linspace(-1.0, 1.0, 48 * 144).view(48, 16, 3, 3)",
        "int(torch.nn.functional.conv2d(IMAGE{n}, {e}).double().sin().sum().mul(1e6))",
        ("torch.backends.mkldnn.flags(enabled=False).__enter__()",),
        "IMAGE{n} = torch.linspace(-3.0, 2.0, 16 * 64 * 64).sin().view(1, 16, 64, 64)",
    ),
    "deterministic algorithms": Leaf(
        "torch", "int({e}.are_deterministic_algorithms_enabled())", ("{e}.use_deterministic_algorithms(True)",)
    ),
    "switching of threads": Leaf("sys", "int(1e6 * {e}.getswitchinterval())", ("{e}.setswitchinterval({v} * 1e-3)",)),
    "long numbers": Leaf("5000", "attempted(lambda: len(str(10 ** {e})))", ("sys.set_int_max_str_digits(9000)",)),
    "fields of tables": Leaf(
        "['x' * 40]", "attempted(lambda: len(next(csv.reader({e}))))", ("csv.field_size_limit({v})",)
    ),
    "errors in texts": Leaf(
        "'kind{n}'",
        r"len(b'\xff'.decode('ascii', {e}))",
        ("codecs.register_error('kind{n}', lambda error: ('x' * {v}, error.end))",),
        "codecs.register_error('kind{n}', lambda error: ('', error.end))",
    ),
    "how objects are copied": Leaf(
        "Thing(0)", "copy.copy({e}).it", ("copyreg.pickle(Thing, lambda thing: (Thing, ({v},)))",)
    ),
    "printing of tensors": Leaf(
        "torch.tensor([0.123456789])", "len(str({e}))", ("torch.set_printoptions(precision={v})",)
    ),
    "what a library calls": Leaf(
        "[1, 2, 4]",
        "attempted(lambda: int(statistics.mean({e})))",
        ("statistics._convert = lambda value, kind: {v}",),
    ),
    "what a library calls of its own": Leaf(
        "'a b c'",
        "len(textwrap.wrap({e}))",
        ("textwrap.TextWrapper = Wrapping", "textwrap.TextWrapper._split_chunks = lambda self, text: ['x'] * {v}"),
    ),
    "what a library goes by": Leaf(
        "'a b c'", "attempted(lambda: len(shlex.split({e})))", ("shlex.shlex = lambda *_, **__: 1 / 0",)
    ),
    "setting of a library": Leaf(
        "truncated('cut{n}.png')",
        "attempted(lambda: len(Image.open({e}).tobytes()))",
        ("ImageFile.LOAD_TRUNCATED_IMAGES = True",),
    ),
    "largest picture": Leaf(
        "pictured('big{n}.png')", "attempted(lambda: len(Image.open({e}).tobytes()))", ("Image.MAX_IMAGE_PIXELS = {v}",)
    ),
    "picture": Leaf(
        "Image.new('L', (N, 1))",
        "{e}.getpixel((i, 0))",
        ("{e}.putpixel(({j}, 0), {v})", "{e}.paste({v}, (0, 0, N, 1))"),
    ),
    "picture in an array": Leaf(
        "Image.fromarray(BASE{n})",
        "{e}.getpixel((i, 0))",
        ("{e}.putpixel(({j}, 0), {v})", "BASE{n}[0, {j}] = {v}"),
        "BASE{n} = np.zeros((1, N), np.uint8)",
    ),
}
