"""Bad settings and narrow places: the program works all the same. Started by scripts/badinput.sh.

Everywhere two programs (benches/soak.c) exchange streams in which every byte is checked. Where the
link cannot be had, the library's report must say so: nothing accelerated, and a reason that is not
`none`. What acceleration looks like here is tried first, so that its absence means something.
Last line: N passed, N failed."""

import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import common
from common import Failure, Hang

SOAK = os.path.join(common.BIN, "soak")
BOX = os.path.join(common.BIN, "box")
HOST = "127.0.0.1"
# Of the longer stream. A stream that fits into TCP's buffers may be over before two ends have met.
SIZE = 48 << 20
COUNT = 2
# glibc's loader and exit may use these depending on the moment; a plain run shows the rest.
ALWAYS = {"exit_group", "exit", "rt_sigreturn", "restart_syscall", "futex", "brk", "execve"}


class Pair:
    """Server and client of one exchange; each may be wrapped in a command and have settings."""

    def __init__(self, place):
        self.place, self.number = place, 0

    def run(self, wrap=None, settings=None, preload=(True, True), stderr=subprocess.PIPE, before_exec=None,
            look=None, mode="lt"):
        """wrap, settings, preload: for (server, client). ({role: counters}, {role: stderr text})
        `mode` is soak's: with `threads` the programs make some.
        `look(server, client)` is called while both hold their connections, half of the bytes moved."""
        wrap, settings = wrap or ([], []), settings or ({}, {})
        self.number += 1
        reports, errors, children = {}, {}, []
        roles = ("server", "client")
        for i, role in enumerate(roles):
            reports[role] = common.fresh_report(f"{self.place}/report-{self.number}-{role}")
            env = common.environment(preload[i], settings[i], reports[role])
            children.append(self._start([*wrap[i], SOAK, role, HOST, mode], env, stderr, before_exec))
            if role == "server":
                port = self._line(children[0]).split()
                if port[:1] != ["port"]:
                    raise Failure(f"server said {port}: {children[0].stderr.read()[-300:] if children[0].stderr else ''}")
        server, client = children
        client.stdin.write(f"go {port[1]} {self.number * 100} {COUNT} {SIZE} {SIZE // 2} 0 {int(bool(look))}\n")
        client.stdin.flush()
        if look:
            said = self._line(client), self._line(client)
            if said != ("started\n", "holding\n"):
                raise Failure(f"the client said {said}")
            look(server, client)
            client.stdin.write("\n")
        client.stdin.close()
        text = self._all(client, "client", 30)
        server.stdin.close()
        self._all(server, "server", 30)
        if text.count(" end=ok ") != COUNT or "WRONG" in text or not text.endswith("done\n"):
            raise Failure(f"the exchange went wrong: {text.strip()}")
        for child, role in zip(children, roles):
            errors[role] = child.stderr.read() if child.stderr else ""
        return ({role: common.read_report(path) for role, path in reports.items()}, errors)

    def _start(self, cmd, env, stderr, before_exec):
        if before_exec:
            # Through a shell that arranges descriptors, which Popen itself would undo.
            cmd = ["sh", "-c", f'{before_exec}; exec "$@"', "sh", *cmd]
        return common.start(cmd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)

    def _line(self, child):
        return child.stdout.readline()

    def _all(self, child, role, limit):
        common.wait(child, limit)
        if child.returncode != 0:
            status = child.returncode
            what = signal.Signals(-status).name if status < 0 else f"status {status}"
            raise Failure(f"{role}: {what}: {(child.stderr.read() if child.stderr else '').strip()[-300:]}")
        return child.stdout.read()


def expect(condition, text):
    if not condition:
        raise Failure(text)


def on_link(counters):
    for role, c in counters.items():
        expect(c.accelerated == COUNT, f"{role}: {c}")


def on_tcp(counters):
    for role, c in counters.items():
        expect(c.connections == COUNT, f"{role}: {COUNT} connections expected in the report, {c}")
        expect(c.accelerated == 0 and c.link == 0, f"{role}: accelerated: {c}")
        expect("none" not in c.reasons, f"{role}: no reason given for staying on TCP: {c}")


def silent(errors):
    for role, text in errors.items():
        expect(text == "", f"{role} wrote to stderr: {text!r}")


def one_line(errors, *names):
    """Exactly one line at each end, which names these variables."""
    for role, text in errors.items():
        expect(text.endswith("\n") and text.count("\n") == 1, f"{role}: not exactly one line on stderr: {text!r}")
        expect(text.startswith("sluice: "), f"{role}: the line does not say whose it is: {text!r}")
        for name in names:
            expect(name in text, f"{role}: the line does not name {name}: {text!r}")
        expect(all(c.isprintable() or c == "\n" for c in text), f"{role}: unprintable: {text!r}")


# --- settings ---

def no_settings(pair):
    counters, errors = pair.run()
    on_link(counters)
    silent(errors)


def good_settings(pair):
    good = {"SLUICE_UPGRADE": "64K", "SLUICE_MODE": "indirect", "SLUICE_SPIN_US": "0"}
    counters, errors = pair.run(settings=(good, good))
    on_link(counters)
    silent(errors)


def turned_off(pair):
    counters, errors = pair.run(settings=({"SLUICE_UPGRADE": "off"},) * 2)
    # With nothing to do it need not even keep a record.
    for role, c in counters.items():
        expect(c.link == 0 and set(c.reasons) <= {"off"}, f"{role}: {c}")
    silent(errors)


BAD = [("SLUICE_UPGRADE", "banana"), ("SLUICE_UPGRADE", "-1"), ("SLUICE_UPGRADE", "99999999999999999999"),
       ("SLUICE_UPGRADE", "eager "), ("SLUICE_UPGRADE", "\udcff\udcfe\n\x1b[31m"), ("SLUICE_UPGRADE", "x" * 100_000),
       ("SLUICE_MODE", "fast"), ("SLUICE_MODE", "DIRECT"), ("SLUICE_SPIN_US", "abc"), ("SLUICE_SPIN_US", "-5"),
       ("SLUICE_SPIN_US", "1e9"), ("SLUICE_FAULT", "demote:1"), ("SLUICE_UPGRAED", "eager"), ("SLUICE_", "1")]


def bad_setting(name, value):
    def run(pair):
        counters, errors = pair.run(settings=({name: value},) * 2)
        # The default stands: accelerated after 32 KiB.
        on_link(counters)
        one_line(errors, name)
    run.__name__ = f"bad setting {name}={value[:20]!r}"
    return run


def several_bad(pair):
    bad = {"SLUICE_UPGRADE": "banana", "SLUICE_MODE": "fast", "SLUICE_NONSENSE": "1"}
    counters, errors = pair.run(settings=(bad, bad))
    on_link(counters)
    one_line(errors, *bad)


def stderr_is_socket(pair):
    """Nothing is ever written there: it may be the program's connection."""
    ours, theirs = socket.socketpair()
    bad = {"SLUICE_UPGRADE": "banana", "SLUICE_NONSENSE": "1"}
    counters, _ = pair.run(settings=(bad, bad), stderr=theirs.fileno())
    theirs.close()
    ours.settimeout(5)
    got = ours.recv(1000)
    ours.close()
    expect(got == b"", f"written to a socket: {got!r}")
    on_link(counters)


def stderr_is_tcp(pair):
    """The same with a TCP connection, as inetd passes it."""
    with socket.create_server((HOST, 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    counters, _ = pair.run(settings=({"SLUICE_MODE": "fast"},) * 2, stderr=theirs.fileno())
    theirs.close()
    ours.settimeout(5)
    got = ours.recv(1000)
    ours.close()
    expect(got == b"", f"written to a connection: {got!r}")
    on_link(counters)


def stderr_is_closed(pair):
    """Descriptor 2 is then the program's first socket or epoll set: every byte of it is checked."""
    counters, _ = pair.run(settings=({"SLUICE_MODE": "fast", "SLUICE_NONSENSE": "1"},) * 2, before_exec="exec 2>&-")
    on_link(counters)


def report_nowhere(pair):
    settings = {"SLUICE_REPORT": "/nonexistent/directory/report"}
    _, errors = pair.run(settings=(settings, settings))
    one_line(errors, "SLUICE_REPORT", "/nonexistent")


CHDIR = """
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(listener.getsockname())
theirs, _ = listener.accept()
os.chdir("/")
ours.sendall(b"few")
assert theirs.recv(9) == b"few"
"""


def report_of_a_wanderer(pair):
    """The file stays where it was named, and has the connections below the threshold: both ends of it, no listener."""
    place = os.path.join(pair.place, "wanderer")
    os.mkdir(place)
    child = common.start([sys.executable, "-c", CHDIR], env=common.environment(True, None, "report"), cwd=place,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, err = common.communicate(child, 30)
    expect(child.returncode == 0 and err == "", f"status {child.returncode}: {err}")
    lines = common.report_lines(os.path.join(place, "report"))
    expect([line["reason"] for line in lines] == ["below-threshold"] * 2, f"{lines}")
    expect(lines[0]["local"] == lines[1]["peer"] and lines[1]["local"] == lines[0]["peer"], f"{lines}")


def log_of_upgrades(pair):
    settings = {"SLUICE_LOG": "info"}
    counters, errors = pair.run(settings=(settings, settings))
    on_link(counters)
    for role, text in errors.items():
        hits = re.findall(r"^sluice: fd \d+ 127\.0\.0\.1:\d+ -> 127\.0\.0\.1:\d+: on shared memory after \d+ bytes$", text, re.M)
        expect(len(hits) >= COUNT, f"{role}: {COUNT} upgrades expected: {text!r}")


# --- two files of the library ---

def another_file(pair):
    other = os.path.join(pair.place, "other", "libsluice.so")
    if not os.path.exists(other):
        os.mkdir(os.path.dirname(other))
        shutil.copy(common.LIB, other)
    return other


def two_copies(pair):
    """The first one works, the other says that it does nothing; `sluice stat` finds the first one's counters."""
    def look(server, client):
        for child in (server, client):
            seen = common.stat(child.pid)
            expect(len(seen) == COUNT, f"{len(seen)} connections shown, {COUNT} expected")

    other = another_file(pair)
    for first, second in ((common.LIB, other), (other, common.LIB)):
        settings = {"LD_PRELOAD": f"{first}:{second}", "SLUICE_UPGRADE": "eager"}
        counters, errors = pair.run(settings=(settings, settings), look=look)
        on_link(counters)
        one_line(errors, f"{first} works", f"{second} does nothing")


def two_copies_complain_once(pair):
    settings = {"LD_PRELOAD": f"{common.LIB}:{another_file(pair)}", "SLUICE_MODE": "fast"}
    counters, errors = pair.run(settings=(settings, settings))
    on_link(counters)
    for role, text in errors.items():
        expect(text.count("\n") == 2 and text.count("SLUICE_MODE") == 1, f"{role}: {text!r}")


def one_file_twice(pair):
    settings = {"LD_PRELOAD": f"{common.LIB}:{common.LIB}"}
    counters, errors = pair.run(settings=(settings, settings))
    on_link(counters)
    silent(errors)


# --- narrow places ---

def system_calls():
    """{name: number} of this machine."""
    out = {}
    for header in ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h",
                   "/usr/include/aarch64-linux-gnu/asm/unistd.h", "/usr/include/asm-generic/unistd.h"):
        if os.path.exists(header):
            with open(header) as f:
                for name, number in re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", f.read(), re.M):
                    out.setdefault(name, int(number))
            return out
    raise Failure("no header with system call numbers (libc6-dev)")


def refused(*calls, number=errno.EPERM):
    """Words before a command: these system calls fail, each `name` or `name=first argument`."""
    numbers = system_calls()
    parts = (call.partition("=") for call in calls)
    words = [f"{numbers[name]}{at}{value}" for name, at, value in parts]
    return [BOX, "refuse", str(number), ",".join(words), "--"]


def no_memfd(number=errno.EPERM):
    return refused("memfd_create", number=number)


# Filters: the programs make threads, so a child may try whether the filter kills, and the library then
# meets the refusal itself.

def memfd_refused(pair):
    for number in (errno.EPERM, errno.ENOSYS, errno.EMFILE):
        wrap = no_memfd(number)
        counters, errors = pair.run(wrap=(wrap, wrap), mode="threads")
        on_tcp(counters)
        silent(errors)


def shown_on_tcp(reason):
    """`sluice stat` on both living programs: every connection is on TCP, for this reason."""
    def look(server, client):
        for child in (server, client):
            # `box` has become the program: same process.
            seen = common.stat(child.pid)
            expect(len(seen) == COUNT, f"{len(seen)} connections shown, {COUNT} expected")
            for c in seen:
                expect(c["transport"] == "tcp" and c["reason"] == reason, f"shown as {c}, {reason} expected")
    return look


def memfd_refused_as_stat_shows_it(pair):
    wrap = no_memfd()
    counters, _ = pair.run(wrap=(wrap, wrap), look=shown_on_tcp("memfd-refused"), mode="threads")
    on_tcp(counters)


def memfd_refused_to_one(pair):
    """To one end only: whatever becomes of it, the streams are right."""
    wrap = no_memfd()
    for wraps in ((wrap, []), ([], wrap)):
        _, errors = pair.run(wrap=wraps, mode="threads")
        silent(errors)


def eventfd_refused(pair):
    wrap = refused("eventfd2", number=errno.EMFILE)
    counters, errors = pair.run(wrap=(wrap, wrap), mode="threads")
    on_tcp(counters)
    silent(errors)


def without_domain(domain):
    """socket() of this domain fails as where it is not built in, or a sandbox forbids it."""
    return refused(f"socket={int(domain)}", number=errno.EAFNOSUPPORT)


def netlink_refused(pair):
    """As under systemd's RestrictAddressFamilies: there is /proc/net/tcp. The programs make threads, so a child
    may try whether the filter kills."""
    wrap = without_domain(socket.AF_NETLINK)
    counters, errors = pair.run(wrap=(wrap, wrap), mode="threads")
    on_link(counters)
    silent(errors)


def filtered_and_alone(pair):
    """Under a filter nobody knows what it kills for. A program that makes neither threads nor processes has not
    shown that a child may be made to try, so it stays on TCP and `sluice stat` knows why."""
    wrap = without_domain(socket.AF_NETLINK)
    counters, errors = pair.run(wrap=(wrap, wrap), look=shown_on_tcp("seccomp-fatal"))
    on_tcp(counters)
    silent(errors)


def unix_sockets_refused(pair):
    wrap = without_domain(socket.AF_UNIX)
    counters, errors = pair.run(wrap=(wrap, wrap), mode="threads")
    on_tcp(counters)
    silent(errors)


def passing_descriptors_refused(pair):
    wrap = refused("sendmsg")
    counters, errors = pair.run(wrap=(wrap, wrap), mode="threads")
    on_tcp(counters)
    silent(errors)


def mounted(script):
    """Words before a command: in mounts of its own, after this script, whose process becomes it."""
    # In a chroot `/` is no mount; what matters is that nothing of this leaves the namespace.
    private = "{ mount --make-rprivate / || mount --make-private /proc; } 2>/dev/null"
    script = f'{private} && {script} && exec "$@"'
    return ["unshare", "-m", "--propagation", "unchanged", "sh", "-c", script, "sh"]


NO_PROC = mounted("mount -t tmpfs none /proc")


def proc_not_mounted(pair):
    if os.geteuid() != 0:
        raise Skip("needs root")
    counters, errors = pair.run(wrap=(NO_PROC, NO_PROC))
    on_tcp(counters)
    silent(errors)


def killing_filter(pair):
    """Only what the plain programs call is allowed; anything else kills. The library must not be the
    first to try something new."""
    numbers = system_calls()
    wraps = []
    # The library itself is found and mapped by the loader, by calls that a plain start makes too.
    for used in plain_calls(pair):
        known = sorted(numbers[n] for n in used | ALWAYS if n in numbers)
        wraps.append([BOX, "allow", ",".join(map(str, known)), "--"])
    pair.run(wrap=tuple(wraps), preload=(False, False))     # the filter itself is sound
    counters, errors = pair.run(wrap=tuple(wraps))
    on_tcp(counters)
    silent(errors)


def filter_that_kills_for_scheduling(pair):
    """A usual filter of services kills for calls that the library can do without: those about
    scheduling. All that an upgrade needs is allowed, so the connections leave TCP."""
    numbers = system_calls()
    calls = [numbers[n] for n in ("sched_setattr", "sched_setscheduler", "setpriority", "ioprio_set")]
    wrap = [BOX, "kill", ",".join(map(str, calls)), "--"]
    counters, errors = pair.run(wrap=(wrap, wrap), mode="threads")
    on_link(counters)
    silent(errors)


def plain_calls(pair):
    """(server's, client's) names of the system calls that the plain programs make."""
    logs = [f"{pair.place}/strace-{role}" for role in ("server", "client")]
    pair.run(wrap=tuple(["strace", "-f", "-qq", "-o", log] for log in logs), preload=(False, False))
    out = []
    for log in logs:
        with open(log, errors="replace") as f:
            out.append(set(re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>)", f.read(), re.M)))
    return out


def few_descriptors(pair):
    """A client that opens connections until it may not: it gets as many as without the library, but
    for the tenth of the limit that is ours to use, and every one of them works."""
    limit = 64
    opened = {}
    for preload in (False, True):
        server_report = common.fresh_report(f"{pair.place}/report-few-server-{preload}")
        report = common.fresh_report(f"{pair.place}/report-few-{preload}")
        server = common.start([os.path.join(common.BIN, "fan"), "server", HOST],
                              env=common.environment(preload, None, server_report), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        port = server.stdout.readline().split()[1]
        client = common.start([BOX, "limit", str(limit), "--", os.path.join(common.BIN, "full"), HOST, port],
                              env=common.environment(preload, None, report), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        out, err = common.communicate(client, 60)
        common.wait(server, 30)
        expect(client.returncode == 0 and server.returncode == 0,
               f"status {client.returncode}, {server.returncode}: {err.strip()} {server.stderr.read().strip()}")
        opened[preload] = int(out.split("=")[1])
        if preload:
            expect(err == "", f"stderr: {err!r}")
            counters = common.read_report(report)
            expect(counters.connections == opened[True], f"{counters}, {opened[True]} were opened")
            expect(counters.reasons.get("none", 0) <= counters.accelerated, f"neither accelerated nor a reason: {counters}")
    expect(opened[True] >= opened[False] - limit // 10,
           f"{opened[True]} connections within {limit} descriptors, {opened[False]} without the library")


def no_descriptor_left(pair):
    """The limit is what the client itself needs: epoll set, two connections, and 0 to 2."""
    wrap = [BOX, "limit", str(3 + 1 + COUNT), "--"]
    counters, errors = pair.run(wrap=([], wrap))
    on_tcp({"server": counters["server"]})
    # The client's library may find no descriptor for its report either.
    expect(counters["client"].link == 0, f"client: accelerated: {counters['client']}")
    silent(errors)


class Skip(Exception):
    pass


TESTS = [no_settings, good_settings, turned_off, *(bad_setting(n, v) for n, v in BAD), several_bad, stderr_is_socket,
         stderr_is_tcp, stderr_is_closed, report_nowhere, report_of_a_wanderer, log_of_upgrades, two_copies,
         two_copies_complain_once, one_file_twice, memfd_refused, memfd_refused_to_one, eventfd_refused,
         memfd_refused_as_stat_shows_it, netlink_refused, filtered_and_alone, unix_sockets_refused, passing_descriptors_refused, proc_not_mounted, killing_filter,
         filter_that_kills_for_scheduling, few_descriptors, no_descriptor_left]


def main():
    common.need_file(common.LIB, "make build")
    common.need_file(common.CLI, "make build")
    common.need_tools("strace", "unshare")
    common.build_benches()
    common.adopt_orphans()
    common.private_network()
    pair = Pair(common.workplace("sluice-badinput-"))
    passed = failed = 0
    for test in TESTS:
        name = test.__name__ if test.__name__.startswith("bad setting") else test.__name__.replace("_", " ")
        if len(sys.argv) > 1 and sys.argv[1].replace("_", " ") not in name.replace("_", " "):
            continue
        wrong = None
        try:
            test(pair)
        except Skip as e:
            print(f"skipped {name}: {e}", flush=True)
            continue
        except Failure as e:
            wrong = str(e)
            living = [c for c in common._children.values() if c.returncode is None]
            if isinstance(e, Hang):
                wrong = f"HANG: {e}\n" + common.backtraces([p for c in living for p in common.tree(c.pid)])
            for child in living:
                common.end(child, signal.SIGKILL)
        left = common.leftovers()
        if left and not wrong:
            wrong = f"left behind: {'; '.join(left)}"
        if wrong:
            failed += 1
            print(f"FAILED  {name}: {wrong}", flush=True)
        else:
            passed += 1
            print(f"ok      {name}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
