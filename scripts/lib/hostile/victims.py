"""What is attacked: servers and clients of victim.c, with the library or without, as any user."""

import os
import resource
import select
import shutil
import signal
import subprocess
import time

import common
from common import Failure
from . import kernel

HERE = os.path.dirname(os.path.abspath(__file__))
# Users without a name, and the real nobody.
ALICE, BOB, MALLORY, NOBODY = 4711, 4712, 4713, 65534
# What a plain client waits for at worst, in a machine that is busy; nothing here may come near.
WORST_US = 1_000_000
FNV = 0xcbf29ce484222325


class Skip(Exception):
    """What a test needs is not here: what that is."""


class Place:
    """Where all users may read and execute what is run."""

    def __init__(self, lib, fault_lib):
        self.dir = common.workplace("sluice-hostile-")
        self.victim = f"{self.dir}/victim"
        common.finished(["cc", "-O2", "-g", "-pthread", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", self.victim,
                         f"{HERE}/victim.c"], 60)
        self.libs = {}
        for name, path in (("new", lib), ("old", fault_lib)):
            if path and os.path.exists(path):
                os.makedirs(f"{self.dir}/{name}")
                self.libs[name] = shutil.copy(path, f"{self.dir}/{name}/libsluice.so")

    def environment(self, library, **settings):
        """`library`: None is without one; `old` takes the kernel for one before Linux 6.16."""
        if library is None:
            return common.environment(False)
        if library == "old":
            settings["SLUICE_FAULT"] = "old-kernel"
        return common.environment(True, settings, lib=self.libs[library])


class Victim:
    """A program of victim.c."""

    def __init__(self, place, words, library="new", uid=None, ids=None, prepare=None, **settings):
        """`ids`: the real and the effective user that it becomes by itself; `prepare()` is called in the child, as root."""
        settings = {"SLUICE_UPGRADE": "eager", **settings}
        self.errors = f"{place.dir}/errors-{time.monotonic_ns()}"
        env = place.environment(library, **settings)
        if ids:
            env["VICTIM_IDS"] = " ".join(map(str, ids))
        with open(self.errors, "wb") as errors:
            self.child = start([place.victim, *map(str, words)], env, errors, uid, prepare)
        os.set_blocking(self.child.stdout.fileno(), False)
        self.rest, self.uid, self.lib = b"", uid, library
        self.pid = self.child.pid

    def line(self, limit=10):
        """Its next line, as words."""
        deadline = time.monotonic() + limit * common.SLOW
        while b"\n" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.child.stdout], [], [], left)[0]:
                raise common.Hang(f"victim (pid {self.pid}) says nothing")
            data = self.child.stdout.read()
            if not data:
                raise Failure(f"victim (pid {self.pid}) has ended: {self.log()[-300:]}")
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode().split()

    def say(self, line=""):
        self.child.stdin.write(f"{line}\n".encode())
        self.child.stdin.flush()

    def round(self, limit=10):
        """(bytes, hash, worst answer in microseconds), once a round is over."""
        words = self.line(limit)
        if words[0] != "round":
            raise Failure(f"a client got wrong bytes: {' '.join(words)}")
        return int(words[1]), int(words[2], 16), int(words[3])

    def log(self):
        with open(self.errors, errors="replace") as f:
            return f.read()

    def end(self, sig=signal.SIGTERM, limit=5):
        """By a signal, in time: how long it took."""
        if self.child.returncode is not None:
            return 0
        begin = time.monotonic()
        common._signal(self.pid, sig)
        try:
            common.wait(self.child, limit)
        except common.Hang as e:
            traces = common.backtraces([self.pid])
            common._signal(self.pid, signal.SIGKILL)
            raise Failure(f"{signal.Signals(sig).name} does not end the victim: {e}\n{traces}")
        finally:
            for pipe in (self.child.stdin, self.child.stdout):
                pipe.close()
        status = self.child.returncode
        if status not in (0, -sig):
            raise Failure(f"a victim ended with status {status}: {self.log()[-300:]}")
        return time.monotonic() - begin


def start(words, env, errors, uid, prepare):
    """As common.start; and what has to be done before the program begins."""
    runner = os.getpid()

    def before_exec():
        # What programs have where nobody has raised it.
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        if prepare:
            prepare()
        if uid is not None:
            kernel.become(uid)
        kernel.call("prctl", kernel.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() not in (runner, 0):
            os._exit(127)

    child = subprocess.Popen(words, env=env, preexec_fn=before_exec, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    child.usage = None
    common._children[child.pid] = child
    return child


class Server(Victim):
    def __init__(self, place, mode="threads", port=0, **kw):
        super().__init__(place, ["server", mode, port], **kw)
        self.port = int(self.line()[1])

    def dial(self, port):
        """Becomes the client of another one: (own port, inode)."""
        self.say(f"dial {port}")
        words = self.line()
        return int(words[1]), int(words[2])

    def go(self):
        self.say("go")

    def probe(self):
        """{call: (calls, mean, worst)} in microseconds, since the last one."""
        self.say("probe")
        words = self.line()
        return {words[i]: (int(words[i + 1]), float(words[i + 2]), int(words[i + 3])) for i in (1, 5, 9)}

    def seen(self):
        """{the client's port: (bytes, hash)}"""
        self.say("seen")
        out = {}
        while (words := self.line())[0] == "conn":
            out[int(words[1])] = (int(words[2]), int(words[3], 16))
        return out

    def connection(self, port):
        """What `sluice stat` says of the connection with this client's port."""
        return stat(self.pid, peer=port)


class Client(Victim):
    """Rounds of so many messages of that length."""

    def __init__(self, place, server_port, count=20, length=3000, pause_ms=1, **kw):
        super().__init__(place, ["client", server_port, count, length, pause_ms], **kw)
        _, port, inode = self.line()
        self.port, self.inode = int(port), int(inode)

    def go(self):
        self.say()

    def rounds(self, n=1):
        worst = 0
        for _ in range(n):
            self.go()
            *sent, took = self.round()
            worst = max(worst, took)
        return (*sent, worst)

    def connection(self):
        return stat(self.pid, local=self.port)

    def end(self, sig=signal.SIGTERM, limit=5):
        return super().end(sig, limit)


def stat(pid, peer=None, local=None):
    for c in common.stat(pid):
        if peer is not None and c["peer"].endswith(f":{peer}") or local is not None and c["local"].endswith(f":{local}"):
            return c
    raise Failure(f"`sluice stat` does not show the connection of port {peer or local} in {pid}")


def by_link(connection):
    """Bytes that went over a link, both ways."""
    return sum(connection[f"{way}_{path}"] for way in ("tx", "rx") for path in ("direct", "indirect"))


def must_be_on_tcp(connection, *reasons):
    """With one of these reasons, if any are given."""
    if by_link(connection) or connection["upgrades"]:
        raise Failure(f"accelerated with an impostor about: {connection}")
    if reasons and connection["reason"] not in reasons:
        raise Failure(f"on TCP for {connection['reason']}, not for {' or '.join(reasons)}")


def must_be_linked(connection):
    if not by_link(connection):
        raise Failure(f"not accelerated: {connection['reason']}")


def must_be_whole(server, client, sent):
    """What the client says to have sent has come to the server, as it was."""
    there = server.seen().get(client.port)
    if there != sent[:2]:
        raise Failure(f"the server has {there}, the client has sent {sent[:2]}")
