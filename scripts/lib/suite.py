"""Runs every test there is, each kind with a limit, and adds up. Started by `make test` (a seeded
sample, 40 minutes at most), `make test-full` (everything) and `make test-rdma` (what needs RDMA).

A step that fails does not stop the others. Its tests are counted from what it prints: `test
result: ... N passed; N failed` (cargo) or a last line `N passed, N failed` (our own runners). A
step that ends with a bad status but counts no failure, that counts nothing, or that hangs, is
itself a failure. The last line is `N passed, N failed`.

Of a sample, a test that failed runs once more by itself, with the same draws. If it passes then it is unsteady: a bug
report, for the machine may be too busy to show which of the two runs was right. Unsteady tests are named at the end and
counted apart, after the others on the last line.
"""

import argparse
import collections
import os
import re
import shlex
import subprocess
import sys
import threading
import time

import common

SAMPLE_MINUTES = 40     # what `make test` promises, builds included
CARGO = os.environ.get("CARGO", "cargo")
_CARGO_LINE = re.compile(r"^test result: \S+ (\d+) passed; (\d+) failed;")
_BAD_LINE = re.compile(r"^FAILED  (.+?)(?:  \(.*\)| \([\d.]+ s\))?:")
_CTEST_LINE = re.compile(r"^FAIL (\S+ \[.*\])$")
_OUR_LINE = re.compile(r"^(\d+) passed, (\d+) failed")
_SEED_LINE = re.compile(r"^seed (\d+)")


def again(name, cmd, test, drawn):
    """The command that runs one test of a step once more, as it was: `drawn` is the seed that the step printed. None where the
    runner itself has run again what failed."""
    runner = cmd[0]

    def given(option):
        return cmd[cmd.index(option):][:2] if option in cmd else []

    seed = given("--seed") or (["--seed", drawn] if drawn else [])
    if name == "programs":
        # The sample's seed makes the size and the data of its tests, too.
        return [runner, *(given("--sample") or seed), "-k", test]
    if name == "c-tests":
        return [runner, "--jobs", "1", "--case", test, *seed, *given("--fault-lib")]
    if name.endswith(" c-tests"):
        # In a guest of its own.
        inside = cmd.index("--") + 1
        one = ["--hosts", "--jobs", "1", "--slow", "4", "--case", test]
        return [*cmd[:inside + 1], *one, *seed, *given("--fault-lib")]
    if name == "soak":
        return [runner, test, *(a for a in cmd if a == "--quick"), *seed]
    if name == "hostile peers":
        return [runner, *(["--seed", drawn] if drawn else []), "-k", test]
    if name in ("fuzz", "seeded defects", "coverage"):
        return None
    if name in ("hooks", "bad input"):
        return [runner, test]
    return cmd


def has_fuzzer():
    """Is cargo-fuzz installed? It is no part of what the tests need."""
    return subprocess.run([CARGO, "fuzz", "--version"], capture_output=True, check=False).returncode == 0


def steps(seed, full):
    """[(name, command, environment, limit in minutes, must count tests)]"""
    script = lambda name, *args: [os.path.join(common.ROOT, "scripts", name), *args]    # noqa: E731
    cargo = lambda *args: [CARGO, *args]                                                # noqa: E731
    fault = ("--fault-lib", common.FAULT_LIB)
    yield "build", cargo("build", "--release", "--workspace"), {}, 15, False
    yield "build with faults", ["make", "-s", "build-fault"], {}, 15, False
    yield "build C programs", ["make", "-s", "-C", "benches"], {}, 5, False
    yield "this suite", script("lib/suitetest.py"), {}, 1, True
    yield "comparison of suites", script("suites/run", "--self-test"), {}, 1, True
    yield "symbols and needed libraries", script("check-symbols.sh"), {}, 1, True
    yield "compatibility table", script("compat.py", "--check"), {}, 1, True
    yield "that table's checks", script("compat.py", "--self-test"), {}, 1, True
    yield "hooks", script("preload-tests.sh"), {}, 5, True
    yield "instructions of calls", script("instructions.py", "--check"), {}, 3, True
    yield "unit and property tests", cargo("test", "--workspace", "--no-fail-fast"), {}, 20 if full else 6, True
    yield ("loom models", script("loom.sh"), {"LOOM_MAX_PREEMPTIONS": "4" if full else "3"}, 60 if full else 4, True)
    # What the coverage-guided fuzzer has kept, by itself; and the fuzzer for a while, where there is one.
    yield ("kept inputs", cargo("test", "--manifest-path", "fuzz/coverage/Cargo.toml", "--target-dir", "target/replay"), {},
           6, True)
    if has_fuzzer():
        seconds = "120" if full else "10"
        yield "coverage", script("coverage.sh", "--seconds", seconds, "--seed", str(seed + 1)), {}, 25 if full else 9, True
    if full:
        yield "c-tests", script("ctests.py", "--full", *fault), {}, 120, True
        yield "programs", script("programs.py"), {}, 90, True
        yield "what users need", script("install-deps.sh", "--users"), {}, 20, False
        yield "users", script("users.py"), {}, 60, True
        yield "soak", script("soak.py"), {}, 60, True
    else:
        yield "c-tests", script("ctests.py", "--sample", "150", "--seed", str(seed), *fault), {}, 6, True
        yield "programs", script("programs.py", "--sample", str(seed)), {}, 10, True
        yield "soak", script("soak.py", "--quick", "--seed", str(seed)), {}, 5, True
    yield "fuzz", script("fuzz.py", "--seconds", "1800" if full else "120", "--seed", str(seed), *fault), {}, 45 if full else 6, True
    # A fuzzer that finds nothing has to be one that could.
    yield "seeded defects", script("fuzz.py", "--prove", "--seconds", "120", "--shrink", "10", "--seed", str(seed)), {}, 6, True
    yield "plain peers", script("plainpeer.sh"), {}, 3, True
    yield "bad input", script("badinput.sh"), {}, 3, True
    yield "hostile peers", script("hostile.py", "--seed" if full else "--sample", str(seed)), {}, 30 if full else 5, True
    yield "installed", script("installed.sh"), {}, 3, True
    yield "reasons", script("reasons.py"), {}, 3, True
    releases = ("bullseye", "bookworm", "trixie") if full else ()
    yield "README", script("readme.sh", *releases), {}, 20 if full else 10, True
    yield "guest", script("guest/run", "--prepare"), {}, 30, False
    yield from between_hosts(seed, full)
    if full:
        yield "new systems", script("roots.sh"), {}, 60, True
        yield "bindings of verbs", script("bindings.sh", "--check"), {}, 15, True
        # Where there is no such machine it says so, and counts nothing.
        yield "two processors", script("guest/smoke", str(seed)), {}, 16, False
        yield "stress", script("soak.py", "stress", "--seed", str(seed)), {}, 30, True
        yield "speed", script("bench.py", "--check", "-q"), {}, 60, False


def between_hosts(seed, full):
    """The same, for what runs in two hosts with soft RDMA: a sample of it, or all."""
    guest = os.path.join(common.ROOT, "scripts", "guest", "run")

    def run(device, minutes, *command):
        return [guest, "--device", device, "--timeout", str(60 * minutes), "--", *command]

    script = lambda name, *args: [os.path.join(common.ROOT, "scripts", name), *args]    # noqa: E731
    fault = ("--fault-lib", common.FAULT_LIB)
    for device in ("rxe", "siw"):
        many = script("guest/many", "--lib", common.LIB)
        yield f"{device} many processes", run(device, 4, *many), {}, 5, True
        conns = (*many, "--clients", "1", "--connections", "500")
        yield f"{device} many connections", run(device, 4, *conns), {}, 5, True
        yield f"{device} several devices", run(device, 4, *script("guest/devices", "--lib", common.LIB)), {}, 5, True
        little = script("guest/memlock", "--lib", common.LIB)
        yield f"{device} little lockable memory", run(device, 4, *little), {}, 5, True
        far = script("guest/distance", "--lib", common.LIB, "--rounds", "1", "--rtt", "2,48")
        yield f"{device} long paths", run(device, 6, *far), {}, 8, True
        files = script("guest/pages", "--lib", common.LIB, "--seed", str(seed), *fault)
        files += ["--rounds", "2000" if full else "50"]
        if not full and device == "rxe":
            # What is the same over both devices.
            files += ["--without", "ways,calls,little,sizes,changes"]
        yield f"{device} pages of files", run(device, 20 if full else 4, *files), {}, 22, True
        yield f"{device} reasons", run(device, 4, *script("reasons.py", "--hosts")), {}, 5, True
        # Most of a test's time is spent asleep, also on one processor.
        hosts = script("ctests.py", "--hosts", "--jobs", "4", "--slow", "4", "--seed", str(seed), *fault)
        if full:
            # All bodies in all environments, cold and warm; of the other families pairs of choices, three times over.
            yield f"{device} c-tests", run(device, 120, *hosts, "--full", "--families", "4"), {}, 122, True
            other = ("--families", "6,mapped", "--sample", "1200")
            yield f"{device} IPv6 c-tests", run(device, 40, *hosts, *other), {}, 42, True
            yield f"{device} programs", run(device, 60, *script("programs.py", "--hosts")), {}, 65, True
            # Within one host: the guest's kernel encrypts, which the one outside may not.
            encrypts = script("ctests.py", "--full", "--filter", "encrypted|.*ulp.*", "--seed", str(seed), *fault)
            yield f"{device} encryption", run(device, 10, *encrypts), {}, 12, True
            yield f"{device} rounds", run(device, 120, *script("guest/rounds", "--seed", str(seed))), {}, 125, True
        else:
            yield f"{device} c-tests", run(device, 8, *hosts, "--sample", "100"), {}, 9, True
            few = script("guest/rounds", "--rounds", "2", "--seed", str(seed))
            yield f"{device} rounds", run(device, 4, *few), {}, 5, True
            direct = [*few, "-e", "SLUICE_DIRECT=2000", "interface", "kill-process", "fork"]
            yield f"{device} rounds of direct transfers", run(device, 4, *direct), {}, 5, True


def newest(name):
    """The program of an integration test, as `cargo test` has built it last."""
    folder = os.path.join(common.ROOT, "target", "debug", "deps")
    built = [os.path.join(folder, f) for f in os.listdir(folder) if re.fullmatch(f"{name}-[0-9a-f]+", f)]
    return max(built, key=os.path.getmtime)


# Package, test program, the test in it that has two ends.
TWO_ENDED = (("sluice-fabric", "verbs", "messages_between_two_hosts"),
             ("sluice-transport", "remote", "streams_between_two_hosts"))


def rdma_steps(seed, full):
    """The same, for what runs where there is RDMA."""
    guest = os.path.join(common.ROOT, "scripts", "guest")
    yield "build", [CARGO, "build", "--release", "--workspace"], {}, 15, False
    yield "build with faults", ["make", "-s", "build-fault"], {}, 15, False
    yield "build C programs", ["make", "-s", "-C", "benches"], {}, 5, False
    yield "build c-tests", ["make", "-s", "-C", "c-tests"], {}, 5, False
    yield "first bytes", [os.path.join(common.ROOT, "scripts", "prefix.py")], {}, 2, True
    yield "guest", [os.path.join(guest, "run"), "--prepare"], {}, 60, False
    for package, _, _ in TWO_ENDED:
        yield f"build {package}", ["cargo", "clippy", "-p", package, "--all-targets", "--", "-D", "warnings"], {}, 10, False
    for package, program, _ in TWO_ENDED:
        yield (f"{program} alone", ["cargo", "test", "-p", package, "--test", program], {}, 10, True)
    for device in ("rxe", "siw"):
        for _, program, test in TWO_ENDED:
            yield (f"{device} {program}", [os.path.join(guest, "run"), "--device", device, "--timeout", "300", "--",
                                           os.path.join(guest, "provider"), newest(program), test], {}, 8, True)
        yield (f"{device} self-test", [os.path.join(guest, "run"), "--device", device, "--timeout", "600", "--",
                                       os.path.join(guest, "selftest")], {}, 16, True)
    yield from between_hosts(seed, full)


class Outcome:
    """What came of a step."""

    def __init__(self):
        self.passed = self.failed = 0
        self.seconds = 0.0
        self.bad = []           # names of tests that failed, one for each failure that has a name
        self.unsteady = []
        self.drawn = None       # the seed that it printed


def attend(cmd, env, seconds, see):
    """Shows what a command prints, each line handed to `see`: its status, or None if it had to be ended after so many
    seconds, with all that it had started."""
    child = common.start(cmd, env={**os.environ, **env}, cwd=common.ROOT, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace")
    late = threading.Event()

    def too_late():
        late.set()
        for pid in reversed(common.tree(child.pid)):
            common._signal(pid, 9)
        # What was not below it any more may still hold the pipe.
        while common.leftovers(0):
            pass

    timer = threading.Timer(seconds, too_late)
    timer.daemon = True
    timer.start()
    for line in child.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        see(line)
    status = common.wait(child, seconds + 60)
    timer.cancel()
    # It must not meet what is started next.
    timer.join()
    return None if late.is_set() else status


def run(name, cmd, env, minutes, counts):
    """The outcome of a step, ended after so many minutes."""
    print(f"\n=== {name}: {shlex.join(os.path.relpath(c, common.ROOT) if c.startswith(common.ROOT) else c for c in cmd)}",
          flush=True)
    begin, out = time.monotonic(), Outcome()
    cargo, ours = [0, 0], None

    def see(line):
        nonlocal cargo, ours
        if hit := _CARGO_LINE.match(line):
            cargo = [cargo[0] + int(hit.group(1)), cargo[1] + int(hit.group(2))]
        if hit := _OUR_LINE.match(line):
            ours = [int(hit.group(1)), int(hit.group(2))]
        if hit := _BAD_LINE.match(line) or _CTEST_LINE.match(line):
            out.bad.append(hit.group(1))
        if hit := _SEED_LINE.match(line):
            out.drawn = hit.group(1)

    try:
        status = attend(cmd, env, minutes * 60, see)
    except OSError as e:
        print(f"{name}: cannot be started: {e}")
        out.failed = 1
        return out
    out.seconds = time.monotonic() - begin
    out.passed, out.failed = ours or cargo
    # Without a closing line there is what it said on its way.
    out.failed = max(out.failed, len(out.bad))
    if status is None:
        print(f"{name}: not done after {minutes:.1f} minutes: ended")
        out.failed += 1
    elif counts and sum(ours or cargo) == 0:
        print(f"{name}: counted no test, status {status}")
        out.failed += 1
    elif status != 0 and out.failed == 0:
        print(f"{name}: status {status}")
        out.failed = 1
    return out


def second_chance(name, cmd, env, minutes, deadline, out):
    """Runs what failed once more. Tests that can only run together do so once."""
    lines = collections.defaultdict(list)
    for test in out.bad:
        if line := again(name, cmd, test, out.drawn):
            lines[tuple(line)].append(test)
    for line, tests in lines.items():
        what = ", ".join(dict.fromkeys(tests))
        seconds = min(minutes * 60, deadline - time.monotonic())
        if seconds < 1:
            print(f"{name}: {what}: no time is left to run it again")
            continue
        print(f"\n--- again: {shlex.join(line)}", flush=True)
        counted = [0, 0]

        def see(text):
            if hit := _OUR_LINE.match(text):
                counted[:] = int(hit.group(1)), int(hit.group(2))

        status = attend(line, env, seconds, see)
        if status is None:
            print(f"{name}: {what}: not done after {seconds:.0f} s: ended")
        elif status == 0 and counted[0] > 0 and counted[1] == 0:
            print(f"{name}: {what}: unsteady: failed, then passed by itself")
            out.failed -= len(tests)
            out.unsteady += tests


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--sample", type=int, metavar="SEED")
    ap.add_argument("--full", type=int, metavar="SEED")
    ap.add_argument("--rdma", type=int, metavar="SEED")
    args = ap.parse_args()
    if args.rdma is not None:
        return run_all(rdma_steps(args.rdma, False), 3 * 3600, f"seed {args.rdma}, ")
    full = args.full is not None
    seed = args.full if full else args.sample
    if seed is None:
        ap.error("--sample SEED, --full SEED or --rdma SEED")
    print(f"seed {seed}: `make {'test-full' if full else 'test'} SEED={seed}` repeats this", flush=True)
    return run_all(steps(seed, full), 8 * 3600 if full else SAMPLE_MINUTES * 60, f"seed {seed}, ", retry=not full)


def run_all(which, seconds, note="", retry=False):
    """Runs the steps, within `seconds` altogether; the exit status."""
    common.adopt_orphans()
    rows, begin = [], time.monotonic()
    deadline = begin + seconds
    for name, cmd, env, minutes, counts in which:
        left = deadline - time.monotonic()
        if left < 1:
            print(f"\n=== {name}: not started: {seconds / 60:.0f} minutes are over")
            out = Outcome()
            out.failed = 1
        else:
            minutes = min(minutes, left / 60)
            out = run(name, cmd, env, minutes, counts)
            if retry and out.bad:
                second_chance(name, cmd, env, minutes, deadline, out)
            for process in common.leftovers():
                print(f"{name}: left behind: {process}")
                out.failed += 1
        rows.append((name, out))
        if name in ("build", "guest") and out.failed:
            print("without it nothing else can be tested")
            break
    print()
    print(common.table([(n, o.passed, o.failed, len(o.unsteady), f"{o.seconds / 60:.1f} min") for n, o in rows],
                       ["step", "passed", "failed", "unsteady", "time"]))
    print(f"\n{note}{(time.monotonic() - begin) / 60:.1f} minutes")
    for name, out in rows:
        for test, times in collections.Counter(out.unsteady).items():
            print(f"unsteady: {name}: {test}: failed{f' {times} times' if times > 1 else ''}, then passed by itself")
    passed, failed, unsteady = (sum(n) for n in zip(*((o.passed, o.failed, len(o.unsteady)) for _, o in rows)))
    print(f"{passed} passed, {failed} failed" + (f", {unsteady} unsteady" if unsteady else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
