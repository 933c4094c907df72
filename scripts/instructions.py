#!/usr/bin/env python3
"""Counts the library's own instructions in each of its hot calls, and holds them to a baseline.

    scripts/instructions.py             a table: call, baseline, now, ratio
    scripts/instructions.py --check     fails if one takes 3 % more, and 1 instruction more
    scripts/instructions.py --record    makes what the calls take now the baseline

Times differ from run to run where a machine has other work; counts of instructions do not. So they
show a loss of a few per cent, which no benchmark here can. They do not show what a cache miss or a
system call costs: scripts/bench.py does.

benches/hot.c makes the calls under callgrind, which counts only while a call is made, and not the
first ones. Taken are the instructions of libsluice.so, without those of the C library.

The baseline is benches/instructions.json. Record it anew when a call has become cheaper, so that it
stays so, or when it has become dearer for something that is worth it. The commit says which call,
and why.

Another compiler makes other instructions of the same source. Where it is not the baseline's, 10 %
more are allowed; on another kind of processor nothing is compared. Everywhere a hook may add 30
instructions to a call on a descriptor that is not tracked: docs/decisions/001-hooks.md.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import common    # noqa: E402

BASELINE = os.path.join(common.ROOT, "benches", "instructions.json")
# How much more than its baseline a call may take, the second where the compiler is another one.
MORE, MORE_ELSE = 0.03, 0.10
# The most instructions that a hook may add to a call on a descriptor that is not tracked.
PROMISED = 30


def compiler():
    """The version of rustc that the library says it was built by."""
    with open(common.LIB, "rb") as f:
        found = re.search(rb"rustc version ([^\0()]*\([^\0()]*\))", f.read())
    return found.group(1).decode() if found else "unknown"


def of_library(path):
    """The instructions of the library's functions, without what they call, in one of callgrind's
    files."""
    names, here, total, is_call = {}, None, 0, False
    library = os.path.realpath(common.LIB)
    with open(path) as f:
        for line in f:
            if hit := re.match(r"(c?)ob=(\(\d+\))(?: (.*))?$", line):
                names.setdefault(hit[2], hit[3])
                if not hit[1]:
                    here = names[hit[2]]
            elif line.startswith("calls="):
                is_call = True      # the next line counts what the called function took
            elif re.match(r"[\d*+-]", line):
                if not is_call and here == library:
                    total += int(line.split()[1])
                is_call = False
    return total


def count():
    """{call: instructions}"""
    directory = common.workplace("sluice-instructions-")
    out = os.path.join(directory, "callgrind")
    child = common.start(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}",
                          "--toggle-collect=counted", "--dump-after=done",
                          os.path.join(common.BIN, "hot")],
                         env=common.environment(True, {"SLUICE_UPGRADE": "eager"}),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines, log = common.communicate(child, 120)
    if child.returncode != 0:
        raise common.Failure(f"benches/hot.c: status {child.returncode}: {log[-400:]}")
    # "TIMES NAME" for each of callgrind's files, in their order.
    calls = [line.split(" ", 1) for line in lines.splitlines()]
    return {name: of_library(f"{out}.{n}") / int(times) for n, (times, name) in enumerate(calls, 1)}


def judge(call, now, before, more):
    """What is wrong with it, or None. `before`: its baseline; None where nothing is compared."""
    if call.startswith("untracked ") and now > PROMISED:
        return f"{now:.1f} instructions, {PROMISED} are promised"
    if before is not None and now > max(before * (1 + more), before + 1):
        return f"{now:.1f} instructions, {before:.1f} in the baseline"
    return None


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    what = ap.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true")
    what.add_argument("--record", action="store_true")
    args = ap.parse_args()
    common.need_file(common.LIB, "make build")
    common.need_tools("valgrind")
    common.build_benches()
    try:
        now = count()
    except common.Failure as e:
        sys.exit(str(e))
    here = {"rustc": compiler(), "processor": platform.machine()}
    if args.record:
        with open(BASELINE, "w") as f:
            rounded = {call: round(n, 1) for call, n in now.items()}
            json.dump({**here, "instructions": rounded}, f, indent=1)
            f.write("\n")
    with open(BASELINE) as f:
        baseline = json.load(f)
    before, more = baseline["instructions"], MORE
    if baseline["processor"] != here["processor"]:
        print(f"The baseline is of {baseline['processor']}, this is {here['processor']}: "
              "nothing is compared.")
        before = {}
    elif baseline["rustc"] != here["rustc"]:
        print(f"The baseline is of rustc {baseline['rustc']}, the library of {here['rustc']}: "
              f"{MORE_ELSE:.0%} more are allowed instead of {MORE:.0%}.")
        more = MORE_ELSE
    rows = []
    for call, n in now.items():
        old = before.get(call)
        compared = ("-", "-") if old is None else (f"{old:.1f}", f"{n / old:.3f}")
        rows.append((call, compared[0], f"{n:.1f}", compared[1]))
    print(common.table(rows, ["call", "baseline", "now", "ratio"]))
    if not args.check:
        return 0
    wrong = {call: judge(call, n, before.get(call), more) for call, n in now.items()}
    if before:
        for call in now.keys() ^ before.keys():
            wrong[call] = "is in the baseline alone" if call in before else "is not in the baseline"
    bad = {call: text for call, text in wrong.items() if text}
    for call, text in bad.items():
        print(f"FAILED  {call}: {text}")
    print(f"{len(wrong) - len(bad)} passed, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
