#!/usr/bin/env python3
"""Does the library pay from a connection's first bytes on? Short connections, those that leave TCP
soon or never, and what leaving costs: each beside what it has to keep up with.

    scripts/pays.py                 all cases, 5 rounds
    scripts/pays.py -k nginx        those whose name contains the text
    scripts/pays.py --rounds 9
    scripts/pays.py --lib FILE      another build of the library
    scripts/pays.py --list          the cases with what each has to hold

A round runs all sides of a case, one after the other; the order rotates from round to round. A
figure is made of one round, mostly the ratio of two rates, and the median of all is judged. Runs in
a network namespace of its own where allowed. The last line: `N held, N missed`.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import apps      # noqa: E402
import common    # noqa: E402
import paired    # noqa: E402
from ccases import churn, conversations, fan    # noqa: E402
from common import Failure    # noqa: E402
from paired import Place    # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
NEVER_SLOWER = 0.97     # of plain's speed, at least: what noise leaves of 1
SETTINGS = {"auto": {}, "eager": {"SLUICE_UPGRADE": "eager"}, "off": {"SLUICE_UPGRADE": "off"}}


# --- cases, and what their figures are made of ---

class Bench:
    """Where a run takes place: the library, and a directory."""

    def __init__(self, lib):
        self.lib, self.directory = lib, common.workplace("sluice-pays-")

    def side(self, what, ends="both", reports=False, **more):
        """`what`: plain, or when connections leave TCP. Reports cost much where connections are
        short, so that only those sides make them whose reports are read."""
        extra = {**SETTINGS.get(what, {}), **more}
        side = paired.Side(what != "plain", extra, self.lib, reports, ends)
        side.fresh_report(self.directory)
        return side


def ratio(values):
    return values[0] / values[1]


def only(values):
    return values[0]


@dataclass
class Case:
    """`runs`: functions of a Bench, each of which gives a number. `figure` makes one of theirs, by
    default the rate of the first as a multiple of the second's. `limit`: None if it is only
    shown."""
    name: str
    limit: float
    runs: tuple
    tools: tuple = ()
    figure: object = ratio
    is_cost: bool = False       # at most `limit`; otherwise at least
    times: int = 1              # rounds for each that is asked for: more where runs are short

    def bound(self):
        if self.limit is None:
            return "no floor"
        return f"{'ceiling' if self.is_cost else 'floor'} {self.limit}"

    def shown(self, value):
        return f"{value:.{1 if self.is_cost else 2}f}"

    def holds(self, value):
        value = float(self.shown(value))    # so that what is read and what is judged are the same
        return self.limit is None or (value <= self.limit if self.is_cost else value >= self.limit)


def rate(program, what, place="two", secs=2, ends="both", **more):
    """The rate of a paired case on a side of this kind."""
    def run(bench):
        return program(bench.side(what, ends, **more), Place(place), secs).rate
    return run


def paired_with(first, second, program, **how):
    return rate(program, first, **how), rate(program, second, **how)


def share(program, place="two"):
    """The share of the client's bytes that went by link."""
    def run(bench):
        return program(bench.side("auto", reports=True), Place(place), 2).counters.share()
    return run


# --- redis ---

REDIS = ("redis-server", "redis-benchmark")
MANY = 1_000_000_000    # requests: more than a benchmark makes that runs beside another


def redis_get(clients, count):
    def run(side, place, secs):
        return apps.redis_run(side, place, secs, clients, count, "-t", "get")
    return run


def redis_cases():
    short = redis_get(50, 20000)
    yield Case("redis c50 20000", 4.0, paired_with("auto", "plain", short, place="free"), REDIS)
    for clients, count, floor in ((50, 100000, 0.8), (1, 40000, 0.9)):
        runs = paired_with("auto", "eager", redis_get(clients, count), place="free")
        yield Case(f"redis c{clients} {count} auto/eager", floor, runs, REDIS, times=5)


def beside_bench(server, subject, other):
    """One redis-benchmark beside another on one processor, their server on the next."""
    def run(bench):
        place = Place("two")

        def start(port):
            return common.start(apps.redis_bench(port, 10, MANY), cpu=place.client,
                                env=bench.side(other).env(), stdout=subprocess.DEVNULL)
        return apps.redis_beside(bench.side(server), bench.side(subject), place, start)
    return run


# Each 10 ms a new connection, as a program that collects figures makes it.
EXPORTER = """
import socket, sys, time
due = time.monotonic()
while True:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
        answer = s.makefile("rb")
        s.sendall(b"INFO\\r\\n")
        answer.read(int(answer.readline()[1:]) + 2)
    due = max(due + 0.01, time.monotonic())
    time.sleep(due - time.monotonic() if due > time.monotonic() else 0)
"""


def beside_exporter(what, elsewhere=False, server="auto"):
    """redis-benchmark beside a plain exporter that asks the same server, or with `elsewhere` a
    plain one on the server's processor: its work is the same then, and the library sees none."""
    def run(bench):
        place = Place("two")
        plain = apps.Redis(bench.side("plain"), place) if elsewhere else None

        def start(port):
            asked = plain.port if plain else port
            return common.start([sys.executable, "-c", EXPORTER, str(asked)], cpu=place.client,
                                env=common.environment(False))
        try:
            return apps.redis_beside(bench.side(server), bench.side(what), place, start)
        finally:
            if plain:
                plain.stop()
    return run


def company_cases():
    """Preloaded and plain clients of one server at once."""
    for name, runs in {
        "mixed preloaded": (beside_bench("auto", "auto", "plain"),
                            beside_bench("auto", "auto", "auto")),
        "mixed plain": (beside_bench("auto", "plain", "auto"),
                        beside_bench("plain", "plain", "plain")),
        "exporter preloaded": (beside_exporter("auto"), beside_exporter("auto", elsewhere=True)),
        "exporter plain": (beside_exporter("plain"), beside_exporter("plain", server="plain")),
    }.items():
        yield Case(name, NEVER_SLOWER, runs, REDIS)


# --- what leaving TCP costs ---

EXCHANGES, SIZE = 24, 4096      # a connection leaves TCP at its 18th or so
CALLS_OF, CPU_OF = 20, 300      # connections
MOST = 0.9                      # of them leave TCP, at least


def exchanges_by_tcp(bench, count, **more):
    """How many of its exchanges a connection makes before it has left TCP."""
    side = bench.side("auto", reports=True, **more)
    counters = conversations(count, EXCHANGES, SIZE)(side, Place("two"), 60).counters
    if counters.accelerated < MOST * counters.connections:
        raise Failure(f"too few left TCP: {counters}")
    return counters.tcp / counters.connections / (2 * SIZE)


def beyond_first(count, measured):
    """What each of `count` connections costs that follow the first, which has made the link."""
    return (measured(1 + count) - measured(1)) / count


def system_calls(bench, what, exchanges):
    """Those of both ends a connection, as the kernel counts them: to be traced takes a program so
    much longer that its connections have ended before they could leave TCP."""
    def counted(role):
        out = f"{bench.directory}/{role}"
        return ["perf", "stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-o", out]

    def measured(count):
        conversations(count, exchanges, SIZE, counted)(bench.side(what), Place("two"), 60)
        return sum(count_of(f"{bench.directory}/{role}") for role in ("client", "server"))
    return beyond_first(CALLS_OF, measured)


def count_of(path):
    """The one number in what `perf stat -x ,` wrote."""
    with open(path) as f:
        for line in f:
            word = line.split(",")[0]
            if word.isdigit():
                return int(word)
    raise Failure("perf counted nothing")


def upgrade_calls(bench):
    """Those that a connection makes which leaves TCP, over those of one that ends instead. What the
    first goes on with by the link needs none, or they count."""
    before = round(exchanges_by_tcp(bench, CALLS_OF))
    return system_calls(bench, "auto", EXCHANGES) - system_calls(bench, "off", before)


def upgrade_micros(bench):
    """CPU time of both ends that a connection takes which leaves TCP, over that of one which makes
    as many exchanges there. No thread spins."""
    still = {"SLUICE_SPIN_US": "0"}

    def micros(what):
        def measured(count):
            side = bench.side(what, **still)
            return conversations(count, EXCHANGES, SIZE)(side, Place("two"), 60).cpu * 1e6
        return beyond_first(CPU_OF, measured)
    exchanges_by_tcp(bench, CPU_OF, **still)
    return micros("auto") - micros("off")


def cost_cases():
    yield Case("upgrade system calls", 70, (upgrade_calls,), ("perf",), only, True)
    yield Case("upgrade cpu us", 200, (upgrade_micros,), (), only, True)


# --- web servers, short connections ---

def web_cases():
    for ends, kinds in {"server": (True, False), "client": (True, False), "both": (True,)}.items():
        for close in kinds:
            runs = paired_with("auto", "plain", apps.nginx_wrk(KIB, 32, close), ends=ends)
            name = f"nginx {'close' if close else 'keep-alive'} {ends}"
            yield Case(name, NEVER_SLOWER, runs, ("nginx", "wrk"))
    yield Case("cc", NEVER_SLOWER, paired_with("auto", "plain", churn))
    for size in (KIB, 16 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, MIB):
        program = apps.nginx_curl_close(size, 2000 if size <= 64 * KIB else 800)
        name = f"curl {size // KIB} KiB" if size < MIB else f"curl {size // MIB} MiB"
        runs = paired_with("auto", "plain", program)
        yield Case(name, NEVER_SLOWER, runs, ("nginx", "curl"), times=3)


# --- long transfers ---

SENDER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
connection, _ = listener.accept()
connection.sendall(bytes(int(sys.argv[2])))
connection.close()
"""
RECEIVER = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
left = int(sys.argv[2])
while data := s.recv(65536):
    left -= len(data)
sys.exit(left != 0)
"""


def sendall(size):
    """One call that sends it all, to a program that reads to the end."""
    def run(side, place, secs):
        words = [str(common.free_port()), str(size)]
        server = common.start([sys.executable, "-c", SENDER, *words], env=side.env(),
                              cpu=place.server)
        try:
            common.wait_listening(int(words[0]), server)
            begin = time.monotonic()
            client = common.start([sys.executable, "-c", RECEIVER, *words], cpu=place.client,
                                  env=side.env(report=True))
            for child in (client, server):
                if common.wait(child, 60) != 0:
                    raise Failure(f"sendall: status {child.returncode}")
            took = time.monotonic() - begin
        finally:
            common.end(server)
        return paired.Result(size / took, "B/s", size, took, counters=side.counters())
    return run


def transfer_cases():
    tools = ("nginx", "curl")
    for size, floor in ((8, 0.8), (16, 0.9), (64, 0.9)):
        run = share(apps.nginx_curl(size * MIB, 1))
        yield Case(f"share nginx {size} MiB", floor, (run,), tools, only)
    for size in (1, 2, 4, 8, 16, 64):
        runs = paired_with("auto", "plain", apps.nginx_curl(size * MIB, 1))
        yield Case(f"speed nginx {size} MiB", 1.0 if size == 64 else None, runs, tools)
    yield Case("share sendall 20 MB", 0.8, (share(sendall(20_000_000)),), (), only)


# --- many connections ---

def crowd_cases():
    yield Case("names 64", NEVER_SLOWER, paired_with("auto", "plain", fan(64, 1), ends="server"))
    for what, word in (("auto", "default"), ("eager", "eager")):
        runs = rate(fan(10000, 4), what), rate(fan(1000, 4), what)
        yield Case(f"fan 10000/1000 {word}", 0.8, runs)


def cases():
    for some in (redis_cases, cost_cases, web_cases, transfer_cases, company_cases, crowd_cases):
        yield from some()


# --- rounds ---

def once(run, bench):
    try:
        value = run(bench)
    except Exception:
        common.end_trees()
        raise
    left = common.leftovers()
    if left:
        raise Failure(f"left behind: {'; '.join(left)}")
    return value


def figures(case, bench, rounds):
    """One of each round. The side that began one round ends the next."""
    out = []
    for n in range(rounds * case.times):
        values = {}
        for i in range(len(case.runs)):
            which = (n + i) % len(case.runs)
            values[which] = once(case.runs[which], bench)
        out.append(case.figure([values[which] for which in range(len(case.runs))]))
    return out


def judged(case, bench, rounds):
    """(whether it holds, its line)"""
    try:
        values = figures(case, bench, rounds)
    except Failure as e:
        return False, f"MISSED  {case.name}: {e}"
    middle, least, most = (case.shown(v) for v in (common.median(values), min(values), max(values)))
    holds = case.holds(common.median(values))
    word = "MISSED" if not holds else "shown " if case.limit is None else "ok    "
    return holds, f"{word}  {case.name}: {middle} [{least}..{most}] ({case.bound()})"


def main():
    form = argparse.RawDescriptionHelpFormatter
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--filter", "-k", default="", help="text that the name must contain")
    ap.add_argument("--lib", default=common.LIB, help="the library")
    ap.add_argument("--list", action="store_true")
    args = ap.parse_args()
    chosen = [case for case in cases() if args.filter in case.name]
    if args.list:
        print("\n".join(f"{case.name} ({case.bound()})" for case in chosen))
        return 0
    if not chosen or args.rounds < 1:
        sys.exit("nothing matches" if not chosen else "at least one round")
    args.lib = os.path.abspath(args.lib)
    common.need_file(args.lib, "make build")
    common.need_tools(*{tool for case in chosen for tool in case.tools})
    common.build_benches()
    common.adopt_orphans()
    common.private_network()
    common.raise_fd_limit()
    bench, verdicts = Bench(args.lib), []
    for case in chosen:
        holds, line = judged(case, bench, args.rounds)
        print(line, flush=True)
        if case.limit is not None:
            verdicts.append(holds)
    print(f"{sum(verdicts)} held, {len(verdicts) - sum(verdicts)} missed")
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
