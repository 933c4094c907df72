#!/usr/bin/env python3
"""Benchmarks: every case plain and preloaded alternately, N rounds, medians and ratios.

    scripts/bench.py                          all cases, 5 rounds of 1 s
    scripts/bench.py -k 'pp 64'               cases whose "case / place" contains the text
    scripts/bench.py --place two --secs 0.5   one placement
    scripts/bench.py --check                  exit status 1 if a floor is missed
    scripts/bench.py -e SLUICE_UPGRADE=eager  settings for the preloaded side
    scripts/bench.py --list

Placements: `one` (client and server on one CPU), `two` (pinned apart), `free` (the kernel's
choice); `+hogs`: a busy loop on every CPU besides. Every ratio is preloaded / plain of one round.
"""

import argparse
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import apps      # noqa: E402
import common    # noqa: E402
import paired    # noqa: E402
from ccases import binary, churn, fan, ping_pong, stream    # noqa: E402
from paired import Place    # noqa: E402

# The speed that is promised, as least ratios of preloaded to plain, by "case / place".
FLOORS = {
    "pp 64 / two": 12.0,
    "pp 64 / one": 2.0,
    "st 64 / two": 10.0,
    "st 65536 / two": 1.8,
    "redis c1 / two": 3.0,
    "redis c50 / two": 4.0,
    "nginx 1k c32 / two": 1.8,
    "iperf3 P1 / two": 1.8,
    "fan 1000 / two": 8.0,
    "cc / two": 0.97,
    "nginx 1k close / two": 0.97,
    "idle 100 / -": 0.5,               # at most: per cent of a core, server with 100 idle accelerated connections
}
# Nothing that is accelerated may be slower than TCP, however the CPUs are shared.
NEVER_SLOWER = ("one", "one+hogs", "free", "free+hogs")
# All others must have gone over the link (paired.LINK_SHARE), else their ratio says nothing.
NOT_ACCELERATED = {"cc", "nginx 1k close", "idle 100"}


# name -> (case, placements)
ALL = ("one", "two", "free", "one+hogs", "free+hogs")
CASES = {
    "pp 64": (ping_pong("pp", 64), ALL),
    "pp 4096": (ping_pong("pp", 4096), ("two",)),
    "pp 65536": (ping_pong("pp", 65536), ("two",)),
    "epp 64": (ping_pong("epp", 64), ALL),
    "st 64": (stream("st", 64), ALL),
    "st 4096": (stream("st", 4096), ("two",)),
    "st 65536": (stream("st", 65536), ALL),
    "st 1048576": (stream("st", 1048576), ("two",)),
    "est 65536": (stream("est", 65536), ALL),
    "fan 1000": (fan(1000, 4), ALL),
    "cc": (churn, ("one", "two", "free")),
    "redis c1": (apps.redis(1, 1), ALL),
    "redis c50": (apps.redis(50, 1), ALL),
    "nginx 1k c32": (apps.nginx_wrk(1024, 32), ALL),
    "nginx 1k close": (apps.nginx_wrk(1024, 32, close=True), ("two", "free")),
    "iperf3 P1": (apps.iperf3(1), ALL),
}
NEEDS = {"redis": ("redis-server", "redis-benchmark"), "nginx": ("nginx", "wrk"), "iperf3": ("iperf3",)}


# --- the one that is no ratio ---

def cpu_ns(pid):
    """CPU time of all threads so far."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            total += int(f.read().split()[0])
    return total


def idle(directory, extra, secs=10.0):
    """Per cent of a core that a server (and its client) with 100 idle accelerated connections uses."""
    side = paired.Side(True, extra)
    side.fresh_report(directory)
    server = common.start([binary("fan"), "server", "127.0.0.1"], env=side.env(),
                          stdout=subprocess.PIPE, text=True)
    port = server.stdout.readline().split()[1]
    client = common.start([binary("fan"), "client", "127.0.0.1", port, "100", "1", "262144", "0", "0"],
                          env=side.env(report=True), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if client.stdout.readline() != "idle\n":
        raise common.Failure("the client of `idle` ended")
    time.sleep(0.5)     # not waiting for a state: leaving the last exchange out of the measurement
    before = cpu_ns(server.pid), cpu_ns(client.pid)
    begin = time.monotonic()
    time.sleep(secs)
    after = cpu_ns(server.pid), cpu_ns(client.pid)
    took = time.monotonic() - begin
    client.stdin.close()
    common.wait(client, 20)
    common.wait(server, 20)
    return [100 * (a - b) / 1e9 / took for a, b in zip(after, before)], side.counters()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("-k", "--filter", default="", help='text that "case / place" must contain')
    ap.add_argument("--place", help="one, two, free, one+hogs, free+hogs (commas)")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--secs", type=float, default=1.0, help="length of one run")
    ap.add_argument("-e", action="append", metavar="K=V", help="set for the preloaded side")
    ap.add_argument("--json", metavar="FILE", help="all single results ('-': instead of the table)")
    ap.add_argument("--check", action="store_true", help="judge by the floors")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("-q", "--quiet", action="store_true", help="no line per round")
    args = ap.parse_args()

    jobs = [(name, place) for name, (_, places) in CASES.items() for place in places
            if args.filter in f"{name} / {place}" and (not args.place or place in args.place.split(","))]
    with_idle = args.filter in "idle 100 / -" and not args.place
    if args.list:
        print("\n".join([f"{n} / {p}" for n, p in jobs] + ["idle 100 / -"] * with_idle))
        return 0
    if not jobs and not with_idle:
        sys.exit("nothing matches")
    if args.rounds < 5 and args.check:
        sys.exit("--check judges medians of at least 5 rounds")
    common.need_file(common.LIB, "make build")
    common.need_tools(*{t for n, _ in jobs for app, tools in NEEDS.items() if n.startswith(app) for t in tools})
    common.build_benches()
    common.adopt_orphans()
    common.raise_fd_limit()
    directory = common.workplace("sluice-bench-")
    extra = common.settings(args.e)

    def say(text):
        if not args.quiet:
            print(text, file=sys.stderr, flush=True)

    rows, verdicts, values = [], [], {}
    for name, where in jobs:
        base, _, hogs = where.partition("+")
        place = Place(base, bool(hogs))
        if not place.possible():
            say(f"{name} / {where}: skipped, this machine has one CPU")
            continue
        row = paired.measure(name, CASES[name][0], place, args.rounds, args.secs, extra, directory, say,
                             reports=name not in NOT_ACCELERATED)
        for error in row.errors:
            print(f"{row.key()}: {error}", file=sys.stderr, flush=True)
        rows.append(row)
        verdicts += judge(row)
    if with_idle:
        use, counters = idle(directory, extra)
        values["idle 100 / -"] = {"server_percent": use[0], "client_percent": use[1],
                                  "accelerated": counters.accelerated}
        floor = FLOORS["idle 100 / -"]
        verdicts.append((use[0] < floor, f"idle 100: the server uses {use[0]:.2f} % of a core (allowed {floor})"))
        verdicts.append((counters.accelerated == 100, f"idle 100: {counters}"))

    if args.json != "-":
        if rows:
            print(common.table([r.cells() for r in rows], paired.Row.HEADS))
            print(f"\nratio: preloaded / plain, median of {args.rounds} paired rounds; p50, p99: plain > preloaded; "
                  "link %: share of the client's bytes")
        for name, value in values.items():
            print(f"{name}: " + ", ".join(f"{k} {v:.2f}" for k, v in value.items()))
    if args.json:
        text = json.dumps({"rows": [r.json() for r in rows], "values": values, "settings": extra,
                           "verdicts": [{"held": ok, "text": t} for ok, t in verdicts]}, indent=1)
        if args.json == "-":
            print(text)
        else:
            with open(args.json, "w") as f:
                f.write(text + "\n")
    broken = [row for row in rows if row.errors]
    if args.check:
        print()
        for ok, text in verdicts:
            print(("held    " if ok else "MISSED  ") + text)
        held = sum(ok for ok, _ in verdicts)
        print(f"\n{held} floors held, {len(verdicts) - held} missed")
        return 0 if held == len(verdicts) and not broken else 1
    return 1 if broken else 0


def judge(row):
    """[(held, text)] for one row."""
    if row.errors:
        return [(False, f"{row.key()}: {row.errors[0]}")]
    out, ratio = [], row.ratio()
    span = f"{ratio:.2f} [{min(row.ratios()):.2f}..{max(row.ratios()):.2f}]"
    if row.key() in FLOORS:
        out.append((ratio >= FLOORS[row.key()], f"{row.key()}: {span} (floor {FLOORS[row.key()]})"))
    elif row.place in NEVER_SLOWER and row.case not in NOT_ACCELERATED:
        out.append((ratio >= 1.0, f"{row.key()}: {span} (never below 1.0)"))
    if row.case not in NOT_ACCELERATED:
        share = row.share() or 0.0
        out.append((share >= paired.LINK_SHARE,
                    f"{row.key()}: {share * 100:.1f} % of bytes by link (at least {paired.LINK_SHARE * 100:.0f})"))
    return out


if __name__ == "__main__":
    sys.exit(main())
