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
import dataclasses
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
# Of the connections that were worth an upgrade, at least so many have to have got one: else little was tested.
LEAST_ACCELERATED = 0.8


@dataclasses.dataclass
class Found:
    """What came of a program that did not say the same in both worlds."""
    kind: object        # a difference's signature, or "model"
    text: str           # for whoever reads it
    seconds: float      # from the start until it showed

    @property
    def is_model(self):
        return self.kind == "model"


class Runner:
    """One of the processes that run programs."""

    def __init__(self, args, dir, enough):
        self.args, self.enough = args, enough
        common.adopt_orphans()
        self.judge = judge.Judge(dir, args.lib, args.fault_lib, args.plain)

    def drawn(self, number):
        name = f"{self.args.seed}.{number}"
        program = draw(name, bool(self.args.fault_lib))
        if self.args.defect:
            # Each program has its own moments in which the defect shows.
            program.settings["SLUICE_FAULT"] = f"{self.args.defect}:{random.Random(name).randrange(1 << 31)}"
        program.settings.update(common.settings(self.args.set))
        program.build = "fault" if "SLUICE_FAULT" in program.settings else "usual"
        return program

    def one(self, number, seen):
        """Runs a program: None, or what was found."""
        program = self.drawn(number)
        found, plain, _, calls = self.judge.once(program)
        seconds = time.time() - self.args.begin
        self.judge.tally.programs += 1
        self.judge.tally.calls += len(calls)
        for op, _ in calls:
            self.judge.tally.names[op.name] = self.judge.tally.names.get(op.name, 0) + 1
        name = f"{self.args.seed}.{number}"
        if judge.broken(plain):
            return Found("model", f"plain TCP does not get through, {plain[-1]}{self.mistake(name, program, self.judge.is_broken, len(plain))}", seconds)
        if not found:
            return None
        if not self.judge.is_steady(program, plain):
            text = self.mistake(name, program, self.judge.is_unsteady, found.at + 1)
            return Found("model", f"plain TCP says now this, now that, {found}{text}", seconds)
        path = self.write(name, program)
        if self.args.defect:
            # By the same library without the defect it says what plain TCP does.
            healthy = dataclasses.replace(program, settings={k: v for k, v in program.settings.items() if k != "SLUICE_FAULT"})
            if not DEFECTS[self.args.defect](*found.signature()) or self.judge.frequency(healthy)[0]:
                return None
            # One will do.
            if self.enough.is_set():
                return None
            self.enough.set()
        differ, runs = self.judge.frequency(program)
        steady = "steady" if differ == runs else f"{differ} in {runs} again"
        text = f"{found}  [{steady}]"
        if self.args.shrink and seen[found.signature()] < MOST_SHRUNK and not self.args.plain:
            shows = self.judge.shows(found.signature(), max(differ, 0.5) / runs)
            small = self.judge.shrink(program, shows, found.at + 1, self.args.shrink)
            path = self.write(f"{name}.small", small)
            _, plain, sluice, calls = self.judge.once(small, 20)
            text += f"\n{len(small.ops)} of {len(program.ops)} calls, {', '.join(small.head())}:\n" + judge.told(calls, plain, sluice)
        return Found(found.signature(), f"{text}\n  again: scripts/fuzz.py --replay {path}", seconds)

    def mistake(self, name, program, shows, lines):
        """Of the model: what is to be said of it."""
        path = self.write(f"{name}.model", program)
        if self.args.shrink:
            small = self.judge.shrink(program, shows, lines, self.args.shrink)
            path = self.write(f"{name}.model.small", small)
            return f"\n{small}  again: scripts/fuzz.py --plain --replay {path}"
        return f"\n  again: scripts/fuzz.py --plain --replay {path}"

    @staticmethod
    def write(name, program):
        os.makedirs(OUT, exist_ok=True)
        path = os.path.join(OUT, name)
        with open(path, "w") as f:
            f.write(str(program))
        return os.path.relpath(path, common.ROOT)


def work(args, dir, enough, numbers, results):
    runner = Runner(args, dir, enough)
    seen = collections.Counter()
    while not enough.is_set():
        with numbers.get_lock():
            number = numbers.value
            numbers.value += 1
        if time.time() >= args.until or number >= args.programs:
            break
        if found := runner.one(number, seen):
            seen[found.kind] += 1
            results.put((number, found))
    results.put((None, runner.judge.tally))


def fuzz(args, tell):
    """(tally, {number: what was found}), each told as it comes."""
    args.begin = time.time()
    args.until = args.begin + args.seconds
    shared = multiprocessing.Event(), multiprocessing.Value("i", args.first), multiprocessing.Queue()
    results = shared[-1]
    workers = [multiprocessing.Process(target=work, args=(args, common.workplace("sluice-fuzz-"), *shared))
               for _ in range(args.jobs)]
    for w in workers:
        w.start()
    tally, found, left = judge.Tally(), {}, len(workers)
    while left:
        number, what = results.get()
        if number is None:
            tally.add(what)
            left -= 1
        else:
            found[number] = what
            tell(number, what)
    for w in workers:
        w.join()
    return tally, found


def replay(args):
    runner = Runner(args, common.workplace("sluice-fuzz-"), None)
    program = judge.replayed(args.replay)
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
        shows = runner.judge.shows(found.signature(), sum(differences.values()) / args.times)
        print(runner.judge.shrink(program, shows, found.at + 1, args.shrink))
    print(runner.judge.tally)
    return 1 if differences else 0


WAITS = {"poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait", "epoll_pwait2"}
# Defects that builds with the feature `fault` have on request, which must be found, and as what: a call that does not end or a wait that
# tells nothing; bytes that a call has read.
DEFECTS = {
    "wakeup": lambda call, plain, sluice: sluice == "HANGS" or call in WAITS,
    "peek": lambda call, plain, sluice: call in {"recv", "get", "join"} and sluice != "HANGS",
}


def prove(args):
    passed = 0
    for args.defect in DEFECTS:
        def tell(number, what):
            if not what.is_model:
                print(f"found   defect {args.defect} after {what.seconds:.1f} s, program {args.seed}.{number}: {what.text}", flush=True)

        _, found = fuzz(args, tell)
        if any(not what.is_model and what.seconds <= args.seconds for what in found.values()):
            passed += 1
        else:
            print(f"FAILED  defect {args.defect}: not found in {args.seconds:.0f} s")
    print(f"{passed} passed, {len(DEFECTS) - passed} failed")
    return 0 if passed == len(DEFECTS) else 1


def compare(args):
    def tell(number, what):
        print(f"FAILED  {args.seed}.{number}: {what.text}", flush=True)

    begin = time.monotonic()
    tally, found = fuzz(args, tell)
    seconds = time.monotonic() - begin
    failed = len(found)
    print(", ".join(f"{name} {n}" for name, n in sorted(tally.names.items(), key=lambda x: -x[1])))
    print(f"{tally}; {tally.programs / seconds:.1f} programs and {tally.calls / seconds:.0f} calls a second")
    if mistakes := sum(what.is_model for what in found.values()):
        print(f"{mistakes} programs had more than one outcome on plain TCP: the model admits too much")
    # Programs that no connection was accelerated for would prove nothing.
    if not args.plain and args.only is None and tally.accelerated < tally.eligible * LEAST_ACCELERATED:
        print(f"FAILED  acceleration: of the connections that were worth it, less than {LEAST_ACCELERATED:.0%}")
        failed += 1
    print(f"{tally.programs - len(found)} passed, {failed} failed")
    return 1 if failed else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--seed", type=int, default=None)
    ap.add_argument("--programs", type=int, default=1 << 30, help="up to this number")
    ap.add_argument("--only", type=int, help="the program of this number")
    ap.add_argument("--show", action="store_true", help="print a program instead of running it")
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
    args.defect, args.begin = None, time.time()
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 20)
    args.first = 0
    if args.only is not None:
        args.first, args.programs, args.jobs = args.only, args.only + 1, 1
    common.finished(["make", "-s", "-C", os.path.join(common.ROOT, "fuzz")], 60)
    if args.show:
        print(draw(f"{args.seed}.{args.first}", bool(args.fault_lib)), end="")
        return 0
    if not args.plain:
        common.need_file(args.lib, "make build")
        if args.prove or args.replay and judge.replayed(args.replay).build == "fault":
            args.fault_lib = args.fault_lib or common.FAULT_LIB
        if args.fault_lib:
            args.fault_lib = os.path.abspath(args.fault_lib)
            common.need_file(args.fault_lib, "make build-fault")
    args.lib = os.path.abspath(args.lib)
    if args.replay:
        return replay(args)
    print(f"seed {args.seed}", flush=True)
    return prove(args) if args.prove else compare(args)


if __name__ == "__main__":
    sys.exit(main())
