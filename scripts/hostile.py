#!/usr/bin/env python3
"""Live attackers against programs under the library: what they do must hurt nobody but themselves.

    scripts/hostile.py                  every test; of the matrix every cell
    scripts/hostile.py --sample SEED    about a minute: the control, the impostors, a draw of the others
    scripts/hostile.py -k mitm          tests whose name contains the text
    scripts/hostile.py --list

As root: attackers are processes of other users. In a network namespace of its own. Where a test cannot be tried it says why.
Last lines: what was skipped, if anything, and `N passed, N failed`."""

import argparse
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import common    # noqa: E402
from common import Failure, Hang    # noqa: E402
from hostile import control, impostors, leaks, matrix, users    # noqa: E402
from hostile.victims import Place, Skip    # noqa: E402

MODULES = (control, impostors, leaks, users, matrix)


def tests():
    """(name, what does it, whether each sample has it)"""
    for module in MODULES:
        for test in module.TESTS:
            yield test.__name__, test, module.ALWAYS


def attempt(test, place):
    """What went wrong, or None."""
    try:
        return None, test(place)
    except Hang as e:
        return common.hung(e), None
    except Failure as e:
        return str(e), None
    finally:
        common.end_trees()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--sample", type=int, metavar="SEED")
    ap.add_argument("--filter", "-k", default="")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--lib", default=common.LIB, help="the library")
    ap.add_argument("--fault-lib", default=common.FAULT_LIB, help="one with SLUICE_FAULT, for older kernels")
    args = ap.parse_args()

    seed = args.seed if args.sample is None else args.sample
    rng = random.Random(seed)
    random.seed(seed)
    jobs = [t for t in tests() if args.filter in t[0]]
    if args.sample is not None:
        drawn = [t for t in jobs if not t[2]]
        jobs = [t for t in jobs if t[2]] + rng.sample(drawn, min(SAMPLE, len(drawn)))
    if args.list:
        print("\n".join(name for name, *_ in jobs))
        return 0
    if not jobs:
        sys.exit("nothing matches")
    common.need_file(args.lib, "make build")
    common.need_file(args.fault_lib, "make build-fault")
    if os.geteuid() != 0:
        print("skipped: attackers are other users: only root can make them")
        print("0 passed, 0 failed")
        return 0
    common.adopt_orphans()
    if not common.private_network():
        sys.exit("no network namespace of our own: other programs' names would be among ours")
    common.raise_fd_limit()
    place = Place(args.lib, args.fault_lib)
    print(f"seed {seed}, {len(jobs)} tests", flush=True)
    passed = failed = 0
    skipped = []
    for name, test, _ in jobs:
        begin = time.monotonic()
        try:
            wrong, note = attempt(test, place)
        except Skip as e:
            print(f"skipped {name}: {e}", flush=True)
            skipped.append(name)
            continue
        took = time.monotonic() - begin
        left = common.leftovers()
        if left and wrong is None:
            wrong = f"left behind: {'; '.join(left)}"
        if wrong is None:
            passed += 1
            print(f"ok      {name}  ({took:.1f} s){f': {note}' if note else ''}", flush=True)
        else:
            failed += 1
            print(f"FAILED  {name}  ({took:.1f} s): {wrong}", flush=True)
    if skipped:
        print(f"{len(skipped)} skipped: {', '.join(skipped)}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


# Tests of a sample beside those that each has.
SAMPLE = 60

if __name__ == "__main__":
    sys.exit(main())
