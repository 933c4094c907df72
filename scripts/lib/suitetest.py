#!/usr/bin/env python3
"""Does suite.py repeat, end and count as it says? With runners made up here. Last line: N passed, N failed."""

import contextlib
import io
import os
import sys
import time

import common
import suite
from common import Failure

# A runner that notes its calls; what it does at the first one and at the others is filled in.
RUNNER = """#!/bin/sh
echo "$*" >>{calls}
if [ "$(wc -l <{calls})" = 1 ]; then
{first}
else
{again}
fi
"""
FAILS = """echo 'ok      churn'; echo 'FAILED  kills  (0.1 s): lost (some): bytes'; echo '1 passed, 1 failed'; exit 1"""
PASSES = """echo 'ok      kills'; echo '1 passed, 0 failed'"""
HANGS = """setsid sleep 600 & sleep 600"""


class Case:
    """A step whose runner does one thing and then another."""

    def __init__(self, place, first, again=PASSES):
        self.calls, self.runner = f"{place}/calls", f"{place}/runner"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.calls)
        with open(self.runner, "w") as f:
            f.write(RUNNER.format(calls=self.calls, first=first, again=again))
        os.chmod(self.runner, 0o755)

    def step(self, minutes=0.05):
        return "soak", [self.runner, "--quick", "--seed", "5"], {}, minutes, True

    def play(self, *steps, seconds=30):
        """(exit status, lines printed)"""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = suite.run_all(steps or [self.step()], seconds, retry=True)
        return status, said.getvalue().splitlines()

    def called(self):
        with open(self.calls) as f:
            return f.read().splitlines()


def expect(seen, wanted):
    if seen != wanted:
        raise Failure(f"{seen!r}, {wanted!r} expected")


def an_unsteady_test_is_named_and_counted_apart(place):
    case = Case(place, FAILS)
    status, lines = case.play()
    expect((status, lines[-1]), (0, "1 passed, 0 failed, 1 unsteady"))
    expect(lines[-2], "unsteady: soak: kills: failed, then passed by itself")
    expect(case.called(), ["--quick --seed 5", "kills --quick --seed 5"])


def a_test_that_fails_twice_has_failed(place):
    status, lines = Case(place, FAILS, FAILS).play()
    expect((status, lines[-1]), (1, "1 passed, 1 failed"))


def a_second_run_that_hangs_is_ended_and_has_failed(place):
    begin = time.monotonic()
    status, lines = Case(place, FAILS, HANGS).play()
    expect((status, lines[-1]), (1, "1 passed, 1 failed"))
    expect((time.monotonic() - begin < 20, common.leftovers(0)), (True, []))


def a_second_run_of_nothing_shows_nothing(place):
    status, lines = Case(place, FAILS, "echo '0 passed, 0 failed'").play()
    expect((status, lines[-1]), (1, "1 passed, 1 failed"))


def a_step_that_hangs_has_failed_once_more(place):
    status, lines = Case(place, f"echo 'FAILED  kills: lost'; {HANGS}").play()
    expect((status, lines[-1]), (1, "0 passed, 1 failed, 1 unsteady"))


def a_step_without_a_sum_has_failed_once_more(place):
    status, lines = Case(place, "echo 'FAILED  kills: lost'; exit 1").play()
    expect((status, lines[-1]), (1, "0 passed, 1 failed, 1 unsteady"))


def no_step_begins_after_the_end(place):
    case = Case(place, FAILS, HANGS)
    status, lines = case.play(case.step(1), case.step(1), seconds=3)
    expect((status, lines[-1], len(case.called())), (1, "1 passed, 2 failed", 2))


def second_runs_have_the_draws_of_the_first(place):
    commands = {name: cmd for full in (True, False) for name, cmd, *_ in suite.steps(7, full)}

    def again(step, test):
        return suite.again(step, commands[step], test, None)[1:]

    expect(again("soak", "kills"), ["kills", "--quick", "--seed", "7"])
    expect(again("programs", "redis_cli / both"), ["--sample", "7", "-k", "redis_cli / both"])
    expect(again("c-tests", "pipelining [fault warm ip6 nonblock]"),
           ["--jobs", "1", "--case", "pipelining [fault warm ip6 nonblock]", "--seed", "7", "--fault-lib",
            common.FAULT_LIB])
    expect(suite.again("hostile peers", commands["hostile peers"], "garbage / relay / older kernel", "7")[1:],
           ["--seed", "7", "-k", "garbage / relay / older kernel"])
    hosts = again("siw c-tests", "pipelining [fault warm ip6 hosts]")
    expect(hosts[:hosts.index("--") + 1], ["--device", "siw", "--timeout", "480", "--"])
    expect(hosts[hosts.index("--") + 2:],
           ["--hosts", "--jobs", "1", "--slow", "4", "--case", "pipelining [fault warm ip6 hosts]", "--seed", "7",
            "--fault-lib", common.FAULT_LIB])
    # What differed was run again by itself.
    for step in ("fuzz", "seeded defects"):
        expect(suite.again(step, commands[step], "7.42", None), None)
    # A seed that the step drew.
    expect(suite.again("c-tests", ["runner"], "a [eager cold ip4]", "99")[-2:], ["--seed", "99"])


TESTS = [an_unsteady_test_is_named_and_counted_apart, a_test_that_fails_twice_has_failed,
         a_second_run_that_hangs_is_ended_and_has_failed, a_second_run_of_nothing_shows_nothing,
         a_step_that_hangs_has_failed_once_more, a_step_without_a_sum_has_failed_once_more, no_step_begins_after_the_end,
         second_runs_have_the_draws_of_the_first]


def main():
    common.adopt_orphans()
    place = common.workplace("sluice-suite-")
    passed = failed = 0
    for test in TESTS:
        name = test.__name__.replace("_", " ")
        try:
            test(place)
            passed += 1
            print(f"ok      {name}", flush=True)
        except Failure as e:
            failed += 1
            print(f"FAILED  {name}: {e}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
