#!/usr/bin/env python3
"""Does each end of a connection say why it is on TCP, and do both say the same where one can tell the other?

Two programs talk; one of them, in turn, does what keeps a connection on TCP. What SLUICE_REPORT says at both ends, in code
and in whose reason it is, is compared with the table below. Reasons that only attacks, other kernels or other hosts can bring
about are tested where those are: `ELSEWHERE` says where, and no reason may be missing from both.

  scripts/reasons.py [--filter REGEX] [--list]

The last line is `N passed, N failed`.
"""

import argparse
import array
import ctypes
import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import common    # noqa: E402

LIBC = ctypes.CDLL(None, use_errno=True)
# Messages of so many bytes, with answers: well beyond the 32 KiB at which a connection leaves TCP, and pauses, longer
# together than an end waits for the other.
MESSAGE, ANSWER, ROUNDS, PAUSES = 4000, 1000, 300, (15, 60, 200)


# --- what one end does to its connection before it talks; what it returns talks instead of `talk` ---

def option(level, name, value=1):
    return lambda s: s.setsockopt(level, name, value)


def fork_shares(s):
    child = os.fork()
    if child == 0:
        signal.pause()
    return lambda: os.kill(child, signal.SIGKILL)


def passed(s):
    a, b = socket.socketpair()
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
    b.recvmsg(1, 64)


def signal_driven(s):
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) | os.O_ASYNC)


def attach_filter(s):
    # BPF: accept all of each segment.
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x40000))
    s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(code)))


def zerocopy_receive(s):
    s.getsockopt(socket.IPPROTO_TCP, 35, 64)


def raw_syscall(s):
    # recvfrom
    buffer = ctypes.create_string_buffer(1)
    LIBC.syscall(45, s.fileno(), buffer, 0, socket.MSG_DONTWAIT, 0, 0)


def c_function(name, mode):
    def use(s):
        LIBC.fdopen.restype = ctypes.c_void_p
        if name == "fdopen":
            LIBC.fdopen(s.fileno(), mode)
        else:
            LIBC.dprintf(s.fileno(), b"")
    return use


def at_once(call):
    """Does what would wait for bytes, and does not wait."""
    def use(s):
        s.setblocking(False)
        try:
            call(s.fileno())
        except OSError:
            pass
        s.setblocking(True)
    return use


def splice(fd):
    r, _ = os.pipe2(os.O_NONBLOCK)
    os.splice(r, fd, 1)


def preadv2(fd):
    os.preadv(fd, [bytearray(1)], -1, os.RWF_HIPRI)


def urgent(s):
    s.send(b"!", socket.MSG_OOB)


IP, TCP, SOCKET = socket.IPPROTO_IP, socket.IPPROTO_TCP, socket.SOL_SOCKET
TRICKS = {
    "none": lambda s: None,
    "shared": fork_shares,
    "msg-oob": urgent,
    "attach-filter": attach_filter,
    "zerocopy": option(SOCKET, 60),
    "timestamping": option(SOCKET, 37, 1 << 3),
    "pacing-rate": option(SOCKET, 47, 1 << 30),
    "signal-driven": signal_driven,
    "tcp-inq": option(TCP, 36),
    "peek-off": option(SOCKET, 42, 0),
    "zerocopy-receive": zerocopy_receive,
    "splice": at_once(splice),
    "fdopen": c_function("fdopen", b"r+"),
    "dprintf": c_function("dprintf", None),
    "raw-syscall": raw_syscall,
    "passed": passed,
    "preadv2": at_once(preadv2),
    "send-buffer-small": option(SOCKET, socket.SO_SNDBUF, 1),
    "tcp-repair": option(TCP, 19),
}


def end_of_connection(role, port, trick, talk):
    """What runs as the server or the client."""
    if role == "server":
        listener = socket.create_server(("127.0.0.1", port))
        print("ready", flush=True)
        s, _ = listener.accept()
    else:
        s = socket.create_connection(("127.0.0.1", port))
    undo = TRICKS[trick](s)
    TALKS[talk](s, role)
    if undo:
        undo()


def rounds(s, role):
    for i in range(ROUNDS):
        if role == "client":
            s.sendall(b"x" * MESSAGE)
        left = MESSAGE if role == "server" else ANSWER
        while left:
            data = s.recv(left)
            if not data:
                return
            left -= len(data)
        if role == "server":
            s.sendall(b"y" * ANSWER)
        elif i in PAUSES:
            time.sleep(0.15)
    if role == "client":
        s.shutdown(socket.SHUT_WR)
    while s.recv(1 << 16):
        pass


def one_way(s, role):
    """The client has nothing to say: as `nc` without input."""
    if role == "client":
        s.shutdown(socket.SHUT_WR)
        while s.recv(1 << 16):
            pass
        return
    assert s.recv(1) == b""
    for i in range(ROUNDS):
        s.sendall(b"y" * MESSAGE)
        if i in PAUSES:
            time.sleep(0.15)


def little(s, role):
    if role == "client":
        s.sendall(b"x")
        s.shutdown(socket.SHUT_WR)
    while s.recv(100):
        pass


def reader_sleeps(s, role):
    """The client is in one long call while the server reads and waits."""
    if role == "client":
        s.sendall(b"x" * (8 << 20))
        s.shutdown(socket.SHUT_WR)
        s.recv(1)
        return
    n = 0
    while data := s.recv(1 << 16):
        if n < 1 << 20 <= n + len(data):
            time.sleep(1.5)
        n += len(data)


def killed(s, role):
    if role == "client":
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            s.sendall(b"x" * MESSAGE)
            s.recv(1)
    try:
        while s.recv(MESSAGE):
            s.send(b"y")
    except ConnectionError:
        pass


TALKS = {"rounds": rounds, "one way": one_way, "little": little, "long call": reader_sleeps, "killed": killed}


class Case:
    """`own` is what the end that does it says, `other` what the other end does; None: that has no line. A reason that begins with
    a star is the other's, heard."""

    def __init__(self, own, other, trick="none", talk="rounds", at="server", **settings):
        self.own, self.other, self.trick, self.talk, self.at = own, other, trick, talk, at
        self.settings = settings


def heard(code, **kw):
    """The end that does it says so, and the other end repeats it."""
    return Case(code, "*" + code, **kw)


CASES = {code: heard(code, trick=code) for code in TRICKS if code not in ("none", "send-buffer-small", "tcp-repair", "shared")}
CASES.update({
    "below-threshold": Case("below-threshold", "below-threshold", talk="little"),
    "turned off": Case(None, "no-answer", SLUICE_UPGRADE="off"),
    "without Sluice": Case(None, "no-answer", LD_PRELOAD=""),
    "policy": heard("policy", SLUICE_CONFIG="leave"),
    "bounded": heard("bounded", SLUICE_CONNECTIONS="0"),
    "shared": heard("shared", trick="shared"),
    "half closed": Case("not-established", "shutdown", talk="one way"),
    "ended": Case("*shutdown", "shutdown"),
    "killed": Case("peer-died", None, talk="killed"),
    "fault": Case("fault", "*fault", SLUICE_FAULT="demote:1"),
})
# Where else the others are brought about.
ELSEWHERE = {
    "none": "no reason",
    "not-hooked inherited exec fork set-elsewhere io-uring peek-waits registered-closed disconnected close exit linger-reset "
    "ring-full direct-no-advert send-buffer-small tcp-repair writer-blocked met meeting not-established": "c-tests",
    "name-taken too-many-names proof-failed peer-hostile peer-owner peer-hidden overcommit limit link-full netlink-refused "
    "proc-missing memfd-refused mmap-refused thread-refused seccomp-fatal descriptor-limit sandboxed panic peer-closed":
    "scripts/hostile.py, c-tests",
    "off": "of a process, not of a connection",
    "version-mismatch layout-mismatch word-size-mismatch": "src/engine/src/rendezvous",
    "peer-remote link-lost memlock device-refused forked-rdma idle peer-demoted tcp-ulp tcp-md5": "scripts/guest",
}


def codes():
    """All that the tool knows."""
    done = subprocess.run([common.CLI, "reasons"], stdout=subprocess.PIPE, text=True, check=True)
    return {line for line in done.stdout.splitlines() if re.fullmatch("[a-z0-9-]+", line)}


def said(path):
    """What an end has reported: the reason, with a star if it is the other's."""
    lines = common.report_lines(path)
    if not lines:
        return None
    if len(lines) != 1:
        raise common.Failure(f"{len(lines)} lines: {lines}")
    return ("*" if lines[0]["reason_of"] == "peer" else "") + lines[0]["reason"]


def play(case, place):
    port = common.free_port()
    ends = {}
    for role in ("server", "client"):
        settings = dict(case.settings) if role == case.at else {}
        if settings.get("SLUICE_CONFIG"):
            settings["SLUICE_CONFIG"] = f"{place}/leave.conf"
        library = common.FAULT_LIB if "SLUICE_FAULT" in settings else common.LIB
        preload = settings.pop("LD_PRELOAD", True) != ""
        report = common.fresh_report(f"{place}/{role}")
        trick = case.trick if role == case.at else "none"
        ends[role] = common.start(
            [sys.executable, os.path.abspath(__file__), "--end", role, str(port), trick, case.talk],
            env=common.environment(preload, settings, report, library),
            stdout=subprocess.PIPE if role == "server" else None, text=True)
        if role == "server":
            ends[role].stdout.readline()
    for role in ("client", "server"):
        common.wait(ends[role], 20)
    other = "client" if case.at == "server" else "server"
    return [said(f"{place}/{role}") for role in (case.at, other)]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--filter", default="", help="only cases whose name matches")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--end", nargs=4, help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.end:
        role, port, trick, talk = args.end
        return end_of_connection(role, int(port), trick, talk)
    if args.list:
        print("\n".join(CASES))
        return 0
    for file, how in ((common.LIB, "make build"), (common.FAULT_LIB, "make build-fault")):
        common.need_file(file, how)
    common.adopt_orphans()
    place = common.workplace("sluice-reasons-")
    with open(f"{place}/leave.conf", "w") as f:
        f.write("[leave]\nrole = server\naddress = 127.0.0.0/8\n")
    passed = failed = 0
    brought = {word.lstrip("*") for case in CASES.values() for word in (case.own, case.other) if word}
    missing = codes() - brought - {code for group in ELSEWHERE for code in group.split()}
    names = [name for name in CASES if re.search(args.filter, name)]
    for name in names:
        case = CASES[name]
        try:
            got = play(case, place)
        except common.Failure as why:
            got = str(why)
        if got == [case.own, case.other]:
            passed += 1
        else:
            failed += 1
            print(f"FAILED  {name}: {got} instead of {[case.own, case.other]}", flush=True)
    if missing:
        failed += 1
        print(f"FAILED  no test brings about {', '.join(sorted(missing))}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
