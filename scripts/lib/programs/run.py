"""One test in one mode: what is started, where, with which environment, and what the counters must say after it."""

import hashlib
import os
import subprocess

import apps
import common
import hosts
from common import Failure

LINK_SHARE = 0.95
CLIENTS = os.path.join(common.ROOT, "scripts", "lib", "clients.py")
CLIENT_LIMIT = 90


class Skip(Exception):
    """What the test needs is not here: what that is."""


class Loopback:
    """What goes over the loopback device from here on."""

    def __init__(self):
        self.before = common.lo_bytes()

    def tcp(self, _ports):
        return common.lo_bytes() - self.before

    def device(self):
        return None


class Run:
    """One test in one mode: environments, places, what was started."""

    def __init__(self, mode, args):
        self.mode, self.size, self.seed, self.hosts = mode, args.size, args.seed, args.hosts
        self.dir = common.workplace("sluice-programs-")
        self.lib = args.lib
        self.extra = {"SLUICE_UPGRADE": "eager"} if mode == "eager" else {}
        if args.hosts:
            self.extra.update(hosts.PEERS)
        self.linked = mode in ("both", "eager")
        self.preloaded = {"server": self.linked or mode == "server", "client": self.linked or mode == "client"}
        # What a server has behind it is preloaded like a server.
        self.preloaded["back"] = self.preloaded["server"]
        self.where = {"server": "hb", "client": "ha", "back": "ha"} if args.hosts else {}
        self.reports, self.env = {}, {}
        for role in list(self.preloaded):
            self.role(role, role)
        # Whether both ends being preloaded means a link.
        self.links = not args.hosts or args.expect == "rdma"
        # System calls are, in a guest.
        self.slow = int(5 * common.SLOW) if args.hosts else 1
        # Until a link between two hosts stands TCP moves tens of megabytes, and in a guest it is the faster of the two: a
        # long transfer is long.
        self.times = 8 if args.hosts and self.linked and args.expect == "rdma" else 1
        self.servers = []
        self.ports = set()
        self.by_tcp = False     # its bytes stay there, whatever is preloaded
        self.brief = set()      # roles whose connections may all be over before a link stands
        self.lasting = False    # some connections are long enough for a link in `both` too
        self.least = {}         # of the bytes of a role's report, so much went by link
        self.payload = 0        # bytes that the clients moved on long-lived connections
        self.hops = 1
        self.floor = LINK_SHARE     # of these bytes, so much goes by link
        self.meter = hosts.Meter(f"{self.dir}/sockets") if args.hosts else Loopback()
        self.notes = []         # what else the line of its outcome says

    def role(self, name, like, plain=False):
        """Another program on that side, with a report of its own; or one that is never preloaded."""
        on = self.preloaded[name] = self.preloaded[like] and not plain
        if self.hosts:
            self.where[name] = self.where[like]
        self.reports[name] = common.fresh_report(f"{self.dir}/report-{name}")
        self.env[name] = common.environment(on, self.extra, self.reports[name], self.lib, self.where.get(name))

    def address(self, role):
        return hosts.address(self.where[role]) if self.hosts else apps.HOST

    def free_port(self):
        port = common.free_port()
        self.ports.add(port)
        return port

    def scaled(self, n, least=1):
        return max(least, int(n * self.size))

    def serve(self, server, stop):
        self.servers.append((server, stop))
        return server

    def client(self, *cmd, limit=CLIENT_LIMIT, data=None, status=0, env=None):
        """A client to its end: its output, if the status is as wanted; None is any but gives an output only for 0.
        Bytes if `data` is bytes."""
        text = not isinstance(data, bytes)
        child = common.start(cmd, env=env or self.env["client"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             stdin=subprocess.PIPE if data is not None else subprocess.DEVNULL, text=text)
        out, err = common.communicate(child, limit, data)
        if status is None:
            return out if child.returncode == 0 else None
        if child.returncode != status:
            err = err if text else err.decode(errors="replace")
            raise Failure(f"{os.path.basename(cmd[0])}: status {child.returncode}: {err.strip()[-300:]}")
        return out

    def background(self, *cmd):
        return common.start(cmd, env=self.env["client"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self):
        """Ends the servers; then what the counters have to say is complete."""
        while self.servers:
            _, stop = self.servers.pop()
            stop()
        left = common.leftovers()
        if left:
            raise Failure(f"left behind: {'; '.join(left)}")
        # Thousands of short connections are more than can be watched, and nothing is asked of them.
        self.judge(self.meter.tcp(self.ports) if self.payload else 0)

    def judge(self, tcp):
        if self.mode == "plain":
            # What is sent is known about for some programs; headers add more than that.
            if self.payload and tcp < 0.95 * self.payload:
                raise Failure(f"{tcp} bytes by TCP for {self.payload} of payload: the check is broken")
            return
        for role, on in self.preloaded.items():
            if not on or (role == "back" and self.hops == 1):
                continue
            counters = common.read_report(self.reports[role])
            # One that was too short for a link is on record too.
            if counters.connections == 0:
                raise Failure(f"the {role}'s library reported no connection")
            if self.linked and self.links:
                if self.payload and counters.share() <= self.floor:
                    raise Failure(f"{role}: {counters}")
                self.must_link(role, counters)
                self.notes.append(f"{role} {counters.accelerated} of {counters.connections} accelerated, " +
                                  (f"{counters.share() * 100:.1f} % by link" if counters.accelerated else
                                   " ".join(f"{k} {v}" for k, v in sorted(counters.reasons.items()))))
            if not self.linked and self.hops == 1:
                # With something in between, that and one end may be preloaded both.
                if counters.accelerated:
                    raise Failure(f"{role}: accelerated although the peer is plain: {counters}")
                if self.payload and set(counters.reasons) == {"none"}:
                    raise Failure(f"{role}: no reason given for staying on TCP: {counters}")
        if self.linked and self.links and self.payload:
            moved = self.payload * self.hops
            if tcp > (1 - self.floor) * moved:
                raise Failure(f"{tcp} bytes went by TCP of {moved}")
            sent = self.meter.device()
            if sent is not None and sent < self.floor * moved:
                raise Failure(f"the devices sent {sent} bytes at most of {moved}")

    def must_link(self, role, counters):
        """What is demanded of a program between preloaded ends, however little it moves."""
        if self.mode == "eager" and not self.by_tcp:
            if role not in self.brief and not counters.accelerated:
                raise Failure(f"{role}: nothing accelerated: {counters}")
            if set(counters.reasons) == {"below-threshold"}:
                raise Failure(f"{role}: no link was tried: {counters}")
        if self.lasting and not counters.accelerated:
            raise Failure(f"{role}: nothing accelerated: {counters}")
        if counters.share() < self.least.get(role, 0):
            raise Failure(f"{role}: {counters}")

    def rescue(self):
        """After a failure: ends everything."""
        common.end_trees()


def sha256(path, times=1):
    h = hashlib.sha256()
    for _ in range(times):
        with open(path, "rb") as f:
            while piece := f.read(1 << 20):
                h.update(piece)
    return h.hexdigest()


def fail(text):
    raise Failure(text)


def same(path, other, what):
    if sha256(path) != sha256(other):
        raise Failure(f"{what}: other bytes arrived than were sent ({os.path.getsize(path)} of them)")
