"""Pairs of ends of checksummed streams, benches/soak.c: started, driven and judged; and what a process holds."""

import os
import queue
import re
import signal
import struct
import subprocess
import threading
import time
from collections import Counter, namedtuple

import common
from common import Failure, Hang

WAITING = ("lt", "et", "threads")
STYLES = 4
HANG = 30       # seconds without news from a program that owes some
_CONN = re.compile(r"conn seed=(\d+) end=(\w+) rx=(\d+) tx=(\d+)$")

# Of benches/stream.h.
ENTRY = struct.Struct("=4Q")
Entry = namedtuple("Entry", "rx tx trying")
NEVER = Entry(0, 0, 0)

SOAK = os.path.join(common.BIN, "soak")


def check_cut(seed, end, rx, tx, victim):
    """A survivor's connection whose other end was killed: `victim` is what that one's ledger says of it. Nothing was lost
    before a clean end, nothing came that was not sent, and nothing was read that this end has not sent."""
    if end not in ("eof", "reset"):
        raise Failure(f"connection {seed}: an endless stream ended {end!r}")
    said = f"connection {seed}: ended {end} after {rx} bytes, having sent {tx}; the killed end: {victim}"
    if rx > victim.trying or victim.rx > tx or (end == "eof" and rx < victim.tx):
        raise Failure(said)


class Stage:
    """Where pairs meet. `where`: which host a role is in, {} for this one."""

    def __init__(self, place, plain, address="127.0.0.1", where=None):
        self.dir, self.plain, self.address, self.where = place, plain, address, where or {}
        self.number = iter(range(1 << 30))
        self.next_seed = 0
        self.logs = None        # a directory for what the library says

    def seeds(self, count):
        """The first of `count` seeds never used before in this run."""
        first = self.next_seed
        self.next_seed += count
        return first

    def exchange(self, server, client, count, c2s, s2c, style):
        """One command to its end, checked at both ends."""
        seed = self.seeds(count)
        client.go(server.port, seed, count, c2s, s2c, style)
        self.complete(server, client, seed, count, (c2s, s2c), HANG + (c2s + s2c) * count / 20e6, f", style {style}")

    def complete(self, server, client, seed, count, lengths, limit, words=""):
        """The end of a command, checked at both ends."""
        c2s, s2c = lengths
        client.wait_for("done", limit)
        server.settle()
        whole(client.take_ended(), {seed + i: (s2c, c2s) for i in range(count)}, f"client{words}")
        whole(server.take_ended(), {seed + i: (c2s, s2c) for i in range(count)}, f"server{words}")

    def warm(self, server, client, size=1):
        """Streams long enough to be accelerated: what the library makes once is there then."""
        length = int(size * (12 << 20))
        for _ in range(2):
            self.exchange(server, client, 2, length, length, 0)


class Peer:
    """One end: benches/soak.c, its lines as they come."""

    def __init__(self, stage, role, waiting, extra=None, lib=common.LIB):
        self.role = role
        name = f"{role}-{next(stage.number)}"
        self.report, self.ledger = common.fresh_report(f"{stage.dir}/report-{name}"), f"{stage.dir}/ledger-{name}"
        errors, self.log = subprocess.STDOUT, None
        if stage.logs:
            os.makedirs(stage.logs, exist_ok=True)
            self.log = f"{stage.logs}/{name}"
            errors, extra = open(self.log, "w"), {"SLUICE_LOG": "debug"} | (extra or {})
        self.child = common.start([SOAK, role, stage.address, waiting, self.ledger],
                                  env=common.environment(not stage.plain, extra, self.report, lib, stage.where.get(role)),
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.ended = []         # (seed, end, rx, tx) of finished connections
        self.port = int(self.wait_for("port").split()[1]) if role == "server" else None

    def _read(self):
        for line in self.child.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def next_line(self, limit=HANG):
        """A line that is no `conn` line; those are kept. None at the end of the program."""
        limit *= common.SLOW
        deadline = time.monotonic() + limit
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise Hang(f"{self.role} (pid {self.child.pid}): no news for {limit:.0f} s")
            hit = _CONN.match(line or "")
            if not hit:
                return line
            self.ended.append((int(hit.group(1)), hit.group(2), int(hit.group(3)), int(hit.group(4))))

    def wait_for(self, word, limit=HANG):
        line = self.next_line(limit)
        if line is None:
            status = common.wait(self.child, 5)
            raise Failure(f"{self.role} ended with status {status} instead of saying {word!r}{common.crash(self.child.pid, SOAK)}")
        if line.split()[0] != word:
            raise Failure(f"{self.role}: {line}")
        return line

    def say(self, text):
        try:
            self.child.stdin.write(text + "\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            # Its last words are waiting.
            line = self.next_line()
            raise Failure(f"{self.role} is gone: {line or f'status {common.wait(self.child, 5)}'}")

    def go(self, port, seed, count, c2s, s2c, style, hold=0):
        self.say(f"go {port} {seed} {count} {c2s} {s2c} {style} {hold}")
        self.wait_for("started")

    def live(self):
        """Connections that this server has; its `conn` lines are in by then."""
        self.say("")
        return int(self.wait_for("live").split()[1])

    def settle(self, limit=HANG):
        """Until the server has no connection left."""
        deadline = time.monotonic() + limit * common.SLOW
        while n := self.live():
            if time.monotonic() > deadline:
                raise Hang(f"server (pid {self.child.pid}): {n} connections do not end")
            time.sleep(0.002)

    def take_ended(self):
        out, self.ended = self.ended, []
        return out

    def stop(self):
        """To its regular end."""
        self.child.stdin.close()
        status = common.wait(self.child, HANG)
        self.child.stdout.close()
        if status != 0:
            raise Failure(f"{self.role}: status {status}")

    def kill(self):
        common._signal(self.child.pid, signal.SIGKILL)
        common.wait(self.child, 10)
        self.child.stdin.close()

    def entries(self):
        """How far it has come with each connection: {seed: Entry}"""
        with open(self.ledger, "rb") as f:
            return {entry[0]: Entry(*entry[1:]) for entry in ENTRY.iter_unpack(f.read())}

    def footprint(self):
        return Footprint(self.child.pid)


class Footprint:
    """What a process holds: descriptors, memory files, mappings of them, threads, children."""

    def __init__(self, pid):
        self.pid = pid
        self.to_come = SET
        self.fds = {}
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                self.fds[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
            except FileNotFoundError:
                pass
        with open(f"/proc/{pid}/maps") as f:
            self.maps = [line for line in f if "memfd:" in line or "/dev/shm" in line]
        self.threads = len(os.listdir(f"/proc/{pid}/task"))
        self.children = len(common.children_of(pid))

    def numbers(self):
        memfds = sum("memfd:" in v for v in self.fds.values())
        return {"fds": len(self.fds), "memfds": memfds, "memory file mappings": len(self.maps),
                "threads": self.threads, "children": self.children}

    def grown(self, before):
        """What there is more of than `before`, in words, or ''."""
        old, new = before.numbers(), self.numbers()
        text = ", ".join(f"{k} {old[k]} -> {new[k]}" for k in new if new[k] > old[k])
        if text and new["fds"] > old["fds"]:
            more = self.more(before)
            if new == old | {"fds": old["fds"] + more.total()} and more <= before.to_come:
                before.to_come, before.fds = before.to_come - more, self.fds
                return ""
            text += f" ({', '.join(f'{n} of {k}' for k, n in sorted(more.items()))})"
        return text

    def more(self, before):
        """Descriptors that there were not `before`, by what they are."""
        return Counter(map(kind, self.fds.values())) - Counter(map(kind, before.fds.values()))


# What the first thread that sleeps in poll with a stream makes for itself, and keeps: the set that it sleeps in, and its doorbell,
# the latter when another thread is to ring it.
SET = Counter({"anon_inode:[eventpoll]": 1, "anon_inode:[eventfd]": 1})


def kind(link):
    """'socket:[123]' -> 'socket', but 'anon_inode:[eventfd]' as it is"""
    return link if link.startswith("anon_inode") else link.split(":[")[0]


def no_growth(what, peer, before, limit=10):
    """A process holds no more than before; what goes away by itself has `limit` seconds for it."""
    deadline = time.monotonic() + limit * common.SLOW
    while text := peer.footprint().grown(before):
        if time.monotonic() > deadline:
            raise Failure(f"{what}: {text}")
        time.sleep(0.05)
        # What is put away by the next call of the program's gets one.
        if peer.role == "server":
            peer.live()


def whole(ends, expected, where):
    """Every one of these connections ended `ok`, with the lengths that were asked for.
    `expected`: {seed: (rx, tx)}"""
    got = {seed: rest for seed, *rest in ends}
    if len(got) != len(ends):
        raise Failure(f"{where}: a connection ended twice")
    for seed, (rx, tx) in expected.items():
        if seed not in got:
            raise Failure(f"{where}: nothing known of connection {seed}")
        if got[seed] != ["ok", rx, tx]:
            raise Failure(f"{where}: connection {seed} ended {got[seed]}, not ok {rx} {tx}")
    if got.keys() - expected.keys():
        raise Failure(f"{where}: connections nobody made: {sorted(got.keys() - expected.keys())[:3]}")
