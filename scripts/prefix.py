#!/usr/bin/env python3
"""Do the two ends of a connection have the same digests of its first bytes, whatever calls moved them?

Runs src/preload/tests/prefix.c with a library of the feature `fault` (`make build-fault`, or a path in
LIBSLUICE): it hashes on any host, and says what it has when a socket is closed. Last line: N passed, N failed.
"""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import common      # noqa: E402

LIB = os.environ.get("LIBSLUICE") or common.FAULT_LIB
SAID = re.compile(r"^sluice: prefix: end (\d) (wrote|read)((?: [0-9a-f]{8})*)$")
# As the program names them: written and read by the connecting end (1), written and read by the other (2).
PLACES = [("1", "wrote"), ("1", "read"), ("2", "wrote"), ("2", "read")]


def differs(one, other):
    return any(a != b for a, b in zip(one, other))


def judge(expected, said):
    """What is wrong with what the ends of a connection have said; each may have said it in several processes."""
    wrong = []
    for place, least in zip(PLACES, expected.split()):
        most = max((len(words) for words in said.get(place, [[]])), default=0)
        if most < int(least.strip("-")) or least.startswith("-") and most > int(least[1:]):
            wrong.append(f"end {place[0]} {place[1]} {most} digests, not {least.strip('-')}")
    for way in (PLACES[0], PLACES[3]), (PLACES[2], PLACES[1]):
        lists = [words for place in way for words in said.get(place, [])]
        if any(differs(one, other) for one in lists for other in lists):
            wrong.append(f"end {way[0][0]} wrote what end {way[1][0]} has not read")
    return wrong


def main():
    common.need_file(LIB, "make build-fault")
    directory = common.workplace("sluice-prefix-")
    program = os.path.join(directory, "prefix")
    source = os.path.join(common.ROOT, "src", "preload", "tests", "prefix.c")
    subprocess.run(["cc", "-O2", "-pthread", "-std=gnu11", "-o", program, source], check=True)
    # No connection leaves TCP.
    env = common.environment(True, {"SLUICE_UPGRADE": "1024M", "SLUICE_LOG": "debug"}, lib=LIB)
    done = subprocess.run([program], env=env, stderr=subprocess.PIPE, text=True, timeout=60)
    connections = []
    for line in done.stderr.splitlines():
        if hit := SAID.match(line):
            connections[-1][2].setdefault((hit[1], hit[2]), []).append(hit[3].split())
        elif hit := re.fullmatch(r"([a-z ]+): ([-0-9 ]+)", line):
            connections.append((hit[1], hit[2], {}))
        else:
            print(line)
    failed = 0
    for name, expected, said in connections:
        if wrong := judge(expected, said):
            print(f"FAILED  {name}: {'; '.join(wrong)}")
            failed += 1
    if done.returncode != 0:
        print(f"FAILED  prefix: status {done.returncode}")
        failed += 1
    print(f"{len(connections) - failed} passed, {failed} failed")
    return 1 if failed or not connections else 0


if __name__ == "__main__":
    sys.exit(main())
