"""What scripts/users.py knows of a program, and one run of it: plain, or with the library at all
ends."""

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time

import apps
import common
from common import Failure
from programs.run import Run, sha256

CACHE = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
VENV = os.path.join(CACHE, "sluice-users")
HOST = apps.HOST
USES = []


class Use:
    """What is tried of a program. `needs`: Debian's packages, each after a program or a file that
    it brings ("redis-server:redis", "/usr/lib/x:y"); `wheels`: packages of PyPI, for `python` of
    the run; `root`: only root can run it. `least`: less than this share of its bytes by link is a
    failure. It is four fifths of the least that was measured, on a busy machine too, and 0 for what
    stays on TCP, as docs/limitations.md says."""

    def __init__(self, act, title, what, needs, wheels, least, root):
        self.act, self.name = act, act.__name__
        self.title, self.what, self.needs, self.wheels = title, what, needs, wheels
        self.least, self.root = least, root

    def lacks(self):
        """Says why it cannot run here, or gives "". Brings what PyPI has for it."""
        packages = [p for tool, p in (need.split(":") for need in self.needs) if not there(tool)]
        if packages:
            return f"not installed: {' '.join(packages)}"
        if self.root and os.geteuid() != 0:
            return "only root can run it"
        try:
            bring(self.wheels)
        except (Failure, OSError) as e:
            common.end_trees()
            return f"not installed: {' '.join(self.wheels)}: {str(e).splitlines()[-1]}"
        return ""


def there(tool):
    return os.path.exists(tool) if tool.startswith("/") else shutil.which(tool) is not None


def bring(wheels):
    """Installs those packages of PyPI that are missing, in a virtual environment of their own."""
    if not wheels:
        return
    os.makedirs(VENV, exist_ok=True)
    with open(os.path.join(VENV, "installed"), "a+") as done:
        # Another run may install at the same time.
        fcntl.flock(done, fcntl.LOCK_EX)
        done.seek(0)
        have = done.read().split()
        pip = os.path.join(VENV, "bin", "pip")
        if not os.path.exists(pip):
            common.finished([sys.executable, "-m", "venv", VENV], 120)
        for wheel in wheels:
            if wheel not in have:
                common.finished([pip, "install", "-q", "--no-input", wheel], 1800)
                done.write(wheel + "\n")
                done.flush()


def use(title, what, needs=(), wheels=(), least=0.0, root=False):
    """Registers a function of a `UseRun` as what is tried of the program `title`; `what` says it in
    a few words."""
    def register(act):
        USES.append(Use(act, title, what, needs, wheels, least, root))
        return act
    return register


class UseRun(Run):
    """One run: its results, how long its timed part took, what the libraries counted."""

    def __init__(self, mode, lib):
        fixed = argparse.Namespace(lib=lib, size=1.0, seed=1, hosts=False, expect="tcp")
        super().__init__(mode, fixed)
        self.results = []
        self.seconds = 0.0
        self.counters = common.Counters()
        self.python = os.path.join(VENV, "bin", "python")

    # --- programs ---

    def start(self, cmd, role, env=None, **kw):
        """Starts a program. Its `stdin` and `stdout` may be paths of files."""
        with contextlib.ExitStack() as files:
            for name, how in (("stdin", "rb"), ("stdout", "wb")):
                if isinstance(kw.get(name), str):
                    kw[name] = files.enter_context(open(kw[name], how))
            return common.start(cmd, env={**self.env[role], **(env or {})}, **kw)

    def server(self, *cmd, port=None, sig=signal.SIGTERM, limit=30, log=os.devnull, **kw):
        """Starts a server that writes to the file `log`, and waits until it listens on `port`. When
        the client is done, `sig` ends it; with None it ends by itself. How it ends is a result."""
        child = self.start(cmd, "server", stdout=log, stderr=subprocess.STDOUT, **kw)
        name = os.path.basename(cmd[0])

        def stop():
            if sig is not None:
                os.kill(child.pid, sig)
            self.result((name, common.wait(child, 20)))
        self.serve(child, stop)
        if port:
            common.wait_listening(port, child, limit=limit)

    def says(self, path, text="", limit=30):
        """Waits until the file is there, and until `text` stands in it."""
        def holds():
            with contextlib.suppress(FileNotFoundError), open(path, errors="replace") as f:
                return text in f.read()
            return False
        common.until(holds, f"no {text!r} in the file {os.path.basename(path)}", limit)

    def client(self, *cmd, limit=90, data=None, **kw):
        """Runs a client to its good end: what it prints, as bytes if `data` is bytes."""
        text = not isinstance(data, bytes)
        kw.setdefault("stdin", subprocess.PIPE if data is not None else subprocess.DEVNULL)
        kw.setdefault("stdout", subprocess.PIPE)
        child = self.start(cmd, "client", stderr=subprocess.PIPE, text=text, **kw)
        out, err = common.communicate(child, limit, data)
        if child.returncode != 0:
            # Some say what went wrong where their results are.
            said = err or out or ""
            said = said if text else said.decode(errors="replace")
            name = os.path.basename(cmd[0])
            raise Failure(f"{name}: status {child.returncode}: {said.strip()[-600:]}")
        return out

    def background(self, *cmd, stdout=subprocess.DEVNULL, **kw):
        """Starts a program that ends by itself: `ended` waits for it."""
        return self.start(cmd, "client", stdout=stdout, stderr=subprocess.DEVNULL, **kw)

    def ended(self, child, limit=90):
        if common.wait(child, limit) != 0:
            raise Failure(f"{os.path.basename(child.args[0])}: status {child.returncode}")

    def asked(self, *cmd, got=None, **kw):
        """Runs a client, timed. The result is what it prints, or the file `got` that it writes."""
        with self.timed():
            out = self.client(*cmd, **kw)
        self.result(sha256(got) if got else out)

    def both_ends(self, port, listener, sender, stdin=subprocess.DEVNULL,
                  stdout=subprocess.DEVNULL, env=None):
        """Runs a program that serves one client at `port` and ends, its output to `stdout`, and the
        client, with that `stdin`, timed until both are done: what the client prints."""
        server = self.background(*listener, stdout=stdout, env=env)
        common.wait_listening(port, server)
        with self.timed():
            out = self.client(*sender, stdin=stdin, env=env)
            self.ended(server)
        return out

    def prepare(self, *cmd, limit=120, env=None, **kw):
        """Runs a plain command that only makes ready what the program needs."""
        common.finished(cmd, limit, {**common.environment(False), **(env or {})}, **kw)

    # --- files ---

    def write(self, name, text):
        """Writes a file of the program's, of a text or of lines: its path."""
        path = os.path.join(self.dir, name)
        with open(path, "w") as f:
            f.write(text if isinstance(text, str) else "".join(f"{line}\n" for line in text))
        return path

    def file(self, name, size):
        """Makes a file of so many bytes, the same in each run: its path."""
        path = os.path.join(self.dir, name)
        apps.random_file(path, size, size)
        return path

    def folder(self, name, user=None):
        """Makes a directory, for a server that root starts and that runs as `user`: its path."""
        path = os.path.join(self.dir, name)
        os.makedirs(path)
        if user and os.geteuid() == 0:
            shutil.chown(path, user)
        return path

    # --- what comes out ---

    @contextlib.contextmanager
    def timed(self):
        """What a user waits for; servers are up by then. Several parts add up."""
        begin = time.monotonic()
        yield
        self.seconds += time.monotonic() - begin

    def result(self, what):
        """Text, bytes or numbers that must be the same plain and preloaded."""
        self.results.append(what)

    def judge(self, tcp):
        del tcp
        if not self.seconds:
            raise Failure("nothing was timed")
        if self.mode == "plain":
            return
        for path in self.reports.values():
            for fields in common.report_lines(path):
                self.counters.add(fields)
        if not self.counters.connections:
            raise Failure("no library reported a connection")
