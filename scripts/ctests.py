#!/usr/bin/env python3
"""Runs the bodies of c-tests in several environments and compares their transcripts with plain TCP's.

A case is a body in one environment, warmed up or not, over one address family, with blocking sockets or not.
Plain is the oracle: every other environment must print the same. A warmed-up case with both sides preloaded must
also show, by the library's own counters, that its connections were accelerated exactly when the body says so.

  scripts/ctests.py                        a seeded sample in which every pair of choices occurs
  scripts/ctests.py --full                 every case
  scripts/ctests.py --env eager --filter 'epoll.*'
  scripts/ctests.py --case 'fork_child_exits [eager warm ip4]' --seed 7    one case, by the name that it is printed under
  scripts/ctests.py --env plain --repeat 20    is the oracle itself deterministic?
  scripts/guest/run -- scripts/ctests.py --hosts    the two sides in the guest's two hosts, plain as well
"""
import argparse
import concurrent.futures
import difflib
import itertools
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import common  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
CTEST = ROOT / "c-tests" / "bin" / "ctest"
EAGER = {"SLUICE_UPGRADE": "eager"}
SLOW = float(os.environ.get("GUEST_SLOW", "1"))  # factor of a guest on every time limit
MOST_TOLD = 12000  # characters of a hang's backtraces: what is written elsewhere may be lost with a guest
DEVICE = os.environ.get("GUEST_DEVICE", "none")
LINKED = DEVICE != "none"  # the two hosts, if that is where this runs, have RDMA
# iWARP is used only where that was agreed on; the addresses of scripts/guest/run.
PEERS = {"SLUICE_PEERS": "10.99.0.0/24,fd99::/64"}
# environment: who is preloaded (s, c), and with which variables
ENVS = {
    "plain": ("", {}),
    "eager": ("sc", EAGER),
    "default": ("sc", {}),
    "off": ("sc", {"SLUICE_UPGRADE": "off"}),
    "client-only": ("c", EAGER),
    "server-only": ("s", EAGER),
    "direct": ("sc", EAGER | {"SLUICE_MODE": "direct"}),
    "indirect": ("sc", EAGER | {"SLUICE_MODE": "indirect"}),
    "fault": ("sc", EAGER | {"SLUICE_FAULT": "demote:{seed}"}),
}
STEADY = ("eager", "default")  # where a connection that has been accelerated may stay so
MUST_UPGRADE = (*STEADY, "direct", "indirect", "fault")  # where the counters are held against the body's declaration, within one host
# Bodies whose warmed connections are on their link to the end, for all that is done with them: --note-stays has made the list.
STAYS = ROOT / "c-tests" / "stays.txt"
# How such a connection may end there, which counts as one demotion. (not-established: its TCP had ended when one direction alone was on the link.)
ENDS = {"none", "close", "exit", "shutdown", "peer-closed", "peer-died", "peer-demoted", "linger-reset", "not-established"}
FAMILIES = {"4": [], "6": ["-6"], "mapped": ["-m"]}


@dataclass(frozen=True)
class Body:
    name: str
    sides: int
    upgrades: str  # whether a warmed connection is accelerated: up, may, no
    limit: int
    nonblock: bool
    steady: bool  # not for an environment that demotes at any moment
    muted: str  # sides that die without a report
    dies: bool  # of a side that is killed nobody can tell over RDMA whether it had more to say: always a reset
    onehost: bool  # does what a link over RDMA cannot keep from being seen
    untold: bool  # what it looks for a device that takes addresses alone (soft-iWARP) tells
    stays: bool  # warmed, its connections do not leave their link before they end


@dataclass(frozen=True)
class Case:
    body: Body
    env: str
    warm: bool
    family: str
    nonblock: bool
    seed: int
    hosts: bool

    def __str__(self):
        return (f"{self.body.name} [{self.env} {'warm' if self.warm else 'cold'} ip{self.family}"
                f"{' nonblock' if self.nonblock else ''}{' hosts' if self.hosts else ''}]")

    def choices(self):
        return self.body.name, self.env, self.warm, self.family, self.nonblock

    def oracle(self):
        return replace(self, env="plain", seed=0)

    def options(self):
        return (["-w"] if self.warm else []) + FAMILIES[self.family] + (["-n"] if self.nonblock else []) + \
            (["-N"] if self.hosts else [])

    def side_env(self, side, args):
        who, variables = ENVS[self.env]
        if side not in who:
            return {}
        lib = args.fault_lib if self.env == "fault" else args.lib
        variables = variables | (PEERS if self.hosts else {})
        return {"LD_PRELOAD": str(lib)} | {k: v.format(seed=self.seed) for k, v in variables.items()}

    def command(self, args, extra=lambda side: {}):
        words = [str(CTEST), *self.options()]
        for side in "sc" if self.body.sides == 2 else "s":
            for k, v in (self.side_env(side, args) | extra(side)).items():
                words += ["-" + side, f"{k}={v}"]
        return words + [self.body.name]


@dataclass
class Result:
    case: Case
    transcript: str
    problems: list
    left: list = ()  # connections that did not stay on their link
    unreported: list = ()  # worth telling only where nothing else went wrong: who crashes or hangs reports nothing
    seconds: float = 0


def bodies():
    listing = subprocess.run([CTEST, "-l"], check=True, capture_output=True, text=True).stdout
    stays = set(STAYS.read_text().split())
    for line in listing.splitlines():
        name, sides, up, limit, nonblock, steady, muted, end = line.split()
        yield Body(name, int(sides), up, int(limit), nonblock == "nb", steady == "steady", muted.strip("-"), end == "dies", end == "onehost",
                   end == "untold", name in stays)
        stays.discard(name)
    if stays:
        sys.exit(f"{STAYS} names what is no body: {', '.join(sorted(stays))}")


def cases_of(body, envs, args):
    for env in envs:
        if body.sides == 1 and (args.hosts or env in ("client-only", "server-only")) or \
                body.steady and env == "fault":
            continue
        for warm, family, nb in itertools.product((False, True), args.families, (False, True)):
            # An eager connection need not be warm to be on a queue pair.
            is_linked = args.hosts and LINKED and len(ENVS[env][0]) == 2
            untold = body.untold and DEVICE == "siw" and is_linked
            if (not nb or body.nonblock) and not untold and not (body.onehost and is_linked and warm):
                yield Case(body, env, warm, family, nb, args.seed, args.hosts)


def sample(cases, want, seed):
    """Cases in which every pair of choices occurs that occurs in `cases`, or the first `want` of such a list."""
    rng = random.Random(seed)
    pairs = lambda c: set(itertools.combinations(enumerate(c.choices()), 2))
    rng.shuffle(cases)
    missing = set().union(*map(pairs, cases)) if cases else set()
    chosen, pool = [], list(cases)
    while pool and (len(chosen) < want if want else missing):
        look = pool[:40] if missing else pool[:1]
        best = max(look, key=lambda c: len(pairs(c) & missing))
        if missing and not pairs(best) & missing:  # none of these helps: drop them from sight
            helpful = [c for c in pool if pairs(c) & missing]
            rest = [c for c in pool if not pairs(c) & missing]
            pool = helpful + rest
            continue
        pool.remove(best)
        missing -= pairs(best)
        chosen.append(best)
    return chosen


def descendants(pid):
    kids = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = pathlib.Path(entry.path, "stat").read_text()
            except OSError:
                continue
            kids.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        found += kids.get(queue[-1], [])
        queue += kids.get(queue.pop(), [])
    return found


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def parse_report(path):
    """{(local port, peer port): (upgrades, demotions, reason)}; several processes may have reported one connection: the most counts."""
    seen = {}
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return seen
    for line in lines:
        if line.startswith("conn "):
            fields = dict(f.split("=", 1) for f in line.split()[1:])
            key = tuple(int(fields[end].rsplit(":", 1)[1]) for end in ("local", "peer"))
            # Which way the peer took it back is the peer's to answer for.
            reason = "peer-demoted" if fields["reason_of"] == "peer" else fields["reason"]
            one = int(fields["upgrades"]), int(fields["demotions"]), reason
            seen[key] = max(seen.get(key, (0, 0, "")), one)
    return seen


def check_counters(case, dir):
    """Each warmed connection against both ends' reports."""
    problems, unreported, left = [], [], []
    try:
        warmed = [tuple(map(int, l.split())) for l in (dir / "warmed").read_text().splitlines()]
    except FileNotFoundError:
        warmed = []
    if not warmed and case.body.upgrades != "no":
        problems.append("no connection was warmed up")
    reports = {s: parse_report(dir / f"report.{s}") for s in "sc"}
    # Between hosts without a device what is not accelerated is right.
    both = case.env in MUST_UPGRADE and (not case.hosts or LINKED)
    must = both and case.body.upgrades == "up"
    for local, peer in warmed:
        for side, key in (("c", (local, peer)), ("s", (peer, local))):
            if side in case.body.muted or side not in ENVS[case.env][0]:
                continue
            report = reports["s" if case.body.sides == 1 else side]
            who = "server" if side == "s" else "client"
            if must and key not in report:
                unreported.append(f"the library's report at the {who}'s end lacks a warmed connection")
                continue
            upgrades, demotions, reason = report.get(key, (0, 0, ""))
            stayed = upgrades == 1 and demotions <= (reason != "none") and reason in ENDS
            if must and case.env in STEADY and not stayed:
                left.append(f"left its link at the {who}'s end: upgrades {upgrades}, demotions {demotions}, reason {reason}")
            if must and upgrades < 1:
                problems.append(f"not accelerated at the {who}'s end: reason {reason}")
            if (not both or case.body.upgrades == "no") and upgrades > 0:
                problems.append(f"accelerated at the {who}'s end, and should not be")
    if case.body.stays and not case.hosts:
        problems += left
    return sorted(set(problems)), sorted(set(unreported)), sorted(set(left))


def run(case, args):
    dir = pathlib.Path(tempfile.mkdtemp(prefix="ctests-"))
    problems, unreported, left = [], [], []
    started = time.monotonic()
    try:
        extra = lambda side: {"SLUICE_REPORT": str(dir / f"report.{side}"), "CTEST_WARMED": str(dir / "warmed")}
        env = common.environment(False)  # ctest's own: what each side has besides is in the command
        to_link = LINKED and case.env in STEADY if case.hosts else case.env in MUST_UPGRADE
        if to_link and case.body.upgrades == "up":
            env["CTEST_LINKED"] = "1"
        with open(dir / "stderr", "w+") as err:
            p = subprocess.Popen(case.command(args, extra), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
                                 start_new_session=True)
            limit = case.body.limit * args.slow * SLOW
            try:
                out, _ = p.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                log = args.logs / (re.sub(r"[^\w.]+", "-", str(case)).strip("-") + ".bt")
                pids = descendants(p.pid)
                trace = common.backtraces(pids, 30 * args.slow)
                log.write_text(trace)
                p.terminate()  # prints the transcripts so far
                out, _ = p.communicate()
                kill(pids)
                problems.append(f"hang: over after {limit:g} s, {len(pids)} processes left, backtraces in {log}:\n{trace[:MOST_TOLD]}")
            err.seek(0)
            # What libibverbs says where no descriptor is left is a line of docs/limitations.md.
            said = [line for line in err.read().splitlines() if not line.startswith("libibverbs: Warning: couldn't read config")]
            if noise := "\n".join(said):
                problems.append("stderr: " + noise[:2000])
        if p.returncode not in (0, 3):
            problems.append(f"ctest itself ended with {p.returncode}")
        # Between hosts a warm-up in the others may be over before they have met.
        held = STEADY if case.hosts else MUST_UPGRADE
        if case.warm and case.env in (*held, "client-only", "server-only"):
            bad, unreported, left = check_counters(case, dir)
            problems += bad
        return Result(case, out.decode(errors="replace"), problems, left, unreported, time.monotonic() - started)
    finally:
        shutil.rmtree(dir, ignore_errors=True)


class Runner:
    def __init__(self, args):
        self.args = args
        self.oracles = {}
        self.lock = threading.Lock()
        self.passed = self.failed = 0
        self.leaves, self.looked_at = set(), set()  # names of bodies, for --note-stays

    def oracle(self, case):
        """The plain transcript, run once."""
        with self.lock:
            slot = self.oracles.setdefault(case, {"lock": threading.Lock(), "result": None})
        with slot["lock"]:
            if not slot["result"]:
                slot["result"] = run(case, self.args)
            return slot["result"]

    def one(self, case):
        oracle = self.oracle(case.oracle())
        result = run(case, self.args)
        for problem in oracle.problems:
            result.problems.append(f"the oracle, {oracle.case}: {problem}")
        over_rdma = case.hosts and LINKED and len(ENVS[case.env][0]) == 2
        # Of a death that it ends, and both sides as they should, is all that can be compared.
        ends = lambda text: [l for l in text.splitlines()
                             if not (over_rdma and case.body.dies) or re.match("(server|client): ", l)]
        if ends(result.transcript) != ends(oracle.transcript):
            diff = difflib.unified_diff(ends(oracle.transcript), ends(result.transcript), "plain", case.env, lineterm="", n=2)
            result.problems.append("\n".join(itertools.islice(diff, 60)))
        result.problems = result.problems or list(result.unreported)
        with self.lock:
            if case.warm and case.env in STEADY and case.body.upgrades == "up" and not result.unreported:
                self.looked_at.add(case.body.name)
                if result.left or result.problems:
                    self.leaves.add(case.body.name)
            self.report(result, oracle)

    def report(self, result, oracle):
        if not result.problems:
            self.passed += 1
            if self.args.verbose:
                print(f"ok   {result.case}  {result.seconds:.1f} s, plain {oracle.seconds:.1f} s", flush=True)
            return
        self.failed += 1
        print(f"FAIL {result.case}")
        for problem in result.problems:
            print("     " + problem.replace("\n", "\n     "))
        print("     by hand: " + shlex.join(result.case.command(self.args)), flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--env", default="", help="comma separated, of: " + ", ".join(ENVS))
    p.add_argument("--filter", default="", help="only bodies whose whole name matches")
    p.add_argument("--case", default="", help="only the case of this name, as `ok` and FAIL lines give it")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--lib", type=pathlib.Path, default=ROOT / "target/release/libsluice.so")
    p.add_argument("--fault-lib", type=pathlib.Path, help="the library built with feature `fault`; without it that environment is left out")
    p.add_argument("--seed", type=int, default=None, help="of the sample and of the faults; printed if chosen here")
    p.add_argument("--sample", type=int, default=0, help="so many cases, the best ones of the pairwise sample first")
    p.add_argument("--full", action="store_true")
    p.add_argument("--hosts", action="store_true", help="server and client in the two hosts of scripts/guest/run; bodies of one process are left out")
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--warm", choices=("both", "warm", "cold"), default="both")
    p.add_argument("--families", default=",".join(FAMILIES))
    p.add_argument("--slow", type=float, default=1, help="factor on every time limit, on top of what a guest needs")
    p.add_argument("--logs", type=pathlib.Path, default=ROOT / "target/ctests")
    p.add_argument("--note-stays", action="store_true", help=f"writes {STAYS.relative_to(ROOT)}: what stayed on its link in every case that was run")
    p.add_argument("-v", "--verbose", action="store_true")
    args = p.parse_args()
    args.families = args.families.split(",")
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1 << 32)
    return args


def plan(args):
    envs = args.env.split(",") if args.env else [e for e in ENVS if e != "plain"]
    for env in envs:
        if env not in ENVS:
            sys.exit(f"ctests: no environment {env}")
    if not args.fault_lib and "fault" in envs:
        if args.env:
            sys.exit("ctests: fault needs --fault-lib")
        envs.remove("fault")
        print("fault: left out, no --fault-lib")
    for lib in {args.lib} if set(envs) - {"plain", "fault"} else set():
        if not lib.is_file():
            sys.exit(f"ctests: no library {lib}")
    if args.fault_lib and not args.fault_lib.is_file():
        sys.exit(f"ctests: no library {args.fault_lib}")
    args.lib = args.lib.resolve()
    args.fault_lib = args.fault_lib and args.fault_lib.resolve()
    chosen = [b for b in bodies() if re.fullmatch(args.filter or ".*", b.name)]
    cases = [c for b in chosen for c in cases_of(b, envs, args) if args.warm == "both" or c.warm == (args.warm == "warm")]
    if args.case:
        cases = [c for c in cases if str(c) == args.case]
    elif not args.full:
        cases = sample(cases, args.sample, args.seed)
    return [replace(c, seed=c.seed + i) for i in range(args.repeat) for c in cases]


def main():
    args = arguments()
    subprocess.run(["make", "-s", "-C", str(ROOT / "c-tests")], check=True)
    args.logs.mkdir(parents=True, exist_ok=True)
    print(f"seed {args.seed}")
    cases = plan(args)
    started, shm = time.monotonic(), set(os.listdir("/dev/shm"))
    runner = Runner(args)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        try:
            for f in concurrent.futures.as_completed([pool.submit(runner.one, c) for c in cases]):
                f.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    # Directories are other scripts' workplaces.
    for name in sorted(n for n in set(os.listdir("/dev/shm")) - shm if not os.path.isdir(f"/dev/shm/{n}")):
        print(f"FAIL /dev/shm/{name} was left behind")
        runner.failed += 1
    if args.note_stays:
        STAYS.write_text("\n".join(sorted(runner.looked_at - runner.leaves)) + "\n")
    print(f"{len({c.body.name for c in cases})} bodies, {len(cases)} cases in {time.monotonic() - started:.0f} s, seed {args.seed}")
    print(f"{runner.passed} passed, {runner.failed} failed")
    return 1 if runner.failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
