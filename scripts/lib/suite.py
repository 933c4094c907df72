"""Runs every test there is, each kind with a limit, and adds up. Started by `make test` (a seeded
sample, 25 minutes at most), `make test-full` (everything) and `make test-rdma` (what needs RDMA).

A step that fails does not stop the others. Its tests are counted from what it prints: `test
result: ... N passed; N failed` (cargo) or a last line `N passed, N failed` (our own runners). A
step that ends with a bad status but counts no failure, that counts nothing, or that hangs, is
itself a failure. The last line is `N passed, N failed`.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import threading
import time

import common

SAMPLE_MINUTES = 25     # what `make test` promises, builds included
CARGO = os.environ.get("CARGO", "cargo")
_CARGO_LINE = re.compile(r"^test result: \S+ (\d+) passed; (\d+) failed;")
_BAD_LINE = re.compile(r"^FAILED  (.+?)(?:  \(.*\)| \([\d.]+ s\))?:")
_CTEST_LINE = re.compile(r"^FAIL (\S+) \[(\S+) ")
_OUR_LINE = re.compile(r"^(\d+) passed, (\d+) failed")


def again(name, cmd, bad):
    """The commands that run each of the tests `bad` of a step once more."""
    runner = cmd[0]
    for test in bad:
        if name == "hooks":
            yield [runner, test]
        elif name == "programs":
            yield [runner, "-k", test]
        elif name == "c-tests":
            body, env = test.split()
            fault = cmd[cmd.index("--fault-lib"):][:2] if "--fault-lib" in cmd else []
            yield [runner, "--full", "--jobs", "1", "--filter", body, "--env", env, *fault]
        else:
            quick = [a for a in cmd[1:] if a == "--quick"]
            yield [runner, *quick, test.split(" SLUICE")[0].replace(" ", "_")]


def steps(seed, full):
    """[(name, command, environment, limit in minutes, must count tests)]"""
    script = lambda name, *args: [os.path.join(common.ROOT, "scripts", name), *args]    # noqa: E731
    cargo = lambda *args: [CARGO, *args]                                                # noqa: E731
    fault = ("--fault-lib", common.FAULT_LIB)
    yield "build", cargo("build", "--release", "--workspace"), {}, 15, False
    yield ("build with faults", cargo("build", "--release", "--features", "fault", "-p", "sluice-preload",
                                      "--target-dir", "target/fault"), {}, 15, False)
    yield "build C programs", ["make", "-s", "-C", "benches"], {}, 5, False
    yield "symbols and needed libraries", script("check-symbols.sh"), {}, 1, True
    yield "hooks", script("preload-tests.sh"), {}, 5, True
    yield "cost of hooks", script("untracked-cost.py"), {}, 3, True
    yield "unit and property tests", cargo("test", "--workspace", "--no-fail-fast"), {}, 20 if full else 6, True
    yield ("loom models", script("loom.sh"), {"LOOM_MAX_PREEMPTIONS": "4" if full else "3"}, 60 if full else 4, True)
    if full:
        yield "c-tests", script("ctests.py", "--full", *fault), {}, 120, True
        yield "programs", script("programs.py"), {}, 60, True
        yield "soak", script("soak.py"), {}, 60, True
    else:
        yield "c-tests", script("ctests.py", "--sample", "150", "--seed", str(seed), *fault), {}, 6, True
        yield "programs", script("programs.py", "--sample", str(seed)), {}, 6, True
        yield "soak", script("soak.py", "--quick", "--seed", str(seed)), {}, 5, True
    yield "plain peers", script("plainpeer.sh"), {}, 3, True
    yield "bad input", script("badinput.sh"), {}, 3, True
    if full:
        yield "stress", script("soak.py", "stress", "--seed", str(seed)), {}, 30, True
        yield "speed", script("bench.py", "--check", "-q"), {}, 60, False


def rdma_steps():
    """The same, for what runs where there is RDMA."""
    guest = os.path.join(common.ROOT, "scripts", "guest")
    yield "build c-tests", ["make", "-s", "-C", "c-tests"], {}, 5, False
    yield "guest", [os.path.join(guest, "run"), "--prepare"], {}, 60, False
    for device in ("rxe", "siw"):
        yield (f"{device} self-test", [os.path.join(guest, "run"), "--device", device, "--timeout", "600", "--",
                                       os.path.join(guest, "selftest")], {}, 16, True)


def run(name, cmd, env, minutes, counts):
    """(passed, failed, seconds)"""
    print(f"\n=== {name}: {shlex.join(os.path.relpath(c, common.ROOT) if c.startswith(common.ROOT) else c for c in cmd)}",
          flush=True)
    begin = time.monotonic()
    try:
        child = common.start(cmd, env={**os.environ, **env}, cwd=common.ROOT, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as e:
        print(f"{name}: cannot be started: {e}")
        return 0, 1, 0.0, []
    late = []

    def too_late():
        late.append(1)
        for pid in reversed(common.tree(child.pid)):
            common._signal(pid, 9)

    timer = threading.Timer(minutes * 60, too_late)
    timer.start()
    cargo, ours, bad = [0, 0], None, []
    for line in child.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        hit = _CARGO_LINE.match(line)
        if hit:
            cargo = [cargo[0] + int(hit.group(1)), cargo[1] + int(hit.group(2))]
        hit = _OUR_LINE.match(line)
        ours = [int(hit.group(1)), int(hit.group(2))] if hit else ours
        hit = _BAD_LINE.match(line)
        if hit:
            bad.append(hit.group(1))
        hit = _CTEST_LINE.match(line)
        if hit:
            bad.append(f"{hit.group(1)} {hit.group(2)}")
    status = common.wait(child, 60)
    timer.cancel()
    took = time.monotonic() - begin
    passed, failed = ours or cargo
    if late:
        print(f"{name}: not done after {minutes:.1f} minutes: ended")
        failed += 1
    elif status != 0 and failed == 0:
        print(f"{name}: status {status}")
        failed = 1
    elif counts and passed + failed == 0:
        print(f"{name}: ran no test")
        failed = 1
    return passed, failed, took, bad


def second_chance(name, cmd, env, passed, failed, bad):
    """Every test that failed runs once more by itself: what passes then is printed as unsteady, with the first
    run's output above it, and counted as passed. An unsteady test is a bug report; the machine that runs a sample
    may be too busy to show which of the two runs was right."""
    for test, line in zip(bad, again(name, cmd, bad)):
        print(f"\n--- again: {test}", flush=True)
        once = subprocess.run(line, env={**os.environ, **env}, cwd=common.ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=600)
        print(once.stdout, end="", flush=True)
        if once.returncode == 0:
            print(f"{name}: {test}: unsteady: failed, then passed by itself")
            passed, failed = passed + 1, failed - 1
    return passed, failed


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--sample", type=int, metavar="SEED")
    ap.add_argument("--full", type=int, metavar="SEED")
    ap.add_argument("--rdma", action="store_true")
    args = ap.parse_args()
    if args.rdma:
        return run_all(rdma_steps(), 3 * 3600)
    full = args.full is not None
    seed = args.full if full else args.sample
    if seed is None:
        ap.error("--sample SEED, --full SEED or --rdma")
    print(f"seed {seed}: `make {'test-full' if full else 'test'} SEED={seed}` repeats this", flush=True)
    return run_all(steps(seed, full), 8 * 3600 if full else SAMPLE_MINUTES * 60, f"seed {seed}, ", retry=not full)


def run_all(which, seconds, note="", retry=False):
    """Runs the steps, within `seconds` altogether; the exit status."""
    common.adopt_orphans()
    rows, begin = [], time.monotonic()
    deadline = begin + seconds
    for name, cmd, env, minutes, counts in which:
        minutes = max(0.1, min(minutes, (deadline - time.monotonic()) / 60))
        passed, failed, took, bad = run(name, cmd, env, minutes, counts)
        if retry and bad:
            passed, failed = second_chance(name, cmd, env, passed, failed, bad)
        for left in common.leftovers():
            print(f"{name}: left behind: {left}")
            failed += 1
        rows.append((name, passed, failed, took))
        if name in ("build", "guest") and failed:
            print("without it nothing else can be tested")
            break
    print()
    print(common.table([(n, p, f, f"{t / 60:.1f} min") for n, p, f, t in rows], ["step", "passed", "failed", "time"]))
    print(f"\n{note}{(time.monotonic() - begin) / 60:.1f} minutes")
    failed = sum(r[2] for r in rows)
    print(f"{sum(r[1] for r in rows)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
