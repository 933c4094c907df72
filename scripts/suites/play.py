"""One run of one unit of a suite, plain or preloaded: its results, and what its connections came to.

Runs may go side by side: each worker thread has a network namespace of its own where that is allowed, so that two of them
may use the same ports, and what a run leaves behind is known by it.
"""

import collections
import concurrent.futures
import os
import shutil
import tempfile
import threading
import time

import common
from judge import FAIL, PASS, PLAIN

THRESHOLDS = {"eager": {"SLUICE_UPGRADE": "eager"}, "default": {}}
# Too short to be tried, or over before it had left TCP.
_SHORT, _OVER = {"below-threshold"}, {"not-established", "peer-closed", "close", "exit", "disconnected", "linger-reset"}
# Nobody at the other end who could.
_NOBODY = {"off", "no-answer", "peer-remote"}
# What only TCP can do: it is about segments, or what the kernel makes of them.
_TCP_ONLY = {"msg-oob", "tcp-ulp", "tcp-repair", "tcp-md5", "attach-filter", "zerocopy", "timestamping", "pacing-rate"}
# What Sluice could do and does not.
_LIMITS = {"shared", "not-hooked", "fork", "exec", "passed", "shutdown", "signal-driven",
           "peek-off", "zerocopy-receive", "splice", "fdopen", "dprintf", "raw-syscall", "io-uring",
           "preadv2"}
# Not eligible: what it is known to leave on TCP. Strictly, only what nothing of the kind could take off: there an end that was over
# is too short only if it moved less than what a try waits for.
NOT_ELIGIBLE = _SHORT | _OVER | _NOBODY | _TCP_ONLY | _LIMITS
_NOT_EVEN_STRICTLY = _SHORT | _NOBODY | _TCP_ONLY

# Where both ends had the library, neither its end nor that nobody answered excuses a connection that moved this much: more than TCP's
# buffers take, which a program may fill at once and close.
LONG = 4 << 20
# Of the connections of a suite that were to leave TCP at once, that many have to have done so; of few of them, as a unit or two have,
# at least one.
LEFT_AT_LEAST, FEW = 0.9, 20

DEFAULT_THRESHOLD = 32 << 10

# As a report names an end whose socket was gone before it was asked.
NO_ADDRESS = "0.0.0.0:0"

# Seconds without a word after which a run has hung: they all name their tests. A suite may have its own `silence`.
SILENCE = 100


def _used(lines):
    """The lines of a report, each with what it counts, but those of forked children who have left what they inherited alone: they, too, say
    at their end that they had it. Beside another line of the same end one without a byte is such a child's; of several without any
    one is the end's. (An address that was not known says nothing of that.)
    """
    ends = collections.defaultdict(list)
    for fields in lines:
        one = common.Counters()
        one.add(fields)
        ends[fields["local"], fields["peer"]].append((fields, one))
    for (local, _), same in ends.items():
        used = same if local == NO_ADDRESS else [end for end in same if end[1].link + end[1].tcp]
        yield from used or same[:1]


def share(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "none"


class Connections:
    """What the libraries reported, summed: an end of a connection counts as one."""

    def __init__(self):
        self.ends = self.accelerated = self.link = self.tcp = 0
        self.reasons = collections.Counter()        # of those that were never accelerated
        self.strict = 0         # of those, how many were eligible by the strict measure
        # Whole connections, both of whose ends had the library, that moved four times what a try waits for, and why those that
        # did not leave TCP stayed; `worth` of them had no reason to stay that is known beforehand.
        self.whole = self.worth = self.left_tcp = 0
        self.stayed = collections.Counter()

    def add_report(self, path, threshold):
        both = collections.defaultdict(dict)        # {ports: {(port here, port there): (bytes, accelerated, reason)}}
        for fields, one in _used(common.report_lines(path)):
            self.ends += 1
            self.accelerated += one.accelerated
            self.link += one.link
            self.tcp += one.tcp
            if not one.accelerated:
                self.reasons[fields["reason"]] += 1
                self.strict += one.link + one.tcp >= threshold and fields["reason"] not in _NOT_EVEN_STRICTLY
            ports = tuple(fields[end].rsplit(":", 1)[1] for end in ("local", "peer"))
            # Several processes may have had an end.
            seen = both[frozenset(ports)]
            seen[ports] = max(seen.get(ports, (0, 0, "")), (one.link + one.tcp, one.accelerated, fields["reason"]))
        for ends in both.values():
            moved = max(end[0] for end in ends.values())
            if len(ends) == 2 and moved >= 4 * threshold:
                self.whole += 1
                reasons = {end[2] for end in ends.values()}
                if any(end[1] for end in ends.values()):
                    self.worth += 1
                    self.left_tcp += 1
                else:
                    # Where the ends still looked for each other it was over as well.
                    excuses = _SHORT | _TCP_ONLY | _LIMITS if moved >= LONG else NOT_ELIGIBLE | {"meeting"}
                    self.worth += not reasons & excuses
                    self.stayed[" and ".join(sorted(reasons))] += 1

    def add(self, other):
        self.ends += other.ends
        self.accelerated += other.accelerated
        self.link += other.link
        self.tcp += other.tcp
        self.reasons.update(other.reasons)
        self.strict += other.strict
        self.whole += other.whole
        self.worth += other.worth
        self.left_tcp += other.left_tcp
        self.stayed.update(other.stayed)

    def eligible(self):
        return self.accelerated + sum(n for reason, n in self.reasons.items() if reason not in NOT_ELIGIBLE)

    def strictly(self):
        return self.accelerated + self.strict

    def trouble(self, side, opened):
        """What says that the library did not do its work in runs of a suite, whatever came of their tests; None if nothing does.
        `opened`: how many connections were accepted in the plain runs of the same units."""
        if opened and not self.ends:
            return f"the library reported no end of a connection, where {opened} were accepted plain: was it loaded?"
        if side == "eager" and self.left_tcp < (LEFT_AT_LEAST * self.worth if self.worth >= FEW else min(self.worth, 1)):
            return f"{self.left_tcp} of {self.worth} connections that were worth it left TCP, {LEFT_AT_LEAST} of them should have"
        return None

    def __str__(self):
        moved = self.link + self.tcp
        reasons = ", ".join(f"{reason} {n}" for reason, n in self.reasons.most_common())
        return (f"{self.ends} ends of connections, {self.accelerated} accelerated, "
                f"of {self.eligible()} eligible ({share(self.accelerated, self.eligible())}), "
                f"strictly of {self.strictly()} ({share(self.accelerated, self.strictly())}), "
                f"{100 * self.link / moved if moved else 0:.1f} % of {moved / 1e6:.1f} MB by link; on TCP: {reasons or 'none'}; "
                f"{self.whole} whole connections, {self.worth} worth it, {self.left_tcp} left TCP, the others: "
                f"{', '.join(f'{reason} {n}' for reason, n in self.stayed.most_common()) or 'none'}")


class Outcome:
    def __init__(self):
        self.results = {}
        self.connections = Connections()
        self.opened = 0         # connections that were accepted
        self.note = ""          # a hang, a crash
        self.log = None


def have_namespaces():
    """May a thread have a network of its own?"""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(common.private_network).result()


def _accepted():
    """Connections accepted so far in this worker's network; without namespaces those of others are among them."""
    with open("/proc/thread-self/net/snmp") as f:
        names, values = (line.split() for line in f if line.startswith("Tcp:"))
    return int(values[names.index("PassiveOpens")])


def _namespace(pid="thread-self"):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _orphans():
    """What ended runs of this worker have left to us. Without namespaces there is one worker, and all is its own."""
    here = _namespace()
    return [pid for pid in common.orphans() if _namespace(pid) in (here, None)]


def _wait(child, log, limit, silence):
    """The status of a run at its end; Hang where it takes longer than it may, or says nothing for long."""
    begin = time.monotonic()
    while True:
        try:
            return common.wait(child, 1)
        except common.Hang:
            if time.monotonic() - begin > limit:
                raise common.Hang(f"not done after {limit} s") from None
            if time.time() - os.stat(log).st_mtime > silence:
                raise common.Hang(f"silent for {silence} s") from None


class Player:
    """Runs units. `keep`: the directory for what they print, and for their libraries' reports; `settings`: variables of preloaded runs."""

    def __init__(self, lib, keep, settings=None):
        self.lib, self.keep, self.settings = lib, keep, settings or {}
        self.count, self.lock, self.places = 0, threading.Lock(), set()

    def play(self, suite, unit, side, tests=None):
        with self.lock:
            self.count += 1
            number = self.count
            place = tempfile.mkdtemp(prefix="suites-")
            self.places.add(place)
        os.chmod(place, 0o755)
        try:
            return self._play(suite, unit, side, tests, place, f"{number:05}")
        finally:
            shutil.rmtree(place, ignore_errors=True)
            self.places.discard(place)

    def stop(self):
        """In the middle of runs, by who is about to exit: ends what they have started, and leaves none of their directories."""
        # No other one begins.
        self.lock.acquire()
        common.end_trees()
        for place in list(self.places):
            shutil.rmtree(place, ignore_errors=True)

    def _play(self, suite, unit, side, tests, place, number):
        out = Outcome()
        report, work = common.fresh_report(f"{place}/report"), f"{place}/w"
        for directory in (work, f"{place}/tmp"):
            os.mkdir(directory)
        env = common.environment(side != PLAIN, {**THRESHOLDS.get(side, {}), **self.settings}, report, self.lib)
        cmd, cwd, extra = suite.command(unit, work, tests)
        env.update({"TMPDIR": f"{place}/tmp", **extra})
        out.log = os.path.join(self.keep, f"{suite.name}-{unit.replace('/', '-')}-{side}-{number}.log")
        before = _accepted()
        with open(out.log, "wb") as log:
            # A session of its own: tests send signals to their group.
            child = common.start(cmd, env=env, cwd=cwd, stdout=log, stderr=log, start_new_session=True)
            try:
                status = _wait(child, out.log, suite.limit, getattr(suite, "silence", SILENCE))
                if status < 0:
                    out.note = f"ended by signal {-status}"
            except common.Hang as hang:
                out.note = str(hang)
                log.write(f"\n{out.note}\n{common.backtraces(common.tree(child.pid))}\n".encode())
            finally:
                for pid in common.tree(child.pid):
                    common._signal(pid, 9)
                common.end(child, 9)
                common.end_orphans(_orphans)
        out.opened = _accepted() - before
        with open(out.log, errors="replace") as log:
            out.results = suite.results(unit, work, log.read())
        if side != PLAIN:
            try:
                out.connections.add_report(report, 1 if side == "eager" else DEFAULT_THRESHOLD)
            except common.Failure as e:
                out.note = str(e)
            shutil.move(report, f"{out.log.removesuffix('.log')}.report")
        if tests is None:
            # A crash after the last test is nobody's but the unit's.
            out.results[f"{unit}: ends"] = FAIL if out.note else PASS
        return out
