#!/usr/bin/env python3
"""What does it cost programs to be looked at? A ping-pong of 64 bytes under Sluice, alone and while `sluice stat PID --watch 0.1 --json` reads the
counters of both its ends ten times a second; both beside plain TCP, in turn. The ratio of Sluice to TCP may change by 2 % at most.

    scripts/stat-cost.py [--rounds 15] [--secs 2]

Last line: `N passed, N failed`.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from statistics import median

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import ccases    # noqa: E402
import common    # noqa: E402
import paired    # noqa: E402

MOST = 0.02


def processes():
    """The ping-pong's, as soon as they are there."""
    found, end = [], time.monotonic() + 5
    while len(found) < 2 and time.monotonic() < end:
        time.sleep(0.02)
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if name_of(pid) == "pp"]
    return found


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
    except OSError:
        return ""


def rate(preload, watched, secs):
    """Both ends on one processor, so that the reader has another: what is measured is the looking, and not who gets a processor."""
    side, place = paired.Side(preload, reports=False), paired.Place("one")
    readers = []

    def look():
        for pid in processes():
            readers.append(common.start([common.CLI, "stat", str(pid), "--watch", "0.1", "--json"], stdout=subprocess.DEVNULL))

    watcher = threading.Thread(target=look) if watched else None
    try:
        if watcher:
            watcher.start()
        return ccases.ping_pong("pp", 64)(side, place, secs).rate
    finally:
        if watcher:
            watcher.join()
        for reader in readers:
            common.end(reader)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=15)
    ap.add_argument("--secs", type=float, default=2)
    args = ap.parse_args()
    if len(common.cpus()) < 2:
        print("skipped: needs two processors\n0 passed, 0 failed")
        return 0
    common.need_file(common.LIB, "make build")
    common.need_file(common.CLI, "make build")
    common.build_benches()
    common.adopt_orphans()
    alone, watched = [], []
    for i in range(args.rounds):
        plain = rate(False, False, args.secs)
        # Each goes first in every other round.
        for looked_at in (False, True) if i % 2 else (True, False):
            (watched if looked_at else alone).append(rate(True, looked_at, args.secs) / plain)
        print(f"round {i + 1}: {alone[-1]:.2f} of TCP alone, {watched[-1]:.2f} looked at", flush=True)
    changes = [w / a - 1 for w, a in zip(watched, alone)]
    change = median(changes)
    print(f"alone {median(alone):.3f} of TCP, looked at {median(watched):.3f}: the median of neighbours' changes is {change * 100:+.2f} %"
          f" [{min(changes) * 100:+.1f} .. {max(changes) * 100:+.1f}]")
    good = change > -MOST
    print(f"{int(good)} passed, {int(not good)} failed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
