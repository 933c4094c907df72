"""What the scripts share: finding the builds, starting and ending programs, reading counters.

Every process a script starts goes through `start`, is ended by its process id, and anything it
left behind (a daemon that detached, a worker whose master died) comes back to this process as an
orphan (PR_SET_CHILD_SUBREAPER), so that `leftovers` can name it and end it.
"""

import atexit
import ctypes
import fcntl
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.join(ROOT, "benches", "bin")
# Other builds can be tried: LIBSLUICE=PATH scripts/bench.py ...
LIB = os.environ.get("LIBSLUICE") or os.path.join(ROOT, "target", "release", "libsluice.so")
FAULT_LIB = os.environ.get("LIBSLUICE_FAULT") or os.path.join(ROOT, "target", "fault", "release", "libsluice.so")
CLI = os.path.join(ROOT, "target", "release", "sluice")

# How many times longer than on this host everything may take in a guest: factor on every time limit.
SLOW = float(os.environ.get("GUEST_SLOW", "1"))

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Failure(Exception):
    """A check that did not hold: its text is the message."""


class Hang(Failure):
    """A program was not done within its limit."""


# --- builds and tools ---

def need_file(path, how):
    if not os.path.exists(path):
        sys.exit(f"{os.path.relpath(path, ROOT)} is missing: run `{how}` first")


def build_benches():
    """The C programs, built if need be; quiet unless it fails."""
    done = subprocess.run(["make", "-s", "-C", os.path.join(ROOT, "benches")],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"building benches/ failed:\n{done.stdout}")


def need_tools(*names):
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [n for n in names if shutil.which(n) is None]
    if missing:
        sys.exit(f"not installed: {' '.join(missing)} (scripts/install-deps.sh installs what the tests use)")


# --- environments ---

class Environment(dict):
    """Variables of a program, and which of the two hosts of scripts/guest/run it runs in, if any."""
    host = None


def environment(preload, extra=None, report=None, lib=LIB, host=None):
    """The environment of a program, plain or preloaded. No SLUICE_* or LD_PRELOAD of ours leaks in, and no file of this host's."""
    env = Environment((k, v) for k, v in os.environ.items() if not k.startswith("SLUICE_") and k != "LD_PRELOAD")
    env["SLUICE_CONFIG"] = ""
    env.host = host
    env["LC_ALL"] = "C"
    if preload:
        env["LD_PRELOAD"] = lib
        if report:
            env["SLUICE_REPORT"] = report
        env.update(extra or {})
    return env


def settings(pairs):
    """['K=V', ...] from the command line as a dict."""
    out = {}
    for pair in pairs or []:
        key, sep, value = pair.partition("=")
        if not sep:
            sys.exit(f"-e wants K=V, not {pair!r}")
        out[key] = value
    return out


def cpus():
    return sorted(os.sched_getaffinity(0))


_children = {}


def start(cmd, env=None, cpu=None, ends_with_us=True, **kw):
    """Popen, on `cpu` if given (a number or a set), killed if this process dies."""
    me = os.getpid()

    def before_exec():
        # A shell's background job ignores some of them, `nohup` another, and passes that on.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        if ends_with_us:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != me:
                os._exit(127)
        if cpu is not None:
            os.sched_setaffinity(0, {cpu} if isinstance(cpu, int) else cpu)

    kw.setdefault("stdin", subprocess.DEVNULL)
    words = cmd
    if host := getattr(env, "host", None):
        # What leads there gets none of it, and becomes the program: the process is the same.
        words, env = ["ip", "netns", "exec", host, "env", "-i", *(f"{k}={v}" for k, v in env.items()), *cmd], None
    child = subprocess.Popen(words, env=env, preexec_fn=before_exec, **kw)
    child.args = cmd
    child.usage = None
    _children[child.pid] = child
    return child


def wait(child, limit):
    """The exit status; keeps what wait4 says in `child.usage`. Raises Hang after `limit` seconds."""
    if child.returncode is not None:
        return child.returncode
    limit *= SLOW
    pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    if not pid:
        if not _ends_within(child.pid, limit):
            raise Hang(f"{os.path.basename(child.args[0])} (pid {child.pid}) not done after {limit:g} s")
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.usage = usage
    _children.pop(child.pid, None)
    return child.returncode


def _ends_within(pid, seconds):
    """Waits for the end of a process. The kernel tells it at once: a look now and then would add to measured times."""
    fd = os.pidfd_open(pid)
    try:
        over = select.poll()
        over.register(fd, select.POLLIN)
        return bool(over.poll(seconds * 1000))
    finally:
        os.close(fd)


def communicate(child, limit, data=None):
    """(stdout, stderr) of a program at its end. Raises Hang, the program still living."""
    limit *= SLOW
    try:
        out = child.communicate(input=data, timeout=limit)
    except subprocess.TimeoutExpired:
        raise Hang(f"{os.path.basename(child.args[0])} (pid {child.pid}) not done after {limit:g} s")
    _children.pop(child.pid, None)
    return out


def finished(cmd, limit, env=None, **kw):
    """A program that only prepares something, to its good end."""
    child = start(cmd, env=env or environment(False), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                  errors="replace", **kw)
    out, _ = communicate(child, limit)
    if child.returncode != 0:
        raise Failure(f"{os.path.basename(cmd[0])}: status {child.returncode}: {out.strip()[-300:]}")


def end(child, sig=signal.SIGTERM, limit=10):
    """Ends a program by `sig`, by SIGKILL when it does not listen. True if the first was enough."""
    if child.returncode is not None:
        return True
    _signal(child.pid, sig)
    try:
        wait(child, limit)
        return True
    except Hang:
        _signal(child.pid, signal.SIGKILL)
        wait(child, 10)
        return False


def _signal(pid, sig):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def cpu_time(child):
    return child.usage.ru_utime + child.usage.ru_stime


def adopt_orphans():
    """From now on whatever our programs leave behind becomes our child."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("PR_SET_CHILD_SUBREAPER refused")


def stat_of(task):
    """The words of /proc/TASK/stat behind the name: state, parent, ... None if it is gone."""
    try:
        with open(f"/proc/{task}/stat") as f:
            return f.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


# Where the kernel was built without PROC_CHILDREN it does not.
_KERNEL_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")


def children_of(pid):
    if not _KERNEL_LISTS_CHILDREN:
        stats = {int(p): stat_of(p) for p in os.listdir("/proc") if p.isdigit()}
        return [p for p, words in stats.items() if words and int(words[1]) == pid]
    out = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as f:
                out += [int(x) for x in f.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return out


def tree(pid):
    """`pid` and all below it."""
    out, todo = [], [pid]
    while todo:
        p = todo.pop()
        if os.path.exists(f"/proc/{p}"):
            out.append(p)
            todo += children_of(p)
    return out


def orphans():
    """Children that are not of our own making: what ended programs have left to us."""
    return [pid for pid in children_of(os.getpid()) if pid not in _children]


def end_orphans(find):
    """Ends, by pid, what `find` gives, and what these leave: their command lines."""
    names = []
    while pids := find():
        for pid in pids:
            names.append(f"{pid} {command_line(pid)}")
            _signal(pid, signal.SIGKILL)
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
    return names


def leftovers(grace=2.0):
    """Processes that ended programs left to us, after `grace` seconds to go by themselves: their
    command lines. They are ended here, by pid."""
    deadline = time.monotonic() + grace * SLOW
    while True:
        living = []
        for pid in orphans():
            try:
                done, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
            if not done:
                living.append(pid)
        if not living:
            return []
        if time.monotonic() > deadline:
            return end_orphans(orphans)
        time.sleep(0.02)


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "?"


@atexit.register
def _end_all():
    end_trees()


def end_trees():
    """Ends all that was started and still runs, with the workers and helpers below it."""
    for child in list(_children.values()):
        if child.returncode is not None:
            continue
        for pid in tree(child.pid):
            _signal(pid, signal.SIGKILL)
        try:
            wait(child, 10)
        except (Hang, ChildProcessError):
            pass
    _children.clear()
    leftovers(0.5)


def hung(e):
    """The words for a Hang: what all that we started and that still runs is doing."""
    living = [c.pid for c in _children.values() if c.returncode is None]
    return f"HANG: {e}\n{backtraces([p for pid in living for p in tree(pid)])}"


def backtraces(pids, limit=20):
    """What every thread of these processes is doing, by gdb; for a report of a hang."""
    out = []
    for pid in pids:
        out.append(f"--- {pid} {command_line(pid)}")
        for name in ("wchan", "syscall", "status"):
            try:
                with open(f"/proc/{pid}/{name}") as f:
                    text = f.read()
                if name == "status":
                    text = "".join(l + "\n" for l in text.splitlines() if l.startswith(("State", "Threads", "SigQ")))
                out.append(f"{name}: {text.strip()}")
            except OSError:
                pass
        if shutil.which("gdb") is None:
            out.append("(gdb is not installed: no back-trace)")
            continue
        try:
            done = subprocess.run(
                ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off", "-ex", "set print frame-arguments scalars",
                 "-ex", "thread apply all bt 30"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=limit * SLOW, text=True, errors="replace")
            out.append(done.stdout.strip())
        except subprocess.TimeoutExpired:
            out.append("(gdb did not answer)")
    return "\n".join(out)


CORES = "/tmp/core.%p"    # in a guest, which loses it


def keep_cores():
    """In a guest: what is started from here on leaves a core when it crashes, for `crash`."""
    if "GUEST_VEHICLE" in os.environ:
        with open("/proc/sys/kernel/core_pattern", "w") as f:
            f.write(CORES)
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def crash(pid, image, limit=30):
    """Where this process of the program `image`, which has ended, crashed: its threads by gdb, or '' if it left no core."""
    core = CORES.replace("%p", str(pid))
    if not os.path.exists(core) or shutil.which("gdb") is None:
        return ""
    command = ["gdb", image, core, "-batch", "-nx", "-ex", "set pagination off", "-ex", "thread apply all bt 30"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          timeout=limit * SLOW, text=True, errors="replace")
    return "\n" + done.stdout.strip()


# --- ports and places ---

def free_port(host="127.0.0.1"):
    """A port nobody listens on, below the range from which the kernel picks for clients."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        low = int(f.read().split()[0])
    top = low - 1 if low > 12000 else 31999
    for _ in range(1000):
        port = random.SystemRandom().randrange(10000, top)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
            try:
                s.bind((host, port))
                return port
            except OSError:
                continue
    raise Failure("no free port")


def wait_listening(port, child=None, host="127.0.0.1", limit=10):
    """Until someone listens: looked up in /proc/net/tcp{,6}, so that no connection is spent on it; in the child's, which
    may have a net namespace of its own."""
    want = f":{port:04X}"
    limit *= SLOW
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        for table in ("tcp", "tcp6"):
            try:
                with open(f"/proc/{child.pid if child else 'self'}/net/{table}") as f:
                    for line in f:
                        part = line.split()
                        if len(part) > 3 and part[3] == "0A" and part[1].endswith(want):
                            return
            except OSError:     # it has ended
                pass
        if child is not None:
            if child.returncode is None and os.waitid(os.P_PID, child.pid,
                                                      os.WEXITED | os.WNOHANG | os.WNOWAIT):
                raise Failure(f"{os.path.basename(child.args[0])} ended instead of listening")
        time.sleep(0.01)
    raise Hang(f"nobody listens on port {port} after {limit:g} s")


def until(holds, otherwise, limit=10, pause=0.01):
    """Waits until `holds()` is true. Raises Hang with the text `otherwise`."""
    limit *= SLOW
    deadline = time.monotonic() + limit
    while not holds():
        if time.monotonic() > deadline:
            raise Hang(f"{otherwise} after {limit:g} s")
        time.sleep(pause)


def until_gone(pids, what, limit=20):
    """Until these processes are over, whoever reaps them."""
    until(lambda: all(command_line(pid) in ("", "?") for pid in pids), f"{what} still there", limit, 0.05)


def workplace(prefix="sluice-"):
    """A private directory, gone at exit. World-searchable: servers that drop privileges read there.

    In memory where there is room: a reader that waits for its disk is not what tests and benchmarks are about."""
    memory = "/dev/shm"
    try:
        room = os.statvfs(memory)
        fits = room.f_bavail * room.f_frsize >= 4 << 30 and os.access(memory, os.W_OK)
    except OSError:
        fits = False
    path = tempfile.mkdtemp(prefix=prefix, dir=memory if fits else None)
    os.chmod(path, 0o755)
    atexit.register(shutil.rmtree, path, True)
    return path


def private_network():
    """A network namespace with nothing but a loopback device: nobody else's ports and bytes. False
    where that is not allowed; then the host's loopback has to do."""
    clone_newnet, siocsifflags, iff_up_running = 0x40000000, 0x8914, 0x41
    if _libc.unshare(clone_newnet) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, siocsifflags, struct.pack("16sh14x", b"lo", iff_up_running))
    return True


def lo_bytes():
    """Bytes received by the loopback device so far: what really went by TCP/IP."""
    with open("/proc/net/dev") as f:
        for line in f:
            name, _, rest = line.partition(":")
            if name.strip() == "lo":
                return int(rest.split()[0])
    raise Failure("no loopback device in /proc/net/dev")


# --- counters ---

_BYTES = re.compile(r"(tx|rx)_(tcp|direct|indirect|file|pages)$")


class Counters:
    """Bytes by path and direction, summed over connections."""

    def __init__(self):
        self.connections = 0
        self.accelerated = 0
        self.demotions = 0
        self.tcp = 0
        self.link = 0
        self.direct = 0
        self.reasons = {}

    def add(self, fields):
        """`fields`: a flat dict of one connection, by the names that SLUICE_REPORT uses."""
        self.connections += 1
        link = 0
        for key, value in fields.items():
            hit = _BYTES.match(key)
            if not hit:
                continue
            value = int(value)
            if hit.group(2) == "tcp":
                self.tcp += value
            else:
                link += value
                if hit.group(2) == "direct":
                    self.direct += value
        self.link += link
        if link > 0 or int(fields.get("upgrades", 0)) > 0:
            self.accelerated += 1
        self.demotions += int(fields.get("demotions", 0))
        reason = fields["reason"]
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def share(self):
        """The share of bytes that went over the link, 0 where nothing was counted."""
        total = self.tcp + self.link
        return self.link / total if total else 0.0

    def __str__(self):
        reasons = ", ".join(f"{k} {v}" for k, v in sorted(self.reasons.items()))
        return (f"{self.accelerated} of {self.connections} connections accelerated, "
                f"{self.share() * 100:.1f} % of {(self.tcp + self.link) / 1e6:.1f} MB by link, "
                f"{self.demotions} demotions, reasons: {reasons or 'no connection'}")


def read_report(path, peer_port=None, local_port=None):
    """What libraries appended to SLUICE_REPORT at exit. With a port: only connections whose peer
    (or own) end has it."""
    out = Counters()
    for fields in report_lines(path):
        if peer_port is not None and not fields["peer"].endswith(f":{peer_port}"):
            continue
        if local_port is not None and not fields["local"].endswith(f":{local_port}"):
            continue
        out.add(fields)
    return out


def report_lines(path):
    out = []
    with open(path, errors="replace") as f:
        for line in f:
            if not line.endswith("\n"):
                raise Failure(f"torn line in the report: {line!r}")
            words = line.split()
            if not words or words[0] != "conn":
                raise Failure(f"not a line of the report: {line!r}")
            fields = dict(w.split("=", 1) for w in words[1:])
            missing = {"local", "peer", "upgrades", "demotions", "tx_tcp", "rx_tcp", "reason"} - fields.keys()
            if missing:
                raise Failure(f"a line of the report lacks {', '.join(sorted(missing))}: {line!r}")
            out.append(fields)
    return out


def stat(pid=None, limit=10):
    """The connections in `sluice stat [PID] --json`, each a flat dict by the names of the report:
    {"tx": {"tcp": 1}} is {"tx_tcp": 1}."""
    need_file(CLI, "make build")
    cmd = [CLI, "stat"] + ([str(pid)] if pid else []) + ["--json", "--connections", "16384"]
    done = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=limit * SLOW, env=environment(False))
    try:
        processes = json.loads(done.stdout)["processes"]
    except (ValueError, KeyError, TypeError):
        raise Failure(f"`sluice stat --json` printed no report: {done.stdout[:80]!r} {done.stderr.strip()[:200]}")
    if pid and not processes:
        raise Failure(f"`sluice stat --json` shows nothing of {pid}: {done.stderr.strip()[:200]}")
    out = []
    for process in processes:
        for connection in process["connections"]:
            flat = {"pid": process["pid"], "fd": connection["fd"], "local": connection["local"],
                    "peer": connection["peer"], "transport": connection["transport"],
                    "upgrades": connection["upgrades"], "demotions": connection["demotions"],
                    "reason": (connection["reason"] or {}).get("code", "none"),
                    "reason_of": connection["reason_of"]}
            for way in ("tx", "rx"):
                flat.update({f"{way}_{path}": connection[way][path] for path in ("tcp", "direct", "indirect", "file", "pages")})
            out.append(flat)
    return out


def fresh_report(path):
    """An empty file that a worker which dropped its privileges can append to."""
    with open(path, "w"):
        pass
    os.chmod(path, 0o666)
    return path


def stat_counters(pids):
    """The counters of these processes as `sluice stat` shows them now."""
    out = Counters()
    for pid in pids:
        for connection in stat(pid):
            out.add(connection)
    return out


# --- numbers ---

def median(values):
    values = sorted(values)
    n = len(values)
    return values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) / 2


def si(value):
    """1234567 -> '1.23 M'."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} "


def table(rows, heads):
    """Plain columns, the first left-aligned, the others right-aligned."""
    rows = [heads] + [[str(c) for c in r] for r in rows]
    widths = [max(len(r[i]) for r in rows) for i in range(len(heads))]
    lines = []
    for n, row in enumerate(rows):
        lines.append("  ".join(c.ljust(w) if i == 0 else c.rjust(w)
                               for i, (c, w) in enumerate(zip(row, widths))).rstrip())
        if n == 0:
            lines.append("  ".join("-" * w for w in widths))
    return "\n".join(lines)


def raise_fd_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
