"""A plain peer pays nothing: system calls of both ends, counted by strace. Started by
scripts/plainpeer.sh.

A fixed conversation (blocking, then epoll) is traced three times: both ends plain, the server
preloaded, the client preloaded. The plain end must make the very same calls as among plain ends.
The preloaded end must move the same bytes by the same calls on the connection, wait no more often,
start no thread and keep no descriptor; only the short-lived sockets by which it looks for its peer
may come on top. Last line: N passed, N failed."""

import collections
import os
import re
import signal
import subprocess
import sys

import apps
import ccases
import common
from common import Failure

DATA_IN = ("read", "readv", "recvfrom", "recvmsg", "recvmmsg", "preadv2")
DATA_OUT = ("write", "writev", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice", "pwritev2")
# By kind: which of its siblings serves a wait is the library's affair.
WAITS = {"poll": "poll", "ppoll": "poll", "select": "select", "pselect6": "select", "epoll_wait": "epoll_wait",
         "epoll_pwait": "epoll_wait", "epoll_pwait2": "epoll_wait", "futex": "futex", "nanosleep": "sleep",
         "clock_nanosleep": "sleep", "sched_yield": "sched_yield", "pause": "sleep", "rt_sigtimedwait": "sleep",
         "wait4": "wait", "waitid": "wait"}
THREADS = ("clone", "clone3", "fork", "vfork")
KEEPERS = ("eventfd", "eventfd2", "memfd_create", "pipe", "pipe2", "timerfd_create", "signalfd4", "inotify_init1", "userfaultfd", "io_uring_setup")
NAME_LIFE = 0.200       # seconds that our own end may hold a rendezvous name
SLACK = 0.100           # for the next hooked call to come, under strace
SIZE, COUNT = 512, 3000     # 3 MB in both directions together: past four rendezvous offsets
EXTRA_CALLS = 350       # most calls that looking for a peer may add to such a conversation, in all
# Whether an edge comes before or after a read is chance: among plain ends, too, two runs differ by
# a call or two that move nothing.
BY_CHANCE = {"pp": 0, "epp": 5}
LONGEST_MS = 100        # most that any single round trip may take, best of five runs

_LINE = re.compile(r"^(\d+) +(\d+\.\d+) (.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\) += (-?\d+|\?|0x[0-9a-f]+)(.*)$", re.S)
_TCP = re.compile(r"^(\d+)<TCP(?:v6)?:\[[^]]*->[^]]*\]>")
_FD = re.compile(r"^(\d+)")

HELPERS = ("socket AF_UNIX", "socket AF_NETLINK", "epoll_create1 EPOLL_CLOEXEC")
# A look that waits for nothing.
_LOOK = re.compile(r"(, 0, NULL, \d+|, \{tv_sec=0, tv_nsec=0\}, NULL, \d+)$")

Call = collections.namedtuple("Call", "time pid name args ret")


def parse(path):
    """The calls of a strace log (-f -ttt -yy), interrupted lines joined."""
    out, open_ = [], {}
    with open(path, errors="replace") as f:
        for line in f:
            hit = _LINE.match(line.rstrip("\n"))
            if not hit:
                continue
            pid, when, text = int(hit.group(1)), float(hit.group(2)), hit.group(3)
            if text.endswith("<unfinished ...>"):
                open_[pid] = (when, text[:-len("<unfinished ...>")])
                continue
            if text.startswith("<... "):
                when, head = open_.pop(pid, (when, None))
                if head is None:
                    continue
                text = head + text.split("resumed>", 1)[1]
            call = _CALL.match(text)
            if call:
                ret = call.group(3)
                out.append(Call(when, pid, call.group(1), call.group(2), int(ret, 0) if ret != "?" else 0))
    if not out:
        raise Failure("strace wrote nothing")
    return out


class Trace:
    def __init__(self, calls):
        # Before its first TCP socket a program is being loaded: that costs no peer anything.
        first = next((i for i, c in enumerate(calls)
                      if c.name == "socket" and c.args.startswith(("AF_INET,", "AF_INET6,"))), None)
        if first is None:
            raise Failure("no TCP socket in the trace")
        self.all, self.calls = calls, calls[first:]
        self.names = collections.Counter(c.name for c in self.calls)
        self.data = collections.Counter()
        self.bytes_in = self.bytes_out = 0
        for c in self.calls:
            if c.name in DATA_IN + DATA_OUT and _TCP.match(c.args):
                self.data[c.name + (" peek" if "MSG_PEEK" in c.args else "")] += 1
                if c.ret > 0 and "MSG_PEEK" not in c.args:
                    if c.name in DATA_IN:
                        self.bytes_in += c.ret
                    else:
                        self.bytes_out += c.ret
        self.helpers, self.open_at_end = self._descriptors()

    def _descriptors(self):
        """[(what, seconds open)] of sockets that are not TCP, and what is open when the process ends."""
        made, lives = {}, []
        for c in self.all:
            if c.name in ("socket", "accept", "accept4", "openat", "open", "dup", "epoll_create1", "epoll_create",
                          "eventfd2", "memfd_create", "pidfd_open") and c.ret >= 0:
                # Of an accepted socket the listener's number and address say nothing.
                first = "" if c.name.startswith("accept") else " " + c.args.split(",")[0]
                made[c.ret] = (c.name + first, c.time)
            elif c.name == "fcntl" and "F_DUPFD" in c.args and c.ret >= 0:
                # The same thing under another number.
                made[c.ret] = made.get(int(_FD.match(c.args).group(1)), ("fcntl F_DUPFD", c.time))
            elif c.name in ("pipe", "pipe2", "socketpair") and c.ret == 0:
                for fd in re.findall(r"(\d+)<", c.args)[:2]:
                    made[int(fd)] = (c.name, c.time)
            elif c.name == "close" and c.ret == 0:
                hit = _FD.match(c.args)
                what, since = made.pop(int(hit.group(1)), (None, 0))
                if what and what.startswith(HELPERS):
                    lives.append((what, c.time - since))
        end = self.all[-1].time
        lives += [(what, end - since) for what, since in made.values() if what.startswith(HELPERS)]
        # A name that is younger than names may be is not kept: its time has not come.
        return lives, sorted(what for what, since in made.values()
                             if not (what.startswith(HELPERS) and end - since <= NAME_LIFE + SLACK))


def conversation(directory, program, server_pre, client_pre):
    """Traces of server and client of one fixed conversation."""
    logs, children = {}, []
    lib = {True: ["-E", f"LD_PRELOAD={common.LIB}"], False: []}

    def traced(role, pre, args, **kw):
        logs[role] = f"{directory}/{program}-{role}.strace"
        cmd = ["strace", "-f", "-ttt", "-yy", "-s", "8", "-o", logs[role], *lib[pre], ccases.binary(program), role, *args]
        child = common.start(cmd, env=common.environment(False), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, **kw)
        children.append(child)
        return child

    server = traced("server", server_pre, ["127.0.0.1", str(SIZE)])
    port = server.stdout.readline().split()[1]
    client = traced("client", client_pre, ["127.0.0.1", port, str(SIZE), "count", str(COUNT)])
    for child in (client, server):
        common.wait(child, 120)
        if child.returncode != 0:
            raise Failure(f"{program}: status {child.returncode}: {child.stderr.read().strip()[-200:]}")
    return {role: Trace(parse(log)) for role, log in logs.items()}


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def hold(self, good, what, why=""):
        if good:
            self.passed += 1
        else:
            self.failed += 1
        print(("ok      " if good else "FAILED  ") + what + (f": {why}" if why and not good else ""), flush=True)


def differences(a, b):
    """In words: what `b` has more or less of than `a`."""
    return ", ".join(f"{k} {a[k]} -> {b[k]}" for k in sorted(a.keys() | b.keys()) if a[k] != b[k])


def about_equal(a, b, slack):
    return all(abs(a[k] - b[k]) <= slack for k in a.keys() | b.keys())


def judge(checks, name, base, now, preloaded, slack):
    side = "preloaded" if preloaded else "plain"
    name = f"{name}, {side} end"
    checks.hold((base.bytes_in, base.bytes_out) == (SIZE * COUNT,) * 2, f"{name}: the traced conversation is the whole one",
                f"{base.bytes_in} and {base.bytes_out} bytes")
    checks.hold((now.bytes_in, now.bytes_out) == (base.bytes_in, base.bytes_out), f"{name}: no extra byte in the stream",
                f"in {base.bytes_in} -> {now.bytes_in}, out {base.bytes_out} -> {now.bytes_out}")
    checks.hold(about_equal(base.data, now.data, slack), f"{name}: the same calls move the data", differences(base.data, now.data))
    pick = lambda t, names, calls: collections.Counter(    # noqa: E731
        {n: sum(c.name == n for c in calls(t)) for n in names})
    waits_a, waits_b = (collections.Counter(WAITS[c.name] for c in t.calls if c.name in WAITS and not _LOOK.search(c.args))
                        for t in (base, now))
    checks.hold(all(waits_b[n] <= waits_a[n] + slack for n in waits_b), f"{name}: no added wait", differences(waits_a, waits_b))
    threads_a, threads_b = (pick(t, THREADS, lambda t: t.all) for t in (base, now))
    checks.hold(threads_a == threads_b, f"{name}: no added thread or process", differences(threads_a, threads_b))
    keep_a, keep_b = (pick(t, KEEPERS, lambda t: t.all) for t in (base, now))
    checks.hold(keep_a == keep_b, f"{name}: no eventfd, memory file or pipe more", differences(keep_a, keep_b))
    checks.hold(now.open_at_end == base.open_at_end, f"{name}: the same descriptors at the end",
                f"{base.open_at_end} -> {now.open_at_end}")
    if preloaded:
        longest = max((life for what, life in now.helpers if what == "socket AF_UNIX"), default=0)
        checks.hold(longest <= NAME_LIFE + SLACK, f"{name}: names live {NAME_LIFE * 1e3:.0f} ms at most",
                    f"{longest * 1e3:.0f} ms")
        extra = sum(now.names.values()) - sum(base.names.values())
        checks.hold(extra <= EXTRA_CALLS, f"{name}: {extra} calls more in all, at most {EXTRA_CALLS} "
                    f"({differences(base.names, now.names) or 'none'})")
        checks.hold(bool(now.helpers), f"{name}: the library was there and looked for its peer",
                    "no rendezvous was tried: this run shows nothing")
    else:
        checks.hold(about_equal(base.names, now.names, slack), f"{name}: the very same system calls", differences(base.names, now.names))


def stall(directory, program, server_pre, client_pre):
    """The longest round trip in ms, without strace, best of five."""
    best = None
    for _ in range(5):
        server = common.start([ccases.binary(program), "server", "127.0.0.1", str(SIZE)],
                              env=common.environment(server_pre), stdout=subprocess.PIPE, text=True)
        port = server.stdout.readline().split()[1]
        client = common.start([ccases.binary(program), "client", "127.0.0.1", port, str(SIZE), "count", str(COUNT)],
                              env=common.environment(client_pre), stdout=subprocess.PIPE, text=True)
        common.wait(client, 60)
        common.wait(server, 60)
        took = ccases.pairs(client.stdout.read())["max_ns"] / 1e6
        best = took if best is None else min(best, took)
    return best


def nginx_counts(directory, preload, curl_preload):
    """Calls that would start threads or keep descriptors, of master and workers over three downloads."""
    log = f"{directory}/nginx.strace"
    lib = ["-E", f"LD_PRELOAD={common.LIB}"] if preload else []
    place = common.workplace("sluice-plainpeer-")
    # nginx -c is started through strace: same environment, one more process.
    server = apps.Nginx(common.environment(False), {"file": 3_000_000}, directory=place, workers=1,
                        wrapper=["strace", "-f", "-ttt", "-yy", "-s", "8", "-o", log,
                                 "-e", f"trace={','.join(THREADS + KEEPERS + ('socket',))}", *lib])
    with open(f"{place}/www/file", "rb") as f:
        want = f.read()
    for _ in range(3):
        done = common.start(["curl", "-sS", "--fail", server.url("file")], env=common.environment(curl_preload),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        got, err = common.communicate(done, 60)
        if done.returncode != 0 or got != want:
            raise Failure(f"curl: status {done.returncode}, {len(got)} bytes: {err[-200:]!r}")
    # The signal is for nginx, not for strace around it.
    os.kill(common.children_of(server.child.pid)[0], signal.SIGQUIT)
    common.wait(server.child, 20)
    return collections.Counter(c.name for c in parse(log) if c.name in THREADS + KEEPERS)


def main():
    common.need_file(common.LIB, "make build")
    common.need_tools("strace", "nginx", "curl")
    common.build_benches()
    common.adopt_orphans()
    common.private_network()
    directory = common.workplace("sluice-plainpeer-")
    checks = Checks()

    def guarded(what, run):
        try:
            return run()
        except Failure as e:
            checks.hold(False, what, str(e))
            if isinstance(e, common.Hang):
                print(common.backtraces([p for c in common._children.values() for p in common.tree(c.pid)]))
            common.end_trees()
            return None

    for program, way in (("pp", "blocking"), ("epp", "epoll")):
        base = guarded(way, lambda: conversation(directory, program, False, False))
        for server_pre, client_pre in ((True, False), (False, True)):
            name = f"{way}, {'server' if server_pre else 'client'} preloaded"
            now = guarded(name, lambda: conversation(directory, program, server_pre, client_pre))
            if base and now:
                judge(checks, f"{name}: server", base["server"], now["server"], server_pre, BY_CHANCE[program])
                judge(checks, f"{name}: client", base["client"], now["client"], client_pre, BY_CHANCE[program])
            longest = guarded(name, lambda: stall(directory, program, server_pre, client_pre))
            if longest is not None:
                checks.hold(longest < LONGEST_MS, f"{name}: no round trip takes {LONGEST_MS} ms", f"{longest:.0f} ms")
    base = guarded("nginx", lambda: nginx_counts(directory, False, False))
    for server_pre in (True, False):
        name = f"nginx and curl, {'nginx' if server_pre else 'curl'} preloaded"
        now = guarded(name, lambda: nginx_counts(directory, server_pre, not server_pre))
        if base and now:
            checks.hold(base == now, f"{name}: nginx has no thread and keeps no descriptor more", differences(base, now))
    left = common.leftovers()
    checks.hold(not left, "nothing left behind", "; ".join(left))
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
