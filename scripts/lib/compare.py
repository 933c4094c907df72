"""TCP against Sluice with real programs: alternating plain and preloaded runs, medians, ratios.
Started by scripts/compare.sh."""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time

import apps
import ccases
import common
import paired

CASES = {
    "curl, 64 MiB file": apps.nginx_curl(64 << 20, 6),
    "nginx + wrk, 1 KiB, 32 conns": apps.nginx_wrk(1024, 32),
    "nginx + wrk, 64 KiB, 32 conns": apps.nginx_wrk(65536, 32),
    "nginx + wrk, 1 MiB, 8 conns": apps.nginx_wrk(1 << 20, 8),
    "nginx + wrk, 1 KiB, close": apps.nginx_wrk(1024, 32, close=True),
    "redis-benchmark -c 1": apps.redis(1, 1),
    "redis-benchmark -c 50": apps.redis(50, 1),
    "redis-benchmark -c 50 -P 16": apps.redis(50, 16),
    "iperf3 -P 1": apps.iperf3(1),
    "iperf3 -P 4": apps.iperf3(4),
    "C ping-pong, 64 B": ccases.ping_pong("pp", 64),
    "C ping-pong, 64 B, epoll": ccases.ping_pong("epp", 64),
}
QUICK = ("curl, 64 MiB file", "nginx + wrk, 1 KiB, 32 conns", "nginx + wrk, 1 MiB, 8 conns",
         "redis-benchmark -c 1", "redis-benchmark -c 50", "iperf3 -P 1", "C ping-pong, 64 B")
# One request a connection: these stay on TCP by design, and the table says so.
SHORT = {"nginx + wrk, 1 KiB, close"}


# What README.md shows of them, in its words.
README = os.path.join(common.ROOT, "README.md")
SHOWN = {
    "redis-benchmark -c 50": "redis, 50 clients, requests",
    "redis-benchmark -c 1": "redis, one client, requests",
    "nginx + wrk, 1 KiB, 32 conns": "nginx, 32 connections, files of 1 KiB",
    "nginx + wrk, 1 MiB, 8 conns": "nginx, 8 connections, files of 1 MiB",
    "nginx + wrk, 1 KiB, close": "nginx, a new connection for each 1 KiB",
    "iperf3 -P 1": "iperf3, one stream",
}


def processor():
    with open("/proc/cpuinfo") as f:
        model = re.search(r"model name\s*: (.*)", f.read())
    return model.group(1) if model else platform.machine()


def machine():
    """Where, when and of what the figures of a table are."""
    commit = subprocess.run(["git", "-C", common.ROOT, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True)
    where = f"{len(common.cpus())} processors of a virtual machine" if virtual() else f"{len(common.cpus())} processors"
    return (f"{processor()}, {where}, Linux {platform.release().split('-')[0]}, commit {commit.stdout.strip()}, "
            f"{time.strftime('%B %Y')}")


def figures(rows, rounds):
    """The table of README.md, in Markdown."""
    lines = ["| | TCP | Sluice | times |", "|---|---|---|---|"]
    by_name = {row.case: row for row in rows if not row.errors}
    for name, words in SHOWN.items():
        cells = by_name[name].cells()
        lines.append(f"| {words} | {cells[2]} | {cells[3]} | {cells[4]} [{cells[5]}] |")
    return "\n".join([*lines, "",
                      f"Default settings; medians of {rounds} runs in turn, [lowest..highest]. {machine()}. The fewer "
                      "processors there are to share, the less there is to gain: `sluice bench` measures yours."])


def virtual():
    with open("/proc/cpuinfo") as f:
        return " hypervisor" in f.read()


def write_readme(rows, rounds):
    begin, end = "<!-- figures: scripts/compare.sh --readme -->\n", "<!-- end of figures -->"
    with open(README) as f:
        text = f.read()
    head, rest = text.split(begin)
    with open(README, "w") as f:
        f.write(head + begin + "\n" + figures(rows, rounds) + "\n\n" + end + rest.split(end, 1)[1])


def watch(pids, want, limit=5.0):
    """Asks `sluice stat` until `want` connections of these processes are accelerated, or the limit:
    the last counters seen."""
    deadline = time.monotonic() + limit
    while True:
        seen = common.stat_counters([p for p in pids if os.path.exists(f"/proc/{p}")])
        if seen.accelerated >= want or time.monotonic() > deadline:
            return seen
        time.sleep(0.1)


def proof(extra):
    """[(what, counters of the server, wanted)]: asked of living servers in the middle of traffic."""
    out = []
    side, place = paired.Side(True, extra), paired.Place("free")

    def traffic(cmd):
        return common.start(cmd, env=side.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    server = apps.Nginx(side.env(), {"file": 65536})
    client = traffic(["wrk", "-t1", "-c32", "-d8s", server.url("file")])
    out.append(("nginx under wrk, 32 connections", watch(server.workers(), 32), 32))
    common.end(client)
    server.stop()

    server = apps.Redis(side, place)
    client = traffic(["redis-benchmark", "-h", apps.HOST, "-p", str(server.port), "-t", "get", "-c", "50",
                      "-n", "100000000"])
    out.append(("redis-server under redis-benchmark, 50 connections", watch([server.child.pid], 50), 50))
    common.end(client)
    server.stop()

    port = common.free_port()
    server = common.start(["iperf3", "-s", "-1", "-B", apps.HOST, "-p", str(port)], env=side.env(),
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    common.wait_listening(port, server)
    client = traffic(["iperf3", "-c", apps.HOST, "-p", str(port), "-P", "4", "-t", "8"])
    # Its control connection carries a few hundred bytes and stays on TCP.
    out.append(("iperf3 -P 4, 4 streams", watch([server.pid], 4), 4))
    common.end(client)
    common.end(server)
    common.leftovers()
    return out


def main():
    ap = argparse.ArgumentParser(prog="scripts/compare.sh", description=__doc__)
    ap.add_argument("--quick", action="store_true", help="the main cases, 3 rounds")
    ap.add_argument("--rounds", type=int)
    ap.add_argument("--secs", type=float, default=1.0)
    ap.add_argument("-k", "--filter", default="")
    ap.add_argument("-e", action="append", metavar="K=V", help="set for the preloaded side")
    ap.add_argument("--json", metavar="FILE")
    ap.add_argument("--readme", action="store_true", help="writes the table of README.md")
    ap.add_argument("--html", metavar="FILE", help="the page of `sluice bench`, with these programs on it")
    args = ap.parse_args()
    rounds = args.rounds or (3 if args.quick else 5)
    names = [n for n in CASES if args.filter in n and (not args.quick or n in QUICK) and (not args.readme or n in SHOWN)]
    if not names:
        sys.exit("nothing matches")
    common.need_file(common.LIB, "make build")
    common.need_file(common.CLI, "make build")
    common.need_tools("nginx", "curl", "wrk", "redis-server", "redis-benchmark", "iperf3")
    common.build_benches()
    common.adopt_orphans()
    common.raise_fd_limit()
    extra = common.settings(args.e)
    directory = common.workplace("sluice-compare-")

    rows = []
    for name in names:
        row = paired.measure(name, CASES[name], paired.Place("free"), rounds, args.secs, extra, directory,
                             lambda t: print(t, file=sys.stderr, flush=True), reports=name not in SHORT)
        rows.append(row)
        for error in row.errors:
            print(f"{name}: {error}", file=sys.stderr)

    print(f"\nPlain TCP against Sluice on this machine ({len(common.cpus())} CPUs), {rounds} alternating rounds, "
          "medians:\n")
    heads = ["", "TCP", "Sluice", "ratio", "min..max", "CPU/op", "by link"]
    lines = []
    for row in rows:
        c = row.cells()
        lines.append([c[0], c[2], c[3], c[4], c[5], c[6], c[9] + (" %" if c[9] != "-" else "")])
    print(common.table(lines, heads))
    print("\nratio: more is better for Sluice; CPU/op: less is better; by link: share of the client's bytes that\n"
          "did not go by TCP.\n")

    print("What `sluice stat --json` says of the servers, asked in the middle of traffic:\n")
    good = not any(row.errors for row in rows)
    try:
        for what, counters, want in proof(extra):
            ok = counters.accelerated >= want and counters.link > 0
            good &= ok
            print(f"  {'accelerated    ' if ok else 'NOT ACCELERATED'}  {what}: {counters}")
    except common.Failure as e:
        good = False
        print(f"  FAILED  {e}")
        common.end_trees()
    for row in rows:
        if row.case not in SHORT and not row.errors and (row.share() or 0) < paired.LINK_SHARE:
            good = False
            print(f"  NOT ACCELERATED  {row.case}: {(row.share() or 0) * 100:.1f} % of its bytes by link")
    path = args.json or os.path.join(directory, "programs.json")
    with open(path, "w") as f:
        json.dump([row.json() for row in rows], f, indent=1)
    if args.readme and good:
        write_readme(rows, rounds)
    if args.html:
        subprocess.run([common.CLI, "bench", "--programs", path, "--html", args.html], check=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
