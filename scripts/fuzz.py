#!/usr/bin/env python3
"""Random programs of sockets calls, run on plain TCP and preloaded, call by call the same or a difference.

    scripts/fuzz.py --seconds 110 --seed 7      as many as there is time for
    scripts/fuzz.py --seed 7 --only 42          the 42nd of these
    scripts/fuzz.py --replay FILE               one that was written down, shrunk or changed by hand
    scripts/fuzz.py --plain --seconds 60        both worlds plain: does the model admit only what has one outcome?
    scripts/fuzz.py --prove                     are seeded defects of the library found? (build with the feature `fault`)

A program is drawn from the seed and its number. Its calls are made by agents (fuzz/agent.c), two or three processes with
a few threads each; it has one transcript, since a model admits only calls whose outcome does not depend on timing
(scripts/lib/fuzz/model.py). What differs is run again, classed as steady or not, shrunk, and written down in target/fuzz.
Last line: `N passed, N failed`.
"""

import argparse
import collections
import multiprocessing
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import common    # noqa: E402
from fuzz import judge    # noqa: E402
from fuzz.draw import draw    # noqa: E402

OUT = os.path.join(common.ROOT, "target", "fuzz")
MOST_SHRUNK = 6     # of differences of one kind only the first are worth the time


class Runner:
    """One of the processes that run programs."""

    def __init__(self, args):
        self.args = args
        common.adopt_orphans()
        self.judge = judge.Judge(common.workplace("sluice-fuzz-"), args.lib, args.fault_lib, args.plain)

    def drawn(self, number):
        program = draw(f"{self.args.seed}.{number}", bool(self.args.fault_lib))
        if self.args.set:
            program.settings.update(common.settings(self.args.set))
            program.library = "fault" if "SLUICE_FAULT" in program.settings else "usual"
        return program

    def one(self, number, seen):
        """Runs a program: (what it was, text for whoever reads it)."""
        program = self.drawn(number)
        found, plain, sluice, calls = self.judge.once(program)
        for op, _ in calls:
            self.judge.tally.names[op.name] = self.judge.tally.names.get(op.name, 0) + 1
        name = f"{self.args.seed}.{number}"
        if judge.broken(plain):
            path = self.write(f"{name}.model", program)
            return "model", f"plain TCP does not get through, {plain[-1]}: {path}"
        if not found:
            return "same", ""
        if not self.judge.is_steady(program, plain):
            self.judge.tally.unsteady += 1
            path = self.write(f"{name}.unsteady", program)
            return "model", f"plain TCP says now this, now that ({found}): {path}"
        path = self.write(name, program)
        differ, runs = self.judge.frequency(program)
        steady = "steady" if differ == runs else f"{differ} in {runs} again"
        text = f"{found}  [{steady}] {path}"
        if self.args.shrink and seen[found.signature()] < MOST_SHRUNK and not self.args.plain:
            small = self.judge.shrink(program, found.signature(), max(differ, 0.5) / runs, self.args.shrink)
            path = self.write(f"{name}.small", small)
            again, plain, sluice, calls = self.judge.once(small, 20)
            text += f"\n{len(small.ops)} of {len(program.ops)} calls, {path}:\n" + \
                "".join(f"  set {k}={v}\n" for k, v in small.settings.items()) + judge.told(calls, plain, sluice)
        return found.signature(), text

    @staticmethod
    def write(name, program):
        os.makedirs(OUT, exist_ok=True)
        path = os.path.join(OUT, name)
        with open(path, "w") as f:
            f.write(str(program))
        return os.path.relpath(path, common.ROOT)


def work(args, numbers, results):
    runner = Runner(args)
    seen = collections.Counter()
    while True:
        with numbers.get_lock():
            number = numbers.value
            numbers.value += 1
        if time.time() >= args.until or number >= args.programs:
            break
        kind, text = runner.one(number, seen)
        seen[kind] += 1
        results.put((number, kind, text))
    results.put((None, None, runner.judge.tally))


def fuzz(args):
    """(tally, {number: (kind, text)} of those that did not say the same)"""
    args.until = time.time() + args.seconds
    numbers, results = multiprocessing.Value("i", args.first), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=work, args=(args, numbers, results)) for _ in range(args.jobs)]
    for w in workers:
        w.start()
    tally, found, left = judge.Tally(), {}, len(workers)
    while left:
        number, kind, text = results.get()
        if number is None:
            tally.add(text)
            left -= 1
        elif kind != "same":
            found[number] = kind, text
            word = "model" if kind == "model" else "FAILED"
            print(f"{word}  {args.seed}.{number}: {text}", flush=True)
            if args.first_only and kind != "model":
                args.until = 0
                break
    for w in workers:
        w.kill() if left else None
        w.join()
    return tally, found


def replay(args):
    runner = Runner(args)
    program = judge.replayed(args.replay)
    if args.set:
        program.settings.update(common.settings(args.set))
    differences = collections.Counter()
    if args.backtraces:
        runner.judge.on_hang = lambda pids: print(common.backtraces(pids))
    for n in range(args.times):
        found, plain, sluice, calls = runner.judge.once(program)
        if n == 0 or found and not differences:
            print(judge.told(calls, plain, sluice))
        if judge.broken(plain):
            sys.exit("plain TCP does not get through")
        if found:
            differences[str(found)] += 1
    for text, n in differences.items():
        print(f"{n} of {args.times}: {text}")
    if args.smaller and differences:
        found, *_ = runner.judge.once(program, 30)
        print(runner.judge.shrink(program, found.signature(), sum(differences.values()) / args.times, args.shrink))
    print(runner.judge.tally)
    return 1 if differences else 0


# Defects that builds with the feature `fault` have on request, which must be found.
DEFECTS = ("wakeup", "peek")


def prove(args):
    passed = 0
    for defect in DEFECTS:
        args.set, args.first_only, args.shrink = [f"SLUICE_FAULT={defect}:{args.seed}"], True, 0
        begin = time.monotonic()
        tally, found = fuzz(args)
        ok = any(kind != "model" for kind, _ in found.values())
        passed += ok
        if not ok:
            print(f"FAILED  defect {defect}: not found in {args.seconds} s; {tally}")
        else:
            print(f"found   defect {defect} after {time.monotonic() - begin:.1f} s")
    print(f"{passed} passed, {len(DEFECTS) - passed} failed")
    return 0 if passed == len(DEFECTS) else 1


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--seed", type=int, default=None)
    ap.add_argument("--programs", type=int, default=1 << 30, help="up to this number")
    ap.add_argument("--only", type=int, help="the program of this number")
    ap.add_argument("--show", action="store_true", help="print programs instead of running them")
    ap.add_argument("--jobs", type=int, default=len(common.cpus()))
    ap.add_argument("--lib", default=common.LIB)
    ap.add_argument("--fault-lib", help="the library built with feature `fault`; without it nothing is demoted at random")
    ap.add_argument("--set", action="append", metavar="K=V", help="a setting of the library, whatever was drawn")
    ap.add_argument("--shrink", type=float, default=60, help="seconds to spend on making a program smaller, 0 for none")
    ap.add_argument("--plain", action="store_true")
    ap.add_argument("--replay", metavar="FILE")
    ap.add_argument("--times", type=int, default=10, help="of --replay")
    ap.add_argument("--smaller", action="store_true", help="of --replay: shrink it")
    ap.add_argument("--backtraces", action="store_true", help="of --replay: what a program that hangs is doing, by gdb")
    ap.add_argument("--prove", action="store_true")
    args = ap.parse_args()
    args.first_only = False
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 20)
    args.first = 0
    if args.only is not None:
        args.first, args.programs, args.jobs = args.only, args.only + 1, 1
    common.finished(["make", "-s", "-C", os.path.join(common.ROOT, "fuzz")], 60)
    if args.show:
        for n in range(args.first, min(args.programs, args.first + 1)):
            print(draw(f"{args.seed}.{n}", bool(args.fault_lib)), end="")
        return 0
    if not args.plain:
        common.need_file(args.lib, "make build")
        if args.fault_lib or args.prove:
            args.fault_lib = os.path.abspath(args.fault_lib or common.FAULT_LIB)
            common.need_file(args.fault_lib, "make build-fault")
    args.lib = os.path.abspath(args.lib)
    if args.replay:
        return replay(args)
    print(f"seed {args.seed}", flush=True)
    if args.prove:
        return prove(args)
    begin = time.monotonic()
    tally, found = fuzz(args)
    failed = sum(kind != "model" for kind, _ in found.values())
    print(", ".join(f"{name} {n}" for name, n in sorted(tally.names.items(), key=lambda x: -x[1])))
    print(f"{tally}; {tally.programs / (time.monotonic() - begin):.1f} programs/s")
    if len(found) > failed:
        print(f"{len(found) - failed} programs had more than one outcome on plain TCP: the model admits too much")
    # Programs that no connection was accelerated for would prove nothing.
    if not args.plain and args.only is None and tally.accelerated * 3 < tally.connections:
        print("FAILED  acceleration: most connections stayed on TCP")
        failed += 1
    print(f"{tally.programs - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
