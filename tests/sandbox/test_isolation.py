"""A trial may do to the user's files what it likes, and they stay as they were."""

from __future__ import annotations

import builtins
import glob
import importlib.util
import inspect
import io
import os
import pathlib
import pickle
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from overdrive.core import scratch as scratches
from overdrive.sandbox import overlay
from overdrive.sandbox.isolation import isolate
from overdrive.sandbox.landlock import allow_writes_only
from overdrive.sandbox.mirror import Mirror
from overdrive.sandbox.redirected_files import Redirection

SOURCES = Path(__file__).parents[2] / "src"
TIERS = ("overlay", "redirect")
HAS_TORCH = importlib.util.find_spec("torch") is not None

TRIAL_SCRIPT = """
import os, sys
from pathlib import Path
from overdrive.sandbox.isolation import isolate, redirect_torch
view = isolate(Path(os.environ["SCRATCH"]), [Path(os.environ["KEEP"])], for_good="lifted" not in sys.argv)
print(view.kind, "-", view.detail)
if "torch" in sys.argv:
    import torch
    redirect_torch()
exec(compile(os.environ["SCRIPT"], "train.py", "exec"), {"__name__": "__main__", "TIER": view.kind, "view": view})
print("script ended")
"""


@dataclass(frozen=True)
class Person:
    """Who runs the script, and with which interpreter."""

    name: str
    python: str
    uid: int
    gid: int


@dataclass(frozen=True)
class Desk:
    """A user's files, and where trials may write."""

    person: Person
    project: Path
    home: Path
    kept: Path
    scratch: Path

    def run(self, tier: str, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `script` in the project, isolated."""
        settings = {
            "HOME": self.home,
            "KEEP": self.kept,
            "OVERDRIVE_ISOLATION": tier,
            "PATH": os.environ["PATH"],
            "PYTHONPATH": SOURCES,
            "SCRATCH": self.scratch,
            "SCRIPT": textwrap.dedent(script),
        }
        identity = {"user": self.person.uid, "group": self.person.gid, "extra_groups": []}
        return subprocess.run(
            [self.person.python, "-c", TRIAL_SCRIPT, *words],
            env={name: str(value) for name, value in settings.items()},
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=120,
            **(identity if os.geteuid() == 0 else {}),  # type: ignore[call-overload]
        )

    def files(self) -> dict[str, object]:
        """Everything that can be told about the user's files, except when they were last read."""
        found: dict[str, object] = {}
        for top in (self.project, self.home):
            for path in (top, *sorted(top.rglob("*"))):
                status = path.lstat()
                content: object = None
                if path.is_symlink():
                    content = os.readlink(path)
                elif stat.S_ISREG(status.st_mode):
                    content = path.read_bytes()
                found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_ino, content)
        return found


def people() -> dict[str, Person | str]:
    """Who can run the tests; or why not."""
    me = Person("this user", sys.executable, os.geteuid(), os.getegid())
    return {"this user": me, "ordinary user": ordinary_user()}


def ordinary_user() -> Person | str:
    if os.geteuid() != 0:
        return "only root can become another user; 'this user' is an ordinary one already"
    user = next((user for user in pwd.getpwall() if 1000 <= user.pw_uid < 60000), None)
    if user is None:
        return "this machine has no ordinary user"
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run(
                [python, "-c", "import overdrive.sandbox.isolation"],
                env={"PYTHONPATH": str(SOURCES)},
                user=user.pw_uid, group=user.pw_gid, extra_groups=[], cwd="/",
                check=True, capture_output=True,
            )  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            continue
        return Person(user.pw_name, python, user.pw_uid, user.pw_gid)
    return f"{user.pw_name} can read neither this interpreter nor another that runs overdrive"


PEOPLE = people()


@pytest.fixture(params=["this user", "ordinary user"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    person = PEOPLE[request.param]
    if isinstance(person, str):
        pytest.skip(person)
    # Not pytest's own folder, which other users can't enter. And not in the tree of the scratch
    # folder, so that the upper layers are on disk; another test has them in memory.
    top = Path(tempfile.mkdtemp(prefix="overdrive-desk-", dir="/var/tmp"))
    scratch = Path(tempfile.mkdtemp(prefix="overdrive-scratch-", dir="/tmp"))
    made = Desk(person, top / "project", top / "home", top / "kept", scratch)
    for folder in (made.project / "runs" / "old", made.home, made.kept):
        folder.mkdir(parents=True)
    (made.project / "model.pt").write_text("weights of a week")
    (made.project / "log.txt").write_text("first line\n")
    (made.project / "stale.txt").write_text("stale")
    (made.project / "runs" / "old" / "events").write_text("events")
    (made.project / "latest").symlink_to("runs/old")
    (made.home / ".trainrc").write_text("settings")
    for path in (top, *top.rglob("*"), scratch):
        os.chown(path, person.uid, person.gid, follow_symlinks=False)
    yield made
    shutil.rmtree(top)
    scratches.discard(scratch)


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest, desk: Desk) -> str:
    if request.param == "overlay":
        attempt = desk.run("overlay", "pass")
        if "OverlayUnavailable" in attempt.stderr:
            pytest.skip(f"no overlays for {desk.person.name}: {attempt.stderr.splitlines()[-1]}")
        scratches.discard(desk.scratch)
        desk.scratch.mkdir()
        os.chown(desk.scratch, desk.person.uid, desk.person.gid)
    return str(request.param)


SCRIPTS = {
    "overwrites a file": """
        with open("model.pt", "w") as file:
            file.write("new")
        assert open("model.pt").read() == "new"
        """,
    "appends to a log": """
        for line in ("second\\n", "third\\n"):
            with open("log.txt", "a") as file:
                file.write(line)
        assert open("log.txt").read() == "first line\\nsecond\\nthird\\n"
        """,
    "changes bytes in place": """
        with open("model.pt", "r+b") as file:
            file.seek(3)
            file.write(b"XYZ")
        assert open("model.pt", "rb").read() == b"weiXYZs of a week"
        """,
    "makes a new file only once": """
        open("new.txt", "x").close()
        for name in ("new.txt", "log.txt"):
            try:
                open(name, "x")
            except FileExistsError:
                continue
            raise AssertionError(name)
        """,
    "writes compressed": """
        import bz2, gzip, lzma
        for library, name in ((bz2, "model.pt"), (gzip, "new.gz"), (lzma, "new.xz")):
            with library.open(name, "wb") as file:
                file.write(b"packed")
            assert library.open(name).read() == b"packed"
        """,
    "deletes a file": """
        import os, pathlib
        os.remove("stale.txt")
        assert not os.path.exists("stale.txt") and "stale.txt" not in os.listdir()
        pathlib.Path("log.txt").unlink()
        try:
            open("log.txt")
        except FileNotFoundError as error:
            assert error.filename == "log.txt", error.filename
        else:
            raise AssertionError
        """,
    "renames a new file over an old one": """
        import os
        with open("model.pt.part", "w") as file:
            file.write("new")
        os.replace("model.pt.part", "model.pt")
        assert open("model.pt").read() == "new" and not os.path.exists("model.pt.part")
        os.rename("stale.txt", "staler.txt")
        assert sorted(os.listdir()) == ["latest", "log.txt", "model.pt", "runs", "staler.txt"]
        assert open("staler.txt").read() == "stale"
        """,
    "renames a folder": """
        import os, pathlib
        pathlib.Path("runs").rename("former")
        assert open("former/old/events").read() == "events"
        assert not os.path.exists("runs")
        os.makedirs("runs/old")
        assert os.listdir("runs/old") == []
        """,
    "makes folders": """
        import os
        from pathlib import Path
        os.makedirs("a/b/c")
        Path("a/b/c/file.txt").write_text("x")
        assert [str(path) for path in Path("a").rglob("*.txt")] == ["a/b/c/file.txt"]
        try:
            os.mkdir("runs")
        except FileExistsError:
            pass
        os.makedirs("runs/new", exist_ok=True)
        assert sorted(entry.name for entry in os.scandir("runs") if entry.is_dir()) == ["new", "old"]
        assert sorted(top for top, _, _ in os.walk("runs")) == ["runs", "runs/new", "runs/old"]
        """,
    "removes a folder and makes it anew": """
        import os, shutil
        shutil.rmtree("runs")
        assert not os.path.exists("runs") and not os.path.exists("latest/events")
        os.makedirs("runs/old")
        assert os.listdir("runs/old") == []
        open("latest/events", "w").write("new")
        assert open("runs/old/events").read() == "new"
        """,
    "writes by absolute path, home and links": """
        import os
        from pathlib import Path
        Path.cwd().joinpath("model.pt").write_text("a")
        assert Path("model.pt").read_text() == "a"
        rc = os.path.expanduser("~/.trainrc")
        open(rc, "a").write("+")
        assert open(rc).read() == "settings+"
        Path("~/cache/deep").expanduser().mkdir(parents=True)
        Path("latest/events").write_text("through a link")
        assert Path("runs/old/events").read_text() == "through a link"
        os.remove("latest")
        os.symlink("model.pt", "latest")
        assert open("latest").read() == "a" and os.readlink("latest") == "model.pt"
        os.link("log.txt", "log2.txt")
        open("log2.txt", "a").write("more")
        assert open("log.txt").read() == "first line\\nmore"
        os.chdir("runs")
        open("../log.txt", "w").write("b")
        os.mkdir("mine"); os.chdir("mine")
        open("here", "w").write("c")
        assert os.getcwd().endswith("project/runs/mine") and open("../mine/here").read() == "c"
        """,
    "changes times, permissions and lengths": """
        import os
        os.utime("model.pt", (1, 1)); os.chmod("model.pt", 0o600); os.truncate("log.txt", 5)
        assert os.stat("model.pt").st_mtime == 1 and os.path.getsize("log.txt") == 5
        assert os.stat("model.pt").st_mode & 0o777 == 0o600
        """,
    "copies with shutil": """
        import os, shutil
        shutil.copytree("runs", "copy"); shutil.copy2("model.pt", "copy/model.pt")
        shutil.copy2("copy/model.pt", "stale.txt"); shutil.move("copy", "moved")
        assert open("moved/model.pt").read() == open("stale.txt").read() == "weights of a week"
        assert sorted(os.listdir("moved")) == ["model.pt", "old"]
        """,
    "uses temporary files": """
        import os, tempfile
        with tempfile.NamedTemporaryFile(dir=".") as file, tempfile.TemporaryFile() as other:
            file.write(b"x"); other.write(b"y")
            assert os.path.exists(file.name)
        assert not os.path.exists(file.name)
        with tempfile.TemporaryDirectory(dir=".") as folder:
            open(os.path.join(folder, "x"), "w").close()
        assert not os.path.exists(folder)
        """,
    "logs and compresses": """
        import gzip, json, logging, zipfile
        logging.basicConfig(filename="log.txt"); logging.warning("hello")
        logging.shutdown()
        assert "hello" in open("log.txt").read()
        with gzip.open("x.gz", "wt") as file: json.dump({"a": 1}, file)
        assert json.load(gzip.open("x.gz", "rt")) == {"a": 1}
        with zipfile.ZipFile("x.zip", "w") as archive: archive.write("model.pt")
        assert zipfile.ZipFile("x.zip").namelist() == ["model.pt"]
        """,
    "works with processes and sockets": """
        import multiprocessing, os, socket, tempfile
        def work(queue):
            open("from-worker.txt", "w").write("w")
            os.remove("stale.txt")
            queue.put(open("model.pt").read())
        if __name__ == "__main__":
            open("model.pt", "w").write("new")
            fork = multiprocessing.get_context("fork")
            queue = fork.Queue()
            worker = fork.Process(target=work, args=(queue,))
            worker.start()
            assert queue.get(timeout=60) == "new"
            worker.join()
            assert open("from-worker.txt").read() == "w" and not os.path.exists("stale.txt")
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.map(len, ["abc"]) == [3]
            with fork.Manager() as manager:
                assert manager.list([1])[0] == 1
            server = socket.socket(socket.AF_UNIX)
            server.bind(os.path.join(tempfile.mkdtemp(prefix="pymp-"), "listener-12345678"))
        """,
    "lets another program write": """
        import os, subprocess
        ended = subprocess.run(["sh", "-c", "echo x > model.pt; cat model.pt; rm stale.txt"],
                               capture_output=True, text=True)
        expected = {"overlay": "x\\n", "redirect": "weights of a week"}[TIER]
        assert ended.stdout == expected, ended
        assert os.path.exists("stale.txt") == (TIER == "redirect")
        """,
    "goes past Python's usual functions": """
        import _io, posix
        for write in (lambda: _io.FileIO("model.pt", "w").write(b"x"), lambda: posix.unlink("log.txt"),
                      lambda: posix.mkdir("folder")):
            try:
                write()
            except PermissionError as error:
                assert TIER == "redirect" and "may not write to" in str(error)
            else:
                assert TIER == "overlay"
        """,
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.fault("files")
def test_the_script_works_and_the_files_stay_as_they_were(desk: Desk, tier: str, script: str) -> None:
    before = desk.files()
    ended = desk.run(tier, script)
    assert ended.stdout.startswith(tier), ended.stderr
    assert "script ended" in ended.stdout, ended.stderr
    assert desk.files() == before


@pytest.mark.fault("files")
def test_a_folder_that_is_a_link_to_somewhere_else_stays_as_it_was(desk: Desk, tier: str) -> None:
    (desk.home / "work").symlink_to(desk.project)
    before = desk.files()
    ended = replace(desk, project=desk.home / "work").run(
        tier,
        """
        import os
        link = os.path.expanduser("~/work")
        open(link + "/model.pt", "w").write("a"); open("log.txt", "a").write("b"); os.remove(link + "/stale.txt")
        assert open("model.pt").read() == "a" and open(link + "/log.txt").read() == "first line\\nb"
        assert not os.path.exists("stale.txt")
        os.remove(link); os.mkdir(link); open(link + "/new", "w").write("c")
        assert not os.path.exists("new") and open("model.pt").read() == "a"
        """,
    )
    assert "script ended" in ended.stdout, ended.stderr
    assert desk.files() == before


@pytest.mark.fault("files")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder in /")
@pytest.mark.parametrize("mounted", [False, True])
def test_a_project_in_a_top_folder_that_may_be_entered_and_not_listed(desk: Desk, tier: str, mounted: bool) -> None:
    """As /home is on many clusters (0711); there is perhaps a disk mounted in it."""
    top = Path(tempfile.mkdtemp(prefix="overdrive-unlisted-", dir="/"))
    (top / "disk").mkdir()
    if mounted and subprocess.run(["mount", "-t", "tmpfs", "tmpfs", top / "disk"], capture_output=True).returncode:
        shutil.rmtree(top)
        pytest.skip("nothing may be mounted here")
    try:
        project = shutil.copytree(desk.project, top / "group" / "project", symlinks=True)
        for folder in (top, top / "group"):
            folder.chmod(0o711)
        for path in (project, *project.rglob("*")):
            os.chown(path, desk.person.uid, desk.person.gid, follow_symlinks=False)
        moved = replace(desk, project=project)
        before = moved.files()
        for name in ("overwrites a file", "makes folders", "removes a folder and makes it anew"):
            ended = moved.run(tier, SCRIPTS[name])
            assert ended.stdout.startswith(tier) and "script ended" in ended.stdout, ended.stderr
            scratches.discard(desk.scratch)
            desk.scratch.mkdir()
            os.chown(desk.scratch, desk.person.uid, desk.person.gid)
        assert moved.files() == before
    finally:
        if mounted:
            subprocess.run(["umount", top / "disk"], check=True)
        shutil.rmtree(top)


@pytest.mark.fault("files")
def test_a_database_stays_as_it_was(desk: Desk, tier: str) -> None:
    prepare = "import sqlite3; c = sqlite3.connect('study.db'); c.execute('create table t (x)'); c.commit()"
    subprocess.run([sys.executable, "-c", prepare], cwd=desk.project, check=True)
    os.chown(desk.project / "study.db", desk.person.uid, desk.person.gid)
    before = desk.files()
    ended = desk.run(
        tier,
        """
        import sqlite3
        connection = sqlite3.connect("study.db")
        assert connection.execute("select * from t").fetchall() == []
        try:
            connection.execute("insert into t values (1)"); connection.commit()
            assert TIER == "overlay"
            assert connection.execute("select * from t").fetchall() == [(1,)]
        except sqlite3.OperationalError as error:
            assert TIER == "redirect", error
        """,
    )
    assert "script ended" in ended.stdout, ended.stderr
    assert desk.files() == before


def test_kept_folders_are_really_written(desk: Desk, tier: str) -> None:
    script = "import os; open(os.path.join(os.environ['KEEP'], 'compiled'), 'w').write('code')"
    ended = desk.run(tier, script)
    assert "script ended" in ended.stdout, ended.stderr
    assert (desk.kept / "compiled").read_text() == "code"


def test_scratch_within_the_project_works_too(desk: Desk, tier: str) -> None:
    """Then an overlay must keep what is written in memory."""
    scratch = desk.home / "a-long-name-that-makes-socket-paths-too-long" / ("x" * 40)
    scratch.mkdir(parents=True)
    for folder in (scratch, scratch.parent):
        os.chown(folder, desk.person.uid, desk.person.gid)
    inner = Desk(desk.person, desk.project, desk.home, desk.kept, scratch)
    for name in ("overwrites a file", "works with processes and sockets"):
        ended = inner.run(tier, SCRIPTS[name])
        assert "script ended" in ended.stdout, ended.stderr
        scratches.discard(scratch)
        scratch.mkdir()
        os.chown(scratch, desk.person.uid, desk.person.gid)
    assert (desk.project / "model.pt").read_text() == "weights of a week"
    assert sorted(os.listdir(desk.project)) == ["latest", "log.txt", "model.pt", "runs", "stale.txt"]


def test_nothing_is_left_when_scratch_is_discarded(desk: Desk, tier: str) -> None:
    ended = desk.run(
        tier,
        """
        import os, tempfile
        os.makedirs("closed/inner"); os.chmod("closed", 0)
        print("left:", tempfile.mkdtemp(prefix="overdrive-left-"))
        """,
    )
    left = ended.stdout.split("left: ")[1].split("\n")[0]
    scratches.discard(desk.scratch)
    assert not desk.scratch.exists()
    assert not Path(left).exists()


def test_sockets_of_running_services_answer(desk: Desk, tier: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as server:
        os.chmod(folder, 0o755)
        address = os.path.join(folder, "service")
        server.bind(address)
        os.chmod(address, 0o777)
        server.listen()
        ended = desk.run(tier, f"import socket; socket.socket(socket.AF_UNIX).connect({address!r})")
    assert "script ended" in ended.stdout, ended.stderr


def test_where_many_dead_sockets_lie_about_those_that_answer_are_put_back_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overlay, "MOST_ENDPOINTS", 1)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as server:
        for number in range(3):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(os.path.join(folder, f"dead{number}"))
        server.bind(os.path.join(folder, "service"))
        for name in ("dead8", "dead9"):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(os.path.join(folder, name))
        assert overlay._endpoints(folder) == [os.path.join(folder, "service")]


def test_files_of_others_are_left_to_redirection(desk: Desk) -> None:
    """An ordinary user's overlay can't copy them, so it steps aside before the script starts."""
    if os.geteuid() != 0 or desk.person.uid == 0:
        pytest.skip("takes root to make a file of another user, and an ordinary user to meet it")
    shared = desk.project / "shared.txt"
    shared.write_text("ours")
    shared.chmod(0o666)
    before = desk.files()
    ended = desk.run("", "open('shared.txt', 'a').write('!'); assert open('shared.txt').read() == 'ours!'")
    assert ended.stdout.startswith("redirect"), ended.stderr
    assert "shared.txt belongs to another user" in ended.stdout
    assert "script ended" in ended.stdout, ended.stderr
    assert desk.files() == before


TORCH_SCRIPTS = {
    "saves and loads": """
        import torch
        from pathlib import Path
        torch.save({"w": torch.arange(4)}, "model.pt")
        assert torch.load("model.pt")["w"].tolist() == [0, 1, 2, 3]
        torch.save(obj=[1], f=Path("runs/new.pt"))
        assert torch.load(Path("runs/new.pt"), mmap=True) == [1]
        """,
    "loads data in worker processes": """
        import torch
        from torch.utils.data import DataLoader
        for start in ("fork", "spawn"):
            loader = DataLoader(torch.arange(64.0), 8, num_workers=2, multiprocessing_context=start)
            assert sum(batch.sum().item() for batch in loader) == 2016
        """,
}


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("script", TORCH_SCRIPTS.values(), ids=TORCH_SCRIPTS)
@pytest.mark.fault("files")
def test_torch_works_and_the_files_stay_as_they_were(desk: Desk, tier: str, script: str) -> None:
    if desk.person.python != sys.executable:
        pytest.skip(f"{desk.person.name} can't read the interpreter that has torch")
    before = desk.files()
    ended = desk.run(tier, script, "torch")
    assert "script ended" in ended.stdout, ended.stderr
    assert desk.files() == before


LIFTED = """
    import os, threading
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # no such process can leave a namespace
    open("made.txt", "w").write("in the view")
    os.makedirs("out/deep")
    open("log.txt", "a").write("in the view")
    os.remove("stale.txt")
    lifted = view.lift()
    assert lifted is (TIER == "overlay")
    if lifted:
        assert open("log.txt").read() == "first line\\n" and os.path.exists("stale.txt")
        open("out/deep/after.txt", "w").write("for real")
        open("model.pt", "w").write("for real")
        try:
            os.wait()
        except ChildProcessError:
            pass
    """


def test_a_view_that_is_taken_away_leaves_the_real_files(desk: Desk, tier: str) -> None:
    before = desk.files()
    ended = desk.run(tier, LIFTED, "lifted")
    assert "script ended" in ended.stdout, ended.stderr
    if tier == "redirect":
        assert desk.files() == before
        return
    told = {name: desk.project / name for name in ("made.txt", "log.txt", "model.pt", "out/deep/after.txt")}
    assert {name: path.read_text() for name, path in told.items()} == {
        "made.txt": "in the view", "log.txt": "first line\n", "model.pt": "for real", "out/deep/after.txt": "for real",
    }  # fmt: skip
    assert told["made.txt"].stat().st_uid == desk.person.uid


def test_redirected_functions_are_no_methods_of_a_class_that_has_them(tmp_path: Path) -> None:
    """As those in C: `class Table: open = open`."""
    redirection = Redirection(Mirror(str(tmp_path), []))
    redirection.enter()
    try:
        kind: Any = type("Table", (), {"open": open, "size_of": os.stat, "names_in": os.listdir})
        table = kind()
        with table.open(__file__) as file:
            assert file.readline()
        assert table.size_of(__file__).st_size > 0 and Path(__file__).name in table.names_in(os.path.dirname(__file__))
        for function in (open, os.stat, os.listdir):
            assert pickle.loads(pickle.dumps(function)) is function
        assert inspect.signature(os.stat) == inspect.signature(os.stat.__wrapped__)  # type: ignore[attr-defined]
        assert os.stat in os.supports_follow_symlinks
    finally:
        redirection.exit()


def test_redirected_functions_are_all_put_back(tmp_path: Path) -> None:
    owners = (builtins, io, os, shutil, glob, pathlib)
    before = [dict(vars(owner)) for owner in owners]
    abilities = [set(names) for names in (os.supports_dir_fd, os.supports_follow_symlinks)]
    redirection = Redirection(Mirror(str(tmp_path), []))
    redirection.enter()
    assert os.stat is not before[2]["stat"] and open is not before[0]["open"]
    redirection.exit()
    for owner, names in zip(owners, before, strict=True):  # one of ours would be equal to the one that it stands for
        assert {name: id(each) for name, each in vars(owner).items()} == {name: id(names[name]) for name in names}
    assert [os.supports_dir_fd, os.supports_follow_symlinks] == abilities


def test_an_unknown_kind_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERDRIVE_ISOLATION", "magic")
    with pytest.raises(ValueError, match="'magic'; set it to 'overlay' or 'redirect'"):
        isolate(tmp_path, [])


def test_where_namespaces_are_refused_writes_are_redirected(desk: Desk) -> None:
    """Seen by taking namespaces away, as container runtimes do."""
    refusing = TRIAL_SCRIPT.replace(
        "view = isolate",
        "from overdrive.sandbox import overlay\n"
        "def refuse(): raise PermissionError(1, 'unshare was refused')\n"
        "overlay.new_namespace = refuse\n"
        "view = isolate",
    )
    environment = {
        "HOME": str(desk.home), "KEEP": str(desk.kept), "PYTHONPATH": str(SOURCES),
        "SCRATCH": str(desk.scratch), "SCRIPT": "",
    }  # fmt: skip
    if desk.person.uid != os.geteuid():
        pytest.skip("the same for everyone")
    ended = subprocess.run(
        [sys.executable, "-c", refusing], env=environment, cwd=desk.project, capture_output=True, text=True
    )
    assert ended.stdout.startswith("redirect"), ended.stderr
    assert "unshare was refused" in ended.stdout


MOVES = """
import os
open("new", "w").write("n"); os.replace("new", "runs/old/events")
assert open("runs/old/events").read() == "n" and not os.path.exists("new")
os.replace("model.pt", "runs/model.pt"); os.replace("runs/model.pt", "model.pt")
assert open("model.pt").read() == "weights of a week" and not os.path.exists("runs/model.pt")
os.makedirs("made/deep"); open("made/deep/file", "w").write("f"); os.symlink("file", "made/deep/link")
os.rename("made", "runs/made")
assert open("runs/made/deep/link").read() == "f" and not os.path.exists("made")
"""


def test_files_move_into_other_folders_where_landlock_refuses_that(desk: Desk) -> None:
    """Landlock before Linux 5.19, as Ubuntu 22.04 has it, refuses it for all, as others do for who does not ask."""
    if desk.person.uid != os.geteuid():
        pytest.skip("the same for everyone")
    before = desk.files()
    asking_less = "from overdrive.sandbox import landlock\nlandlock.REFER = 0\nview = isolate"
    first = TRIAL_SCRIPT.replace("view = isolate", asking_less)
    environment = {
        "HOME": str(desk.home), "KEEP": str(desk.kept), "PYTHONPATH": str(SOURCES), "OVERDRIVE_ISOLATION": "redirect",
        "SCRATCH": str(desk.scratch), "SCRIPT": MOVES,
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", first], env=environment, cwd=desk.project, capture_output=True, text=True
    )
    assert "script ended" in ended.stdout, ended.stderr
    assert desk.files() == before


def test_landlock_refuses_paths_that_are_not_listed(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            (tmp_path / "free").mkdir()
            if not allow_writes_only([str(tmp_path / "free")]):
                status = 2
            else:
                (tmp_path / "free" / "file").write_text("x")
                (tmp_path / "file").write_text("x")
        except PermissionError:
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 2:
        pytest.skip("this kernel has no Landlock")
    assert status == 0
    assert not (tmp_path / "file").exists()


def test_a_folder_that_goes_while_a_trial_s_files_are_removed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of the program's that was killed may be slow to die, and clears up as it does."""
    chmod = os.chmod

    def goes(path: str, mode: int) -> None:
        os.rmdir(path)
        chmod(path, mode)

    (tmp_path / "trial" / "temporary").mkdir(parents=True)
    monkeypatch.setattr(os, "chmod", goes)
    scratches.discard(tmp_path / "trial")
    assert not (tmp_path / "trial").exists()
