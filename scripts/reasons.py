#!/usr/bin/env python3
"""Does each end of a connection say why it is on TCP, and do both say the same where one can tell
the other?

Two programs talk (scripts/lib/talkers.py); one of them, in turn, does what keeps a connection on
TCP, or is in a place that does. What SLUICE_REPORT says at both ends, in code and in whose reason
it is, is compared with the tables below. `ELSEWHERE` says where the few reasons are tested that two
such programs cannot bring about, and no reason may be missing from all.

  scripts/reasons.py [--filter REGEX] [--list]
  scripts/guest/run -- scripts/reasons.py --hosts

The last line is `N passed, N failed`.
"""

import argparse
import contextlib
import os
import re
import select
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import badinput     # noqa: E402
from badinput import mounted, refused   # noqa: E402
import common       # noqa: E402
import hosts        # noqa: E402
import talkers      # noqa: E402
from hostile import peer    # noqa: E402

# Debian's own, which every user may run.
PYTHON = "/usr/bin/python3"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


# --- where an end runs: words before its command ---

OVERCOMMIT = mounted("echo 2 > $PLACE/two"
                     " && mount --bind $PLACE/two /proc/sys/vm/overcommit_memory")
# The device gives the program one object.
ONE_OBJECT = mounted("cd $PLACE && mkdir -p group && mount -t cgroup2 none group && cd group"
                     " && echo +rdma > cgroup.subtree_control && mkdir -p one"
                     " && echo ${GUEST_DEVICE}_ha hca_object=1 > one/rdma.max"
                     " && echo $$ > one/cgroup.procs && cd /")
PROCESSES_ALONE = mounted("mount -t proc -o subset=pid proc /proc")


class Case:
    """`own` is what the end `at` says, `other` what the other end does; None: that has no line. A
    reason that begins with a star is the other's, heard; "a|b" beside "c|d" is a and c, or
    b and d; a alone goes with each.

    `within` are words before the end's command; `both`: that, the set-up, trick and settings are of
    both ends. `live`: the ends do not end, so `sluice stat` is asked."""

    def __init__(self, own, other, trick="none", talk="rounds", at="server", setup="none",
                 within=(), both=False, live=False, **settings):
        self.said = [own, other]
        self.trick, self.talk, self.at, self.setup = trick, talk, at, setup
        self.within, self.both, self.live, self.settings = list(within), both, live, settings
        as_another = trick in ("peer-owner", "tcp-repair")
        self.needs_root = as_another or self.within[:1] in (["unshare"], ["setpriv"])


class OddPeer(Case):
    """A server's `own` reason, and the number of that which it tells its peer if that claims so."""

    def __init__(self, own, number, **claim):
        super().__init__(own, number, talk="answers", SLUICE_UPGRADE="eager")
        self.claim = claim


def heard(code, **kw):
    """The end that does it says so, and the other end repeats it."""
    return Case(code, "*" + code, **kw)


def tricks(*codes, **kw):
    return {code: heard(code, trick=code, **kw) for code in codes}


# Looks for its peer after a message or two.
EARLY = {"SLUICE_UPGRADE": "32K"}
CASES = {
    **tricks("msg-oob", "attach-filter", "zerocopy", "timestamping", "pacing-rate", "signal-driven",
             "peek-off", "zerocopy-receive", "splice", "fdopen", "dprintf",
             "raw-syscall", "passed", "preadv2", "shared", "tcp-md5", "not-hooked", "io-uring",
             "set-elsewhere", "send-buffer-small", "tcp-repair"),
    "below-threshold": Case("below-threshold", "below-threshold", talk="little"),
    "turned off": Case(None, "no-answer", SLUICE_UPGRADE="off"),
    "without Sluice": Case(None, "no-answer", LD_PRELOAD=""),
    "policy": heard("policy", SLUICE_CONFIG="leave"),
    "bounded": heard("bounded", SLUICE_CONNECTIONS="0"),
    # It leaves TCP, and the one that is read from closes it.
    "half closed": Case("none", "*close", talk="one way"),
    "ended": Case("*shutdown", "shutdown"),
    "killed": Case("peer-died", None, talk="killed"),
    "fault": Case("fault", "*fault", SLUICE_FAULT="demote:1"),
    "peer-owner": Case("peer-owner", "peer-owner", trick="peer-owner"),
    "name-taken": Case("name-taken", "name-taken", trick="name-taken", at="client"),
    # The new program has the connection, and the library does not see it.
    "executed early": Case("below-threshold", "no-answer", trick="executes"),
    # In the middle of the connection.
    **tricks("registered-closed", "exec"),
    "close": heard("close", trick="close", at="client"),
    "fork": heard("fork", trick="fork"),
    "exit": Case("exit", "*exit", trick="exit", at="client"),
    "linger-reset": heard("linger-reset", trick="linger-reset", at="client"),
    "disconnected": heard("disconnected", trick="disconnected", at="client"),
    # Where the programs run.
    "memfd-refused": Case("memfd-refused|*memfd-refused", "*memfd-refused|memfd-refused",
                          setup="thread", within=refused("memfd_create"), both=True),
    # Those may tell nobody.
    "seccomp-fatal": Case("seccomp-fatal", "no-answer", within=refused("memfd_create"),
                          talk="stays", live=True),
    "sandboxed": Case("sandboxed", "no-answer", setup="sandbox", talk="stays", live=True),
    "thread-refused": heard("thread-refused", within=[*NOBODY, "prlimit", "--nproc=1:1"]),
    "descriptor-limit": Case("descriptor-limit", "no-answer", within=["prlimit", "--nofile=8:8"]),
    "mmap-refused": heard("mmap-refused", within=["prlimit", f"--as={48 << 20}"]),
    "overcommit": heard("overcommit", within=OVERCOMMIT),
    "proc-missing": Case("proc-missing", "no-answer", within=badinput.NO_PROC),
    "netlink-refused": Case("netlink-refused", "no-answer", setup="thread",
                            within=PROCESSES_ALONE + refused(f"socket={int(socket.AF_NETLINK)}")),
    "peer-hidden": Case("peer-hidden", "peer-hidden", setup="not-dumpable", within=NOBODY,
                        both=True),
    "peer-closed": Case("meeting", "peer-closed", talk="closes early", **EARLY),
    "not accepted": Case("not-established", None, setup="accepts-late", talk="unread", both=True,
                         at="client", live=True, SLUICE_UPGRADE="eager"),
    "link-full": Case("*link-full|link-full", "link-full|*link-full", setup="group", both=True,
                      at="client", SLUICE_RING="4M", **EARLY),
    "limit": Case("*limit|limit", "limit|*limit", setup="crowd", both=True, at="client", **EARLY),
    "direct-no-advert": Case("direct-no-advert", "none|*direct-no-advert", at="client",
                             SLUICE_MODE="direct"),
    # Passing ones.
    "ring-full": Case("ring-full", "*ring-full", talk="never read", at="client", live=True),
    "meeting": Case("meeting", "below-threshold", talk="unread", at="client", live=True, **EARLY),
    "peek-waits": Case("peek-waits", "met", talk="peeks", both=True, live=True, **EARLY),
    "met": Case("met", "met", talk="one message", both=True, live=True, **EARLY),
}
# Between two hosts, of scripts/guest/run: the server is on one, the client on the other.
BETWEEN_HOSTS = {
    "peer-remote": Case("peer-remote", "no-answer|meeting", SLUICE_DEVICE="none-such"),
    "memlock": Case("memlock", "no-answer|meeting",
                    within=["setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=65536"]),
    "device-refused": Case("device-refused", "no-answer|meeting", within=ONE_OBJECT),
    "forked-rdma": Case("forked-rdma", "no-answer|meeting", setup="forks-later", both=True,
                        at="client"),
    "idle": Case("idle|peer-demoted|idle", "peer-demoted|idle|idle", setup="few", both=True,
                 talk="rests"),
    "link-lost": Case("link-lost", "link-lost", SLUICE_FAULT="link:1"),
    "peer-demoted": Case("msg-oob", "peer-demoted", trick="urgent"),
    "tcp-ulp": Case("tcp-ulp", "tcp-ulp", trick="tcp-ulp", both=True),
}
# The client is scripts/lib/hostile/peer.py. It claims this when it is challenged, and is told a
# reason by this number; the last one speaks out of turn, on a link.
ODD_PEERS = {
    "version-mismatch": OddPeer("version-mismatch", 21, version=peer.VERSION + 1),
    "layout-mismatch": OddPeer("layout-mismatch", 22, layout=peer.LAYOUT + 1),
    "word-size-mismatch": OddPeer("word-size-mismatch", 23, word=4),
    "proof-failed": OddPeer("proof-failed", 20, fd=0),
    "peer-hostile": OddPeer("peer-hostile", None),
}
# Why no two programs bring the others about.
ELSEWHERE = {
    "none": "no reason",
    "writer-blocked": "a signal handler of a thread, at one moment of that thread's own call",
    "panic": "a defect",
    "off": "of a process, not of a connection",
    "far": "a link that is slower than TCP, over a long path: scripts/guest/distance",
    "path": "a ring that is too short for its path: scripts/guest/distance",
    "file-cut": "a file that is cut while its pages are under way: scripts/guest/pages",
    "makes-room": "many connections and little memory: scripts/guest/memlock",
    "too-many-names": "64 searches within 2 ms: a unit test of the engine",
}


def codes():
    """All that the tool knows."""
    done = subprocess.run([common.CLI, "reasons"], stdout=subprocess.PIPE, text=True, check=True)
    return {line for line in done.stdout.splitlines() if re.fullmatch("[a-z0-9-]+", line)}


def word(reason, of):
    return ("*" if of == "peer" else "") + reason


def said(path, port):
    """What an end has reported of the first connection with this port that it closed, with a star
    if it is the other's. Of a parent and its child both say something."""
    lines = [line for line in common.report_lines(path)
             if str(port) in (line["local"].rpartition(":")[2], line["peer"].rpartition(":")[2])]
    words = [word(line["reason"], line["reason_of"]) for line in lines
             if (line["local"], line["peer"]) == (lines[0]["local"], lines[0]["peer"])]
    return " ".join(dict.fromkeys(words)) or None


def shown(pid, port):
    """The same of a living process, by `sluice stat`. One that may ask nobody knows no port."""
    words = [word(c["reason"], c["reason_of"]) for c in common.stat(pid)
             if {str(port), "0"} & {c["local"].rpartition(":")[2], c["peer"].rpartition(":")[2]}]
    return " ".join(words) or None


def start(case, role, where, place):
    address, host = where[role]
    mine = case.both or role == case.at
    settings = dict(case.settings) if mine else {}
    if "SLUICE_CONFIG" in settings:
        settings["SLUICE_CONFIG"] = f"{place}/leave.conf"
    library = common.FAULT_LIB if "SLUICE_FAULT" in settings else common.LIB
    preload = settings.pop("LD_PRELOAD", True) != ""
    report = common.fresh_report(f"{place}/{role}")
    env = common.environment(preload, settings | (hosts.PEERS if host else {}), report, library)
    epoll = select.epoll()
    os.set_inheritable(epoll.fileno(), True)
    env["EPOLL_SET"] = str(epoll.fileno())
    # These words lead to the program, whose process is the same, and get nothing of the library's.
    within = ["ip", "netns", "exec", host] if host else []
    within += case.within if mine else []
    does = [case.setup, case.trick] if mine else ["none", "none"]
    program = [PYTHON, os.path.abspath(talkers.__file__), role, "%s:%d" % address, *does, case.talk]
    bare = common.environment(False) | {"PLACE": place}
    variables = (f"{name}={value}" for name, value in env.items())
    says = subprocess.PIPE if role == "server" else None
    return common.start([*within, "env", "-i", *variables, *program], env=bare, close_fds=False,
                        stdout=says, text=True)


@contextlib.contextmanager
def plain_server(port):
    """A server without the library that accepts, and reads nothing."""
    with socket.create_server(("127.0.0.1", port), backlog=100) as listener:
        accepted = []

        def accept():
            try:
                while True:
                    accepted.append(listener.accept())
            except OSError:
                pass
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for s, _ in accepted:
                s.close()


def is_expected(case, got):
    """As one of the pairs of what the two ends may say."""
    own, other = (str(said).split("|") for said in case.said)
    own = own * len(other) if len(own) == 1 else own
    return tuple(map(str, got)) in zip(own, other)


def play(case, place, between_hosts):
    port = common.free_port()
    at = (hosts.address("ha") if between_hosts else "127.0.0.1", port)
    sides = hosts.SIDES if between_hosts else (None, None)
    where = {role: (at, side) for role, side in zip(("server", "client"), sides)}
    order = (case.at, "client" if case.at == "server" else "server")
    ends = {}
    # The next port is for other connections of the same program.
    with plain_server(port + 1):
        for role in ("server", "client"):
            ends[role] = start(case, role, where, place)
            if role == "server":
                ends[role].stdout.readline()
        if case.live:
            return wait_until(lambda: [shown(ends[role].pid, port) for role in order],
                              lambda seen: is_expected(case, seen))
        for role in ("client", "server"):
            common.wait(ends[role], 20)
    return [said(f"{place}/{role}", port) for role in order]


def play_odd(case, place):
    """What the server shows, and by which number it tells its odd peer."""
    port = common.free_port()
    server = start(case, "server", {"server": (("127.0.0.1", port), None)}, place)
    server.stdout.readline()
    connection = peer.Connection(port)
    meeting = peer.First(connection.key, connection)
    number = None
    if case.claim:
        meeting.bind()
        connection.provoke()
        meeting.meet()
        peer.send(meeting.socket, meeting.claim(**case.claim))
        try:
            meeting.hear("Claim")
        except peer.Gone as why:
            number = int(re.fullmatch("declined for reason ([0-9]+)", str(why))[1])
    else:
        meeting.all().begin()
        peer.send(meeting.socket, peer.Record("Reply"))
    seen = wait_until(lambda: [shown(server.pid, port)], case.said[:1].__eq__)
    meeting.close()
    connection.close()
    return [*seen, number]


def wait_until(look, fits):
    """The last look: one that fits, or one after some seconds."""
    seen = []

    def is_fit():
        try:
            seen[:] = look()
        except common.Failure:
            return False
        return fits(seen)
    with contextlib.suppress(common.Failure):
        common.until(is_fit, "", limit=5)
    return seen


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--filter", default="", help="only cases whose name matches")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--hosts", action="store_true",
                    help="between the two hosts of scripts/guest/run")
    args = ap.parse_args()
    cases = BETWEEN_HOSTS if args.hosts else CASES | ODD_PEERS
    if args.list:
        print("\n".join(cases))
        return 0
    if args.hosts:
        hosts.need_guest()
    for file, how in ((common.LIB, "make build"), (common.FAULT_LIB, "make build-fault")):
        common.need_file(file, how)
    common.build_benches()
    common.adopt_orphans()
    common.raise_fd_limit()
    place = common.workplace("sluice-reasons-")
    with open(f"{place}/leave.conf", "w") as f:
        f.write("[leave]\nrole = server\naddress = 127.0.0.0/8\n")
    passed = failed = 0
    words = (said for case in (CASES | BETWEEN_HOSTS | ODD_PEERS).values() for said in case.said)
    brought = {word.lstrip("*") for said in words for word in re.split("[ |]", str(said))}
    missing = codes() - brought - {code for group in ELSEWHERE for code in group.split()}
    for name, case in cases.items():
        if not re.search(args.filter, name):
            continue
        if case.needs_root and os.geteuid() != 0:
            print(f"skipped {name}: needs root")
            continue
        try:
            odd = isinstance(case, OddPeer)
            got = play_odd(case, place) if odd else play(case, place, args.hosts)
        except (common.Failure, OSError, subprocess.TimeoutExpired) as why:
            got = [type(why).__name__, why]
        common.end_trees()
        if is_expected(case, got):
            passed += 1
        else:
            failed += 1
            print(f"FAILED  {name}: {got} instead of {case.said}", flush=True)
    if missing:
        failed += 1
        print(f"FAILED  no test brings about {', '.join(sorted(missing))}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
