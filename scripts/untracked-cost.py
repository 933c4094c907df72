#!/usr/bin/env python3
"""What a hooked call costs a program that has nothing to gain: instructions a call, plain and preloaded.

Each call is made N and 3N times on descriptors that are not tracked, and on epoll sets without a stream, under
callgrind; the difference is free of start-up. Exit status 1 if any call costs more than the floor of
scripts/bench.py allows. Arguments pick calls. Last line: N passed, N failed.
"""

import sys

import bench
import common


def main():
    calls = sys.argv[1:] or bench.CALLS
    allowed = bench.FLOORS["hook instructions / -"]
    rows, failed = [], 0
    common.need_file(common.LIB, "make build")
    common.need_tools("valgrind")
    common.build_benches()
    directory = common.workplace("sluice-cost-")
    plain, fast = common.environment(False), common.environment(True, {})
    for call in calls:
        before = bench.instructions(plain, call, directory)
        after = bench.instructions(fast, call, directory)
        over = after - before > allowed
        failed += over
        rows.append((call, f"{before:.1f}", f"{after:.1f}", f"{after - before:.1f}", "too many" if over else ""))
    print(common.table(rows, ["call", "plain", "preloaded", "added", f"allowed {allowed}"]))
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
