"""What is read in the end, and written to where it lies: `{e}` is the thing, `{v}` the value, `{j}` a sample's number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Leaf:
    make: str
    read: str
    writes: tuple[str, ...]
    before: str = ""


_I = "int({e}[i])"
_PUTS = (
    "{e}[{j}] = {v}",
    "{e}[:] = {v}",
    "np.copyto({e}, {v})",
    "np.add({e}, {v}, out={e})",
    "np.put({e}, [{j}], {v})",
)
_SWAPS = ("{e}[[{j}, {k}]] = {e}[[{k}, {j}]]", "{e}[:] = np.roll({e}, {v})", "np.random.RandomState({v}).shuffle({e})")
_TORCH = (
    "{e}[{j}] = {v}",
    "{e}.fill_({v})",
    "{e}.data[{j}] = {v}",
    "{e}.data.fill_({v})",
    "{e}.numpy()[{j}] = {v}",
    "{e}.detach().numpy()[:] = {v}",
    "{e}.untyped_storage().copy_(torch.full_like({e}, {v}).untyped_storage())",
    "{e}.index_fill_(0, torch.tensor([{j}]), {v})",
    "np.from_dlpack({e})[{j}] = {v}",
    "{e}.set_(torch.full_like({e}, {v}))",
    "{e}.data = torch.full_like({e}, {v})",
    "{e}.copy_(torch.full_like({e}, {v}))",
    "{e}.view(torch.int32)[2 * {j}] = {v}",
    "ctypes.c_int64.from_address({e}.data_ptr() + 8 * {j}).value = {v}",
    "ctypes.memset({e}.data_ptr(), {v}, 8)",
)
_LIST = (
    "{e}[{j}] = {v}",
    "{e}[:] = [{v}] * N",
    "{e}.reverse(); {e}[0] += {v}",
    "{e}.insert(0, {v})",
    "{e}.sort(key=lambda x: -x); {e}.append({e}.pop(0) + {v})",
    "random.Random({v}).shuffle({e})",
    "{e}.pop({j}); {e}.append({v})",
)

LEAVES: dict[str, Leaf] = {
    "array": Leaf("np.zeros(N, np.int64)", _I, _PUTS),
    "array of bytes": Leaf("np.zeros(N, np.uint8)", _I, _PUTS),
    "array in order": Leaf("np.arange(N)", _I, _SWAPS),
    "large array": Leaf(
        "np.zeros(N * 5000, np.int64)", "int({e}[i * 5000])", ("{e}[{j} * 5000] = {v}", "{e}[:] = {v}")
    ),
    "large in order": Leaf("np.arange(N * 3000)", "int({e}[i * 3000])", _SWAPS[1:]),
    "large rows": Leaf(
        "np.arange(N)[:, None].repeat(3000, 1)",
        "int({e}[i, 5])",
        ("{e}[[{j}, {k}]] = {e}[[{k}, {j}]]", "{e}[{j}].fill({v})", "ctypes.memset({e}[{j}].ctypes.data, {v}, 1)"),
    ),
    "large by Fortran": Leaf("np.zeros((N, 3000), order='F')", "int({e}[i, 3])", ("{e}[{j}] = {v}",)),
    "view": Leaf(
        "BASE{n}[3:3 + N]", _I, ("BASE{n}[3 + {j}] = {v}", "BASE{n}.fill({v})"), "BASE{n} = np.zeros(N + 9, int)"
    ),
    "large view": Leaf(
        "BASE{n}[::7]", _I, ("BASE{n}[7 * {j}] = {v}", "BASE{n}.fill({v})"), "BASE{n} = np.zeros(N * 7000, int)"
    ),
    "view backwards": Leaf("BASE{n}[::-1]", _I, ("BASE{n}[-1 - {j}] = {v}",), "BASE{n} = np.zeros(N, int)"),
    "view by columns": Leaf("BASE{n}[:, 1]", _I, ("BASE{n}[{j}, 1] = {v}",), "BASE{n} = np.zeros((N, 3), int)"),
    "view for reading": Leaf(
        "read_only(BASE{n})", _I, ("BASE{n}[{j}] = {v}", "BASE{n}[:] = {v}"), "BASE{n} = np.zeros(N, int)"
    ),
    "broadcast": Leaf("np.broadcast_to(BASE{n}, (N,))", _I, ("BASE{n}[0] = {v}",), "BASE{n} = np.zeros(1, int)"),
    "strided": Leaf(
        "np.lib.stride_tricks.as_strided(BASE{n}, (N,), (0,))", _I, ("BASE{n}[0] = {v}",), "BASE{n} = np.zeros(4, int)"
    ),
    "windows": Leaf(
        "np.lib.stride_tricks.sliding_window_view(BASE{n}, 4)",
        "int({e}[i].sum())",
        ("BASE{n}[{j}] = {v}",),
        "BASE{n} = np.zeros(N + 4, int)",
    ),
    "masked": Leaf(
        "np.ma.zeros(N, int)",
        "int({e}.filled(99)[i])",
        ("{e}[{j}] = {v}", "{e}[{j}] = np.ma.masked", "{e}.mask = np.arange(N) % 2 == {v} % 2"),
    ),
    "records": Leaf(
        "np.zeros(N, [('x', 'f4'), ('y', 'i4')]).view(np.recarray)",
        "int({e}.y[i])",
        ("{e}.y[{j}] = {v}", "{e}['y'] = {v}", "{e}[{j}] = (1, {v})"),
    ),
    "array's dtype": Leaf("np.zeros(N, np.int64)", "{e}.itemsize", ("{e}.dtype = np.int32",)),
    "array's shape": Leaf(
        "np.zeros((N, 2), np.int64)", "{e}.shape[0]", ("{e}.shape = (2, N)", "{e}.resize(N + {v}, refcheck=False)")
    ),
    "dates": Leaf("np.zeros(N, 'M8[D]')", "int({e}[i].astype(int))", ("{e}[{j}] = np.datetime64({v}, 'D')",)),
    "texts": Leaf("np.array(['0'] * N, dtype='U3')", _I, ("{e}[{j}] = '{v}'",)),
    "array of lists": Leaf("as_lists(N)", "{e}[i][0]", ("{e}[{j}][0] = {v}", "{e}[{j}] = [{v}]")),
    "array subclass": Leaf("np.zeros(N, int).view(Sub)", _I + " + {e}.more", ("{e}[{j}] = {v}", "{e}.more = {v}")),
    "mapped for both": Leaf("np.memmap('mm{n}', np.int64, 'w+', shape=N)", _I, _PUTS),
    "mapped for reading": Leaf(
        "np.memmap('mm{n}', np.int64, 'r')",
        _I,
        (
            "WR{n}[{j}] = {v}",
            "open('mm{n}', 'r+b').write(np.full(N, {v}).tobytes())",
            "os.pwrite(FD{n}, bytes([{v}]), 8 * {j})",
        ),
        "WR{n} = np.memmap('mm{n}', np.int64, 'w+', shape=N); FD{n} = os.open('mm{n}', os.O_RDWR)",
    ),
    "mapped copy": Leaf("np.memmap(written('mc{n}', bytes(8 * N)), np.int64, 'c')", _I, ("{e}[{j}] = {v}",)),
    "saved and mapped": Leaf(
        "np.load(saved('ms{n}.npy', np.zeros(N, int)), mmap_mode='r')",
        _I,
        ("np.load('ms{n}.npy', mmap_mode='r+')[{j}] = {v}",),
    ),
    "shared memory": Leaf(
        "np.frombuffer(SM{n}.buf, np.int64, N)",
        _I,
        ("{e}[{j}] = {v}", "SM{n}.buf[8 * {j}] = {v}"),
        "SM{n} = shared_memory.SharedMemory(create=True, size=8 * N)\natexit.register(end_of, SM{n})",
    ),
    "memory map": Leaf("mmap.mmap(-1, N)", "{e}[i]", ("{e}[{j}] = {v}", "{e}.seek({j}); {e}.write_byte({v})")),
    "bytearray": Leaf(
        "bytearray(N)", "{e}[i]", ("{e}[{j}] = {v}", "memoryview({e})[{j}] = {v}", "{e}[:] = bytes([{v}]) * N")
    ),
    "array of array": Leaf("array.array('q', [0] * N)", "{e}[i]", ("{e}[{j}] = {v}", "memoryview({e})[{j}] = {v}")),
    "memoryview": Leaf("memoryview(BASE{n})", "{e}[i]", ("BASE{n}[{j}] = {v}",), "BASE{n} = array.array('q', [0] * N)"),
    "array on a bytearray": Leaf(
        "np.frombuffer(BASE{n}, np.int64)", _I, ("BASE{n}[8 * {j}] = {v}",), "BASE{n} = bytearray(8 * N)"
    ),
    "ctypes": Leaf("(ctypes.c_int64 * N)()", "{e}[i]", ("{e}[{j}] = {v}", "ctypes.memset({e}, {v}, 8)")),
    "ctypes structure": Leaf(
        "Point{n}()",
        "{e}.x",
        ("{e}.x = {v}",),
        "class Point{n}(ctypes.Structure):\n    _fields_ = [('x', ctypes.c_int)]",
    ),
    "array of ctypes": Leaf(
        "np.ctypeslib.as_array(BASE{n})", _I, ("BASE{n}[{j}] = {v}",), "BASE{n} = (ctypes.c_int64 * N)()"
    ),
    "tensor": Leaf("torch.zeros(N, dtype=torch.int64)", _I, _TORCH),
    "large tensor": Leaf(
        "torch.zeros(N * 5000, dtype=torch.int64)", "int({e}[i * 5000])", (*_TORCH[1:2], *_TORCH[3:4], *_TORCH[5:7])
    ),
    "tensor of an array": Leaf(
        "torch.from_numpy(BASE{n})", _I, ("BASE{n}[{j}] = {v}", "BASE{n}[:] = {v}"), "BASE{n} = np.zeros(N, np.int64)"
    ),
    "array of a tensor": Leaf(
        "BASE{n}.numpy()",
        _I,
        ("BASE{n}[{j}] = {v}", "BASE{n}.fill_({v})"),
        "BASE{n} = torch.zeros(N, dtype=torch.int64)",
    ),
    "view of a tensor": Leaf(
        "BASE{n}[:, 1]",
        _I,
        ("BASE{n}[{j}, 1] = {v}", "BASE{n}.zero_().add_({v})"),
        "BASE{n} = torch.zeros(N, 3).long()",
    ),
    "expanded": Leaf("BASE{n}.expand(N)", _I, ("BASE{n}[0] = {v}",), "BASE{n} = torch.zeros(1).long()"),
    "tensor in shared memory": Leaf("torch.zeros(N).long().share_memory_()", _I, _TORCH[:6]),
    "tensor of inference": Leaf(
        "BASE{n}",
        _I,
        ("with torch.inference_mode(): {e}[{j}] = {v}",),
        "with torch.inference_mode(): BASE{n} = torch.zeros(N).long()",
    ),
    "parameter": Leaf(
        "torch.nn.Parameter(torch.zeros(N))",
        "int({e}.detach()[i])",
        ("with torch.no_grad(): {e}[{j}] = {v}", "{e}.data[{j}] = {v}", "{e}.data = torch.full((N,), float({v}))"),
    ),
    "conjugate": Leaf(
        "BASE{n}.conj()",
        "int({e}[i].imag)",
        ("BASE{n}[{j}] = complex(0, -{v})",),
        "BASE{n} = torch.zeros(N, dtype=torch.complex64)",
    ),
    "buffer of a module": Leaf(
        "torch.nn.BatchNorm1d(N)",
        "int({e}.running_mean[i])",
        ("{e}.running_mean[{j}] = {v}", "{e}.running_mean = torch.full((N,), float({v}))"),
    ),
    "mode of a module": Leaf(
        "torch.nn.Dropout(0.0)", "int({e}.training)", ("{e}.eval()", "{e}.p = 0.5; {e}.training = False")
    ),
    "hook of a module": Leaf(
        "torch.nn.Identity()",
        "int({e}(torch.tensor(0)))",
        ("{e}.register_forward_hook(lambda m, a, o: o + {v})", "{e}.forward = lambda x: x + {v}"),
    ),
    "model": Leaf(
        "torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False)).requires_grad_(False)",
        "int(1000 * float({e}(torch.ones(1))[0]))",
        ("{e}[0].weight.data.fill_({v})", "{e}.append(torch.nn.Threshold(9, 9))", "{e}[0] = torch.nn.Identity()"),
    ),
    "sparse": Leaf(
        "torch.zeros(N).to_sparse()", "int({e}.to_dense()[i])", ("{e}.copy_(torch.full((N,), float({v})).to_sparse())",)
    ),
    "list": Leaf("[0] * N", "{e}[i]", _LIST),
    "list in order": Leaf("list(range(N))", "{e}[i]", _LIST),
    "long list": Leaf("list(range(N * 100))", "{e}[i]", _LIST),
    "list of floats": Leaf(
        "[0.5] * N",
        "int(np.signbit({e}[i])) + int({e}[i])",
        ("{e}[{j}] = -0.0", "{e}[{j}] = float('nan') if {v} < 0 else 3.5"),
    ),
    "dict": Leaf(
        "dict.fromkeys(range(N), 0)",
        "{e}.get(i, 5)",
        ("{e}[{j}] = {v}", "{e}.update({{{j}: {v}}})", "{e}.pop({j}, None)", "{e}.clear()", "{e} |= {{{j}: {v}}}"),
    ),
    "dict's order": Leaf("{{'a': 1, 'b': 2}}", "next(iter({e}.values()))", ("{e}['a'] = {e}.pop('a') + {v}",)),
    "set": Leaf("set()", "int(i in {e})", ("{e}.add({j})", "{e}.update(range({v}))", "{e} ^= {{{j}, {k}}}")),
    "counter": Leaf("collections.Counter()", "{e}[i]", ("{e}[{j}] += {v}", "{e}.subtract([{j}])")),
    "heap": Leaf("[5, 6, 7]", "{e}[0]", ("heapq.heappush({e}, {v} - 9)", "heapq.heapreplace({e}, {v} + 9)")),
    "list of objects": Leaf(
        "[Thing(0) for _ in range(N)]", "{e}[i].it", ("{e}[{j}].it = {v}", "{e}[{j}].__dict__ = {{'it': {v}}}")
    ),
    "many objects": Leaf("[Thing([0]) for _ in range(900)]", "{e}[i].it[0]", ("{e}[{j}].it[0] = {v}",)),
    "many slots": Leaf("[Slots(0) for _ in range(500)]", "{e}[i].it", ("{e}[{j}].it = {v}",)),
    "object's class": Leaf("Thing(0)", "{e}.number", ("{e}.__class__ = type('Thing', (Thing,), {{'number': {v}}})",)),
    "list subclass": Leaf(
        "Own([0] * N)", "{e}[i]", ("{e}[{j}] = {v}", "list.__setitem__({e}, {j}, {v})", "{e}.shift = {v}")
    ),
    "dict subclass": Leaf("OwnDict(a=0)", "{e}['a'] + {e}['b']", ("{e}['a'] = {v}", "{e}.default = {v}")),
    "generator": Leaf("counting()", "{e}.gi_frame.f_locals['level']", ("{e}.send({v})",)),
    "iterator": Leaf("iter(range(99))", "{e}.__reduce__()[-1]", ("next({e})",)),
    "count": Leaf("itertools.count()", "int(repr({e})[6:-1])", ("next({e})",)),
    "text file in memory": Leaf("io.StringIO('0')", "int({e}.getvalue())", ("{e}.seek(0); {e}.write('{v}')",)),
    "bytes in memory": Leaf("io.BytesIO(bytes(N))", "{e}.getbuffer()[i]", ("{e}.getbuffer()[{j}] = {v}",)),
    "generator of numbers": Leaf(
        "np.random.default_rng(0)", "{e}.bit_generator.state['state']['state'] % 97", ("{e}.random()",)
    ),
    "old generator": Leaf("np.random.RandomState(0)", "int({e}.get_state()[2])", ("{e}.rand({v})",)),
    "Python's generator": Leaf("random.Random(0)", "{e}.getstate()[1][-1]", ("{e}.random()",)),
    "torch's generator": Leaf(
        "torch.Generator().manual_seed(0)",
        "int({e}.get_state()[3])",
        ("torch.rand({v}, generator={e})", "{e}.manual_seed({v})"),
    ),
    "json": Leaf(
        "written('f{n}.json', b'0')",
        "json.loads(Path({e}).read_text())",
        (
            "Path('f{n}.json').write_text('{v}')",
            "written('new{n}', b'{v}'); os.replace('new{n}', 'f{n}.json')",
            "same_time('f{n}.json', '{v}')",
            "open('f{n}.json', 'r+').write('{v}')",
            "os.unlink('f{n}.json'); os.symlink(written('s{n}', b'{v}'), 'f{n}.json')",
            "subprocess.run(['sh', '-c', 'printf {v} > f{n}.json'])",
        ),
    ),
    "file that grows": Leaf(
        "written('g{n}', b'')",
        "os.path.getsize({e})",
        ("open('g{n}', 'a').write('x' * {v})", "os.truncate('g{n}', {v})"),
    ),
    "file that is not named": Leaf(
        "written('h{n}', b'0')[:-1]", "int(open({e} + '{n}').read())", ("Path('h{n}').write_text('{v}')",)
    ),
    "file that may be there": Leaf(
        "'there{n}'", "int(os.path.exists({e}))", ("written('there{n}', b'')", "os.mkdir('there{n}')")
    ),
    "file of a sample that may be there": Leaf(
        "folder('mf{n}')[:-1]",
        "int(os.path.exists({e} + '{n}/' + str(i) + '.mask'))",
        ("written('mf{n}/{j}.mask', b'')", "os.mkdir('mf{n}/{j}.mask')"),
    ),
    "size of a file that is not named": Leaf(
        "written('ms{n}', b'0')[:-1]", "Path({e} + '{n}').stat().st_size", ("open('ms{n}', 'a').write('x')",)
    ),
    "file's time": Leaf("timed('t{n}', 0)", "int(os.stat({e}).st_mtime) % 97", ("timed('t{n}', {v})",)),
    "folder": Leaf(
        "folder('dir{n}')",
        "len(os.listdir({e}))",
        ("written('dir{n}/{v}', b'')", "os.unlink('dir{n}/0')", "os.mkdir('dir{n}/new')"),
    ),
    "folder that is not named": Leaf(
        "folder('fn{n}')[:-1]",
        "len(list(Path({e} + '{n}').iterdir()))",
        ("written('fn{n}/{v}', b'')", "os.unlink('fn{n}/0')", "os.mkdir('fn{n}/new')"),
    ),
    "link": Leaf(
        "linked('l{n}', 'la{n}')",
        "int(open({e}).read())",
        ("relinked('l{n}', 'lb{n}', '{v}')", "Path('la{n}').write_text('{v}')"),
    ),
    "folder behind a link": Leaf(
        "linked_folder('ld{n}')",
        "int(open(os.path.join({e}, 'x')).read())",
        ("relinked_folder('ld{n}', '{v}')", "Path('ld{n}/x').write_text('{v}')"),
    ),
    "array in a file": Leaf(
        "saved('a{n}.npy', np.zeros(N))", "int(np.load({e})[i])", ("np.save('a{n}.npy', np.full(N, {v}))",)
    ),
    "tensor in a file": Leaf(
        "torch_saved('p{n}.pt')", "int(torch.load({e})[i])", ("torch.save(torch.full((N,), {v}), 'p{n}.pt')",)
    ),
    "database": Leaf(
        "database('db{n}')",
        "sqlite3.connect({e}).execute('select v from t').fetchone()[0]",
        ("with sqlite3.connect('db{n}') as c: c.execute('update t set v = {v}')",),
    ),
    "open file": Leaf("open(written('o{n}', b'0'))", "int(read_from({e}))", ("Path('o{n}').write_text('{v}')",)),
    "descriptor of a file": Leaf(
        "os.open(written('q{n}', b'0'), os.O_RDONLY)", "int(os.pread({e}, 9, 0))", ("Path('q{n}').write_text('{v}')",)
    ),
    "archive": Leaf("zipped('z{n}', '0')", "int(zipfile.ZipFile({e}).read('x'))", ("zipped('z{n}', '{v}')",)),
    "environment": Leaf(
        "os.environ.setdefault('E{n}', '0') and 'E{n}'",
        "int(os.environ[{e}])",
        ("os.environ['E{n}'] = '{v}'", "os.putenv('E{n}', '{v}'); os.environ.update(E{n}='{v}')"),
    ),
    "environment as bytes": Leaf(
        "os.environb.setdefault(b'E{n}', b'0') and b'E{n}'", "int(os.environb[{e}])", ("os.environ['E{n}'] = '{v}'",)
    ),
    "grad mode": Leaf("torch", "int({e}.is_grad_enabled())", ("torch.set_grad_enabled(False)",)),
    "default type": Leaf("torch", "{e}.tensor(0.0).itemsize", ("torch.set_default_dtype(torch.float64)",)),
    "printing of arrays": Leaf("np.pi * np.ones(1)", "len(str({e}))", ("np.set_printoptions(precision={v})",)),
    "level of a logger": Leaf(
        "logging.getLogger('l{n}')", "{e}.getEffectiveLevel()", ("logging.getLogger('l{n}').setLevel({v})",)
    ),
    "floating errors": Leaf("np.geterr", "len({e}()['over'])", ("np.seterr(over='print')",)),
    # Set at the beginning: `overdrive run` leaves room for its own frames, which a program can read off.
    "recursion": Leaf(
        "sys.getrecursionlimit",
        "{e}() - 1000",
        ("sys.setrecursionlimit(1000 + {v})",),
        "sys.setrecursionlimit(1000)",
    ),
    "decimals": Leaf("decimal.getcontext()", "{e}.prec", ("decimal.getcontext().prec = {v} + 2",)),
    "working folder": Leaf("os.getcwd", "len(os.path.basename({e}()))", ("os.chdir(folder('cwd' + 'x' * {v}))",)),
    "code of a function": Leaf(
        "NUMBER{n}",
        "{e}()",
        ("NUMBER{n}.__code__ = (lambda v: v + 1).__code__", "NUMBER{n}.__defaults__ = ({v},)"),
        "def NUMBER{n}(v=0): return v",
    ),
    "global of a library": Leaf("math", "int({e}.pi)", ("math.pi = {v}",)),
    "function of a library": Leaf("math", "{e}.floor(0.5)", ("math.floor = lambda x: {v}",)),
    "function of torch": Leaf("torch", "int({e}.relu(torch.tensor(-1.0)))", ("torch.relu = lambda x: x * 0 + {v}",)),
    "method of a library": Leaf(
        "[Fraction(1, 2)]", "int({e}[0].limit_denominator(3))", ("Fraction.limit_denominator = lambda self, d: {v}",)
    ),
    "queue": Leaf("filled_queue()", "{e}.queue[0]", ("{e}.queue[0] = {v}", "{e}.get(); {e}.put({v})")),
    "lock": Leaf("threading.Lock()", "int({e}.locked())", ("{e}.acquire(blocking=False)",)),
    "event": Leaf("threading.Event()", "int({e}.is_set())", ("{e}.set()",)),
    "shared number": Leaf("multiprocessing.Value('i', 0)", "{e}.value", ("{e}.value = {v}",)),
    "shared array": Leaf("multiprocessing.Array('i', N)", "{e}[i]", ("{e}[{j}] = {v}",)),
    "module's dict": Leaf("vars(sys.modules['opts'])", "{e}.get('LEVEL', 0)", ("sys.modules['opts'].LEVEL = {v}",)),
    "module put in place": Leaf(
        "sys.modules", "getattr({e}.get('late'), 'x', 0)", ("sys.modules['late'] = SimpleNamespace(x={v})",)
    ),
    "dates of the process": Leaf("time.tzname", "len(time.tzname[0])", ("os.environ['TZ'] = 'ABCD{v}'; time.tzset()",)),
    "hash of a class": Leaf(
        "Key()", "KEYED{n}.get({e}, 0)", ("KEYED{n}.clear(); KEYED{n}[Key()] = {v}",), "KEYED{n} = {{}}"
    ),
}
