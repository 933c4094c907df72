#!/usr/bin/env python3
"""Real programs, unmodified: do they work plain, preloaded on both sides, and on one side only?

    scripts/programs.py                 every program in every mode
    scripts/programs.py --sample SEED   `both` and one more mode each, smaller sizes
    scripts/programs.py --filter nginx  tests whose "name / mode" contains the text
    scripts/programs.py --list
    scripts/guest/run -- scripts/programs.py --hosts    servers in hb, clients in ha, haproxy between ha and ha

Modes: plain, both, eager (both, SLUICE_UPGRADE=eager), server, client. Files are compared by
sha256. Where a test moves much over few connections, `both` and `eager` also demand that over 95 %
of the bytes went over the link, by the libraries' own counters at both ends and by the byte counter
of the loopback device; `plain` demands that the loopback device saw them all; one side alone must
stay on TCP and say why. Between two hosts there is no `eager`, what TCP moved is counted by its own sockets in ha, and
the devices must have sent the rest, where they count. A program that does not end in time is shown with gdb. Runs in a
network namespace of its own where allowed. Last line: `N passed, N failed`.
"""

import argparse
import getpass
import glob
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import apps      # noqa: E402
import common    # noqa: E402
import hosts     # noqa: E402
from common import Failure, Hang    # noqa: E402

MODES = ("plain", "both", "eager", "server", "client")
LINK_SHARE = 0.95
CLIENTS = os.path.join(common.ROOT, "scripts", "lib", "clients.py")
CLIENT_LIMIT = 90


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
        extra = {"SLUICE_UPGRADE": "eager"} if mode == "eager" else {}
        if args.hosts:
            extra.update(hosts.PEERS)
        self.linked = mode in ("both", "eager")
        self.preloaded = {"server": self.linked or mode == "server", "client": self.linked or mode == "client"}
        # What a server has behind it is preloaded like a server.
        self.preloaded["back"] = self.preloaded["server"]
        self.reports = {role: common.fresh_report(f"{self.dir}/report-{role}") for role in self.preloaded}
        self.where = {"server": "hb", "client": "ha", "back": "ha"} if args.hosts else {}
        self.env = {role: common.environment(on, extra, self.reports[role], args.lib, self.where.get(role))
                    for role, on in self.preloaded.items()}
        # Whether both ends being preloaded means a link.
        self.links = not args.hosts or args.expect == "rdma"
        # System calls are, in a guest.
        self.slow = int(5 * common.SLOW) if args.hosts else 1
        # Until a link between two hosts stands TCP moves tens of megabytes, and in a guest it is the faster of the two: a
        # long transfer is long.
        self.times = 8 if args.hosts and self.linked and args.expect == "rdma" else 1
        self.servers = []
        self.ports = set()
        self.payload = 0        # bytes that the clients moved on long-lived connections
        self.hops = 1
        self.meter = hosts.Meter(f"{self.dir}/sockets") if args.hosts else Loopback()
        self.shares = []        # of each role's bytes by link, in words

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
            # A test of short connections alone may end with none on record.
            if counters.connections == 0 and self.payload:
                raise Failure(f"the {role}'s library reported no connection")
            if self.linked and self.links and self.payload:
                if counters.share() <= LINK_SHARE:
                    raise Failure(f"{role}: {counters}")
                self.shares.append(f"{role} {counters.share() * 100:.1f} %")
            if not self.linked and self.hops == 1:
                # With something in between, that and one end may be preloaded both.
                if counters.accelerated:
                    raise Failure(f"{role}: accelerated although the peer is plain: {counters}")
                if self.payload and set(counters.reasons) == {"none"}:
                    raise Failure(f"{role}: no reason given for staying on TCP: {counters}")
        if self.linked and self.links and self.payload:
            moved = self.payload * self.hops
            if tcp > (1 - LINK_SHARE) * moved:
                raise Failure(f"{tcp} bytes went by TCP of {moved}")
            sent = self.meter.device()
            if sent is not None and sent < LINK_SHARE * moved:
                raise Failure(f"the devices sent {sent} bytes at most of {moved}")

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


# --- nginx ---

def nginx(run, files, user="user root;", role="server", **kw):
    server = apps.Nginx(run.env[role], files, workers=2, user=user, directory=f"{run.dir}/nginx",
                        host=run.address(role), **kw)
    run.serve(server, server.stop)
    run.ports.add(server.port)
    return server


def curl_file(run, server, name, out):
    # Emptying an old file of this size takes a tenth of a second, in which curl reads nothing.
    if os.path.exists(out):
        os.unlink(out)
    run.client("curl", "-sS", "--fail", "-o", out, server if isinstance(server, str) else server.url(name))


def curl_pipe(run, times, *words):
    """Begins to fetch something so many times over one connection: gives what waits for it and compares."""
    curl = common.start(["curl", "-sS", "--fail", *words[:-1], *words[-1:] * times], env=run.env["client"], stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True)
    digest = common.start(["sha256sum"], stdin=curl.stdout, stdout=subprocess.PIPE, text=True)
    curl.stdout.close()
    curl.stdout = None

    def ends_as(path, what):
        out, _ = common.communicate(digest, CLIENT_LIMIT)
        _, err = common.communicate(curl, CLIENT_LIMIT)
        if curl.returncode != 0:
            raise Failure(f"curl of {what}: {err.strip()}")
        if out.split()[0] != sha256(path, times):
            raise Failure(f"{what}: other bytes arrived than were sent")
    return ends_as


def same(path, other, what):
    if sha256(path) != sha256(other):
        raise Failure(f"{what}: other bytes arrived than were sent ({os.path.getsize(path)} of them)")


def nginx_curl(run, user="user root;"):
    """Small and long files, one connection each and many files over one connection."""
    # Until the link stands a connection moves what the kernel's buffers take, 5 to 10 MB: a long transfer is long.
    big = run.scaled(512 << 20) if run.hosts else 512 << 20
    server = nginx(run, {"empty": 0, "one": 1, "small": 1000, "mid": 300_000, "big": big}, user)
    www = f"{server.dir}/www"
    for name in ("empty", "one", "small", "mid"):
        curl_file(run, server, name, f"{run.dir}/got")
        same(f"{run.dir}/got", f"{www}/{name}", name)
    curl_file(run, server, "big", f"{run.dir}/got")
    same(f"{run.dir}/got", f"{www}/big", "big")
    run.payload += big
    third = big // 3
    if run.times > 1:
        curl_pipe(run, run.times, server.url("big"))(f"{www}/big", "big, again and again")
        kids = [(i, curl_pipe(run, run.times, "-r", f"{i * third}-{(i + 1) * third - 1}", server.url("big"))) for i in range(3)]
        for i, ends_as in kids:
            with open(f"{www}/big", "rb") as f, open(f"{run.dir}/part", "wb") as part:
                f.seek(i * third)
                part.write(f.read(third))
            ends_as(f"{run.dir}/part", "a range, again and again")
        run.payload += run.times * (big + 3 * third)
        return
    # Ranges in parallel, put together again.
    kids = [run.background("curl", "-sS", "--fail", "-r", r, "-o", f"{run.dir}/part{i}", server.url("big"))
            for i, r in enumerate((f"0-{third - 1}", f"{third}-{2 * third - 1}", f"{2 * third}-"))]
    for kid in kids:
        out, _ = common.communicate(kid, CLIENT_LIMIT)
        if kid.returncode != 0:
            raise Failure(f"curl of a range: {out.strip()}")
    with open(f"{run.dir}/got", "wb") as f:
        for i in range(3):
            with open(f"{run.dir}/part{i}", "rb") as part:
                f.write(part.read())
    same(f"{run.dir}/got", f"{www}/big", "ranges of big")
    run.payload += big


def nginx_curl_dropped(run):
    """Workers that gave up root, as packages configure it."""
    nginx_curl(run, user="")


def wrk(run, server, name, connections, secs, *more):
    text = run.client("wrk", "-t2", f"-c{connections}", f"-d{secs}s", *more, server.url(name))
    requests, _, _, _ = apps.parse_wrk(text)
    if requests == 0:
        raise Failure("wrk completed no request")
    return requests


def nginx_wrk(run):
    server = nginx(run, {"k": 1024, "m": 1 << 20})
    secs = run.scaled(4, 2) * run.times
    # 1 KiB bodies come with about 240 bytes of head; the requests are not counted.
    run.payload += wrk(run, server, "k", 32, secs) * 1024
    run.payload += wrk(run, server, "m", 8, secs) << 20


def nginx_wrk_close(run):
    server = nginx(run, {"k": 1024})
    wrk(run, server, "k", 32, 2, "-H", "Connection: close")


def nginx_ab(run):
    server = nginx(run, {"k": 1024, "m": 1 << 20})
    for name, count, flags in (("k", run.scaled(20000, 4000), ["-k"]), ("k", run.scaled(8000, 2000), []),
                               ("m", run.scaled(600, 200), ["-k"])):
        text = run.client("ab", "-q", *flags, "-n", str(count), "-c", "16", server.url(name))
        for line, want in (("Complete requests:", count), ("Failed requests:", 0)):
            got = [int(x.split()[-1]) for x in text.splitlines() if x.startswith(line)]
            if got != [want]:
                raise Failure(f"ab {name} {' '.join(flags)}: {line} {got}, not {want}")
        if "Non-2xx" in text:
            raise Failure(f"ab {name}: answers other than 2xx")


def nginx_reload(run):
    """Reloads under load: no request fails but those that meet the end of an idle connection."""
    server = nginx(run, {"k": 1024, "big": 64 << 20})
    connections, reloads = 16, 3
    load = run.background("wrk", "-t1", f"-c{connections}", "-d5s", server.url("k"))
    fetch = run.background("curl", "-sS", "--fail", "--limit-rate", "24M", "-o", f"{run.dir}/got", server.url("big"))
    before = set(server.workers())
    for _ in range(reloads):
        time.sleep(1)       # load between reloads, not a wait for a state
        run.client("nginx", "-e", server.log, "-c", server.conf, "-p", server.dir, "-s", "reload",
                   env=run.env["server"])
    text, _ = common.communicate(load, CLIENT_LIMIT)
    if load.returncode != 0 or "Non-2xx" in text:
        raise Failure(f"wrk: {text[-300:]}")
    for line in text.splitlines():
        if "Socket errors" in line:
            errors = dict(p.split() for p in line.split(":")[1].strip().split(", "))
            # A request that crosses the close of its idle connection fails on TCP too.
            if int(errors["connect"]) or int(errors["timeout"]) or int(errors["write"]) > reloads * connections \
                    or int(errors["read"]) > reloads * connections:
                raise Failure(f"wrk: {line.strip()}")
    out, _ = common.communicate(fetch, CLIENT_LIMIT)
    if fetch.returncode != 0:
        raise Failure(f"a download across reloads: {out.strip()}")
    same(f"{run.dir}/got", f"{server.dir}/www/big", "a download across reloads")
    deadline = time.monotonic() + 20
    while before & set(server.workers()):
        if time.monotonic() > deadline:
            raise Hang("old workers of nginx still there 20 s after the reload")
        time.sleep(0.05)


# --- redis ---

def redis(run):
    port = run.free_port()
    place = f"{run.dir}/redis"
    os.makedirs(place)
    child = common.start(["redis-server", "--port", str(port), "--bind", run.address("server"), "--save", "", "--dir", place,
                          "--proto-max-bulk-len", "512mb", "--protected-mode", "no"], env=run.env["server"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)

    def stop():
        if not common.end(child):
            raise Failure("redis-server did not end on SIGTERM")
        if child.returncode != 0:
            raise Failure(f"redis-server: status {child.returncode}")
    run.serve(child, stop)
    common.wait_listening(port, child)
    return port


def redis_benchmark(run):
    """All its tests: fifty new connections for each."""
    benchmark(run, ["-c", "50", "-n", str(run.scaled(20000, 5000) // run.slow)],
              ["-c", "50", "-P", "16", "-n", str(run.scaled(200000, 50000) // run.slow), "-t", "set,get,lpush,lrange_100"])


def redis_benchmark_long(run):
    """Few connections that move much, in both directions."""
    count = run.scaled(8000, 8000)
    benchmark(run, ["-c", "8", "-d", "100000", "-n", str(count), "-t", "set,get"])
    run.payload += count * 2 * 100000


def benchmark(run, *variants):
    port = redis(run)
    for flags in variants:
        text = run.client("redis-benchmark", "-h", run.address("server"), "-p", str(port), "--csv", *flags)
        rates = [float(line.split(",")[1].strip('"')) for line in text.splitlines()[1:] if "," in line]
        if not rates or min(rates) <= 0:
            raise Failure(f"redis-benchmark {' '.join(flags)}: {text[-200:]}")


def redis_cli(run):
    port = redis(run)
    cli = ("redis-cli", "-h", run.address("server"), "-p", str(port))
    blob = random.Random(run.seed).randbytes(run.scaled(24 << 20, 8 << 20))
    if run.client(*cli, "-x", "set", "blob", data=blob).strip() != b"OK":
        raise Failure("redis-cli -x set: not OK")
    # redis-cli adds a newline to what it prints raw.
    if run.client(*cli, "--raw", "get", "blob", data=b"")[:-1] != blob:
        raise Failure("the value came back changed")
    # Mass insertion: one stream of commands, one of answers, both at once.
    count = run.scaled(200000, 50000)
    mass = b"".join(b"*3\r\n$3\r\nSET\r\n$%d\r\nkey%d\r\n$%d\r\n%d\r\n" % (len(b"key%d" % i), i, len(b"%d" % i), i)
                    for i in range(count))
    answer = run.client(*cli, "--pipe", data=mass).decode()
    if f"errors: 0, replies: {count}" not in answer:
        raise Failure(f"redis-cli --pipe: {answer.strip()[-200:]}")
    if run.client(*cli, "dbsize").strip() != str(count + 1):
        raise Failure("keys are missing")
    # A client that sleeps in a blocking command and is woken by another.
    sleeper = run.background(*cli, "blpop", "queue", "30")
    run.client(*cli, "rpush", "queue", "hello")
    out, _ = common.communicate(sleeper, 35)
    if "hello" not in out:
        raise Failure(f"blpop: {out.strip()!r}")
    script = "".join(f"get key{i}\n" for i in range(0, min(count, 5000)))
    if run.client(*cli, data=script).split() != [str(i) for i in range(0, min(count, 5000))]:
        raise Failure("5,000 gets on one connection: wrong answers")


# --- memcached ---

def memcached(run):
    port = run.free_port()
    user = ["-u", "root"] if os.geteuid() == 0 else []
    child = common.start(["memcached", "-p", str(port), "-U", "0", "-l", run.address("server"), "-m", "256", "-t", "4", *user],
                         env=run.env["server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run.serve(child, lambda: common.end(child) or _fail("memcached did not end on SIGTERM"))
    common.wait_listening(port, child)
    count = run.scaled(40, 12) * run.times
    run.client(sys.executable, CLIENTS, "memcached", run.address("server"), str(port), str(run.seed), str(count))
    run.payload += count * 4 * 8 * 2 * 60000     # about


def _fail(text):
    raise Failure(text)


# --- iperf3 ---

def iperf3(run, *flags):
    port = run.free_port()
    child = common.start(["iperf3", "-s", "-1", "-B", run.address("server"), "-p", str(port)], env=run.env["server"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run.serve(child, lambda: common.wait(child, 20))
    common.wait_listening(port, child)
    text = run.client("iperf3", "-c", run.address("server"), "-p", str(port), "-t", str(run.scaled(4, 2) * run.times), "-J", *flags)
    answer = json.loads(text)
    if "error" in answer:
        raise Failure(f"iperf3: {answer['error']}")
    for key in ("sum_received", "sum_received_bidir_reverse"):
        if key in answer["end"]:
            got = answer["end"][key]["bytes"]
            if got <= 0:
                raise Failure(f"iperf3: {key} is {got}")
            run.payload += got
    if "--bidir" in flags and "sum_received_bidir_reverse" not in answer["end"]:
        raise Failure("iperf3 --bidir reported one direction")


def iperf3_p1(run):
    iperf3(run)


def iperf3_p4(run):
    iperf3(run, "-P", "4")


def iperf3_reverse(run):
    iperf3(run, "-R")


def iperf3_bidir(run):
    iperf3(run, "--bidir")


# --- python ---

def python_http(run):
    place = f"{run.dir}/www"
    os.makedirs(place)
    big = run.scaled(128 << 20, 128 << 20)
    apps.random_file(f"{place}/big", big, run.seed)
    apps.random_file(f"{place}/small", 3000, run.seed + 1)
    port = run.free_port()
    child = common.start([sys.executable, "-m", "http.server", str(port), "--bind", run.address("server"), "--protocol", "HTTP/1.1",
                          "-d", place], env=run.env["server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # SIGINT: python leaves by its exit handlers.
    run.serve(child, lambda: common.end(child, signal.SIGINT) or _fail("http.server did not end on SIGINT"))
    common.wait_listening(port, child)
    url = f"http://{run.address('server')}:{port}"
    run.client(sys.executable, CLIENTS, "urllib", f"{url}/small", sha256(f"{place}/small"), "20")
    run.client(sys.executable, CLIENTS, "urllib", f"{url}/big", sha256(f"{place}/big"), "2")
    run.client(sys.executable, CLIENTS, "keepalive", run.address("server"), str(port), "/small", sha256(f"{place}/small"), "100")
    run.payload += 2 * big
    if run.times > 1:
        run.client(sys.executable, CLIENTS, "keepalive", run.address("server"), str(port), "/big", sha256(f"{place}/big"), str(run.times))
        run.payload += run.times * big


# --- haproxy between nginx and curl ---

HAPROXY_CONF = """
global
    nbthread 2
    stats socket {dir}/haproxy.sock
defaults
    mode {mode}
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    {options}
listen front
    bind {host}:{port}
    server nginx {back}
"""


def haproxy(run, mode="http", options=""):
    # A connection's first megabytes go by TCP: as many as its buffers take before the reader's first read.
    big = run.scaled(128 << 20, 128 << 20)
    back = nginx(run, {"k": 1024, "big": big}, role="back")
    run.hops = 2
    port = run.free_port()
    conf = f"{run.dir}/haproxy.cfg"
    with open(conf, "w") as f:
        f.write(HAPROXY_CONF.format(dir=run.dir, host=run.address("server"), port=port,
                                    back=f"{back.host}:{back.port}", mode=mode, options=options))
    child = common.start(["haproxy", "-db", "-f", conf], env=run.env["server"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
    # SIGUSR1: haproxy finishes what it has and exits.
    run.serve(child, lambda: common.end(child, signal.SIGUSR1) or _fail("haproxy did not end on SIGUSR1"))
    common.wait_listening(port, child)
    url = f"http://{run.address('server')}:{port}"
    for _ in range(2):
        curl_file(run, f"{url}/big", "", f"{run.dir}/got")
        same(f"{run.dir}/got", f"{back.dir}/www/big", f"haproxy ({mode})")
    if run.times > 1:
        # Before it a new process of curl's has loaded what it needs, while two connections fill their buffers.
        times = 2 * run.times
        curl_pipe(run, times, f"{url}/big")(f"{back.dir}/www/big", f"haproxy ({mode}), again and again")
        run.payload += times * big
    text = run.client("wrk", "-t1", "-c16", "-d2s", f"{url}/k")
    if apps.parse_wrk(text)[0] == 0:
        raise Failure("wrk completed no request")
    run.payload += 2 * big


def haproxy_http(run):
    haproxy(run)


def haproxy_tcp_splice(run):
    haproxy(run, "tcp", "option splice-auto")


# --- postgres ---

def postgres(run):
    """A cluster of its own, as another user if we are root: it refuses that. Its port, and the user's name."""
    place, port = f"{run.dir}/postgres", run.free_port()
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    tools = f"{found[-1]}/" if found else ""
    user, become = getpass.getuser(), []
    os.makedirs(place)
    if os.geteuid() == 0:
        user, become = "postgres", ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(place, "postgres", "postgres")
    common.finished([*become, f"{tools}initdb", "-D", place, "-A", "trust", "-N", "--no-locale", "-E", "UTF8"], 60)
    with open(f"{place}/pg_hba.conf", "a") as f:
        f.write("host all all 0.0.0.0/0 trust\n")
    child = common.start([*become, f"{tools}postgres", "-D", place, "-h", run.address("server"), "-p", str(port), "-k", "",
                          "-c", "fsync=off"], env=run.env["server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # SIGINT: whoever is connected is sent away.
    run.serve(child, lambda: common.end(child, signal.SIGINT, 20) or _fail("postgres did not end on SIGINT"))
    common.wait_listening(port, child)
    return port, user


def pgbench(run):
    """Its transactions, then a table there and a larger one back."""
    port, user = postgres(run)
    where = ("-h", run.address("server"), "-p", str(port), "-U", user)

    def psql(sql):
        return run.client("psql", "-X", "-q", "-A", "-t", *where, "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-c", sql).strip()

    common.until(lambda: run.client("psql", *where, "-l", status=None), "postgres lets nobody in", 20)
    run.client("pgbench", "-i", "-q", *where, "postgres")
    clients, count = 4, run.scaled(1000, 300)
    run.client("pgbench", "-n", "-c", str(clients), "-j", "2", "-t", str(count), *where, "postgres")
    sums = psql("select count(*), sum(delta) from pgbench_history")
    if sums.split("|")[0] != str(clients * count):
        raise Failure(f"pgbench: {sums}, {clients * count} transactions wanted")
    for table, column in (("accounts", "abalance"), ("tellers", "tbalance"), ("branches", "bbalance")):
        if psql(f"select {clients * count}, sum({column}) from pgbench_{table}") != sums:
            raise Failure(f"pgbench: the sum of {table} is not that of the history")
    rng = random.Random(run.seed)
    with open(f"{run.dir}/rows", "w") as f:
        for n in range(100):
            f.write(f"{n}\t{rng.randbytes(32 << 10).hex()}\n")
    # Little of it: a server slower than its client's writing gets most of that by TCP.
    psql("create unlogged table rows (n int, line text); alter table rows alter line set storage external")
    psql(f"\\copy rows from '{run.dir}/rows'")
    # Two files of it are in a guest's memory.
    rounds = 60 if run.times > 1 else 30
    with open(f"{run.dir}/rows", "rb") as f, open(f"{run.dir}/many", "wb") as many:
        many.write(f.read() * rounds)
    psql(f"\\copy (select n, line from rows, generate_series(1, {rounds}) g order by g, n) to '{run.dir}/got'")
    same(f"{run.dir}/many", f"{run.dir}/got", "a table")
    run.payload += os.path.getsize(f"{run.dir}/many")


# --- ssh ---

SSHD_CONF = """
HostKey {dir}/host
AuthorizedKeysFile {dir}/client.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
Subsystem sftp internal-sftp
"""


def ssh(run):
    """A command with a large input and output at once, and files there and back."""
    port, where = run.free_port(), run.address("server")
    # Where it is root it wants this, which services have made at boot.
    made = os.geteuid() == 0 and not os.path.isdir("/run/sshd")
    if made:
        os.mkdir("/run/sshd", 0o755)
    for key in ("host", "client"):
        common.finished(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{run.dir}/{key}"], 20)
    with open(f"{run.dir}/sshd.conf", "w") as f:
        f.write(SSHD_CONF.format(dir=run.dir))
    child = common.start([shutil.which("sshd"), "-D", "-e", "-f", f"{run.dir}/sshd.conf", "-o", f"ListenAddress={where}:{port}"],
                         env=run.env["server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop():
        common.end(child)
        if made:
            os.rmdir("/run/sshd")
    run.serve(child, stop)
    common.wait_listening(port, child)
    options = ["-F", "none", "-i", f"{run.dir}/client", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
               "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    blob = random.Random(run.seed).randbytes(32 << 20)
    if run.client("ssh", *options, "-p", str(port), where, "cat", data=blob) != blob:
        raise Failure("ssh: other bytes came back than were sent")
    with open(f"{run.dir}/blob", "wb") as f:
        f.write(blob)
    run.client("scp", *options, "-P", str(port), f"{run.dir}/blob", f"{where}:{run.dir}/there")
    run.client("scp", *options, "-P", str(port), f"{where}:{run.dir}/there", f"{run.dir}/back")
    same(f"{run.dir}/blob", f"{run.dir}/there", "scp to the server")
    same(f"{run.dir}/blob", f"{run.dir}/back", "scp from the server")
    run.payload += 4 * len(blob)


TESTS = [nginx_curl, nginx_curl_dropped, nginx_wrk, nginx_wrk_close, nginx_ab, nginx_reload, redis_benchmark,
         redis_benchmark_long, redis_cli, memcached, iperf3_p1, iperf3_p4, iperf3_reverse, iperf3_bidir, python_http, haproxy_http,
         haproxy_tcp_splice, pgbench, ssh]
# On TCP, by choice: haproxy moves bytes from socket to socket inside the kernel here; sshd begins anew by exec with the
# connection at descriptors 0 and 1.
BY_TCP = {haproxy_tcp_splice, ssh}


def attempt(test, mode, args):
    """What went wrong or None, and the shares of bytes by link."""
    run = Run(mode, args)
    try:
        test(run)
        if test in BY_TCP:
            run.payload = 0
        run.finish()
        return None, run.shares
    except Hang as e:
        pids = [p for c in common._children.values() if c.returncode is None for p in common.tree(c.pid)]
        return f"HANG: {e}\n{common.backtraces(pids)}", []
    except Failure as e:
        return str(e), []
    finally:
        run.rescue()
        subprocess.run(["rm", "-rf", run.dir], check=False)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--sample", type=int, metavar="SEED")
    ap.add_argument("--filter", "-k", default="")
    ap.add_argument("--seed", type=int, default=1, help="of the data")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--hosts", action="store_true", help="between the two hosts of scripts/guest/run")
    ap.add_argument("--expect", choices=("rdma", "tcp"), default="rdma", help="what joins the two hosts")
    ap.add_argument("--lib", default=common.LIB, help="the library")
    args = ap.parse_args()

    # A guest has little memory.
    args.size = 0.3 if args.hosts else 1.0
    modes = [m for m in MODES if not (args.hosts and m == "eager")]
    jobs = [(t, m) for t in TESTS for m in modes]
    if args.sample is not None:
        args.seed, args.size = args.sample, 0.3
        rng = random.Random(args.seed)
        jobs = [(t, m) for t in TESTS for m in ("both", rng.choice([x for x in modes if x != "both"]))]
    jobs = [(t, m) for t, m in jobs if args.filter in f"{t.__name__} / {m}"]
    if args.list:
        print("\n".join(f"{t.__name__} / {m}" for t, m in jobs))
        return 0
    if not jobs:
        sys.exit("nothing matches")
    args.lib = os.path.abspath(args.lib)
    common.need_file(args.lib, "make build")
    common.need_tools("nginx", "curl", "wrk", "ab", "redis-server", "redis-benchmark", "redis-cli", "memcached",
                      "iperf3", "haproxy", "pgbench", "psql", "sshd", "ssh", "scp")
    common.adopt_orphans()
    if args.hosts:
        hosts.need_guest()
    elif not common.private_network():
        print("no network namespace of our own: other programs' traffic on loopback is counted as ours")
    print(f"seed {args.seed}, {len(jobs)} tests", flush=True)
    passed = failed = 0
    for test, mode in jobs:
        begin = time.monotonic()
        wrong, shares = attempt(test, mode, args)
        took = time.monotonic() - begin
        if wrong is None:
            passed += 1
            by_link = f": by link {', '.join(shares)}" if shares else ""
            print(f"ok      {test.__name__} / {mode}  ({took:.1f} s){by_link}", flush=True)
        else:
            failed += 1
            print(f"FAILED  {test.__name__} / {mode}  ({took:.1f} s): {wrong}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
