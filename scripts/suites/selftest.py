"""Is a regression told from what fails anyway? With a suite made up here, of one unit. Last line: N passed, N failed."""

import contextlib
import io
import os
import sys
import tempfile
import types

import common
import journal
import judge
import play
from judge import FAIL, MISSING, PASS, PLAIN, SKIP

TESTS = {
    # How each answers, by the side and by how often it has run there.
    "good": lambda preloaded, n: PASS,
    "broken": lambda preloaded, n: FAIL,
    "regressed": lambda preloaded, n: FAIL if preloaded else PASS,
    "skips itself": lambda preloaded, n: SKIP if preloaded else PASS,
    "regressed now and then": lambda preloaded, n: FAIL if preloaded and n in (0, 3) else PASS,
    "flaky": lambda preloaded, n: FAIL if n % 3 == (0 if preloaded else 1) else PASS,
    "flaky, seldom": lambda preloaded, n: FAIL if n in ((0, 3) if preloaded else (8,)) else PASS,
    "once": lambda preloaded, n: FAIL if preloaded and n == 0 else PASS,
    "mostly regressed": lambda preloaded, n: FAIL if preloaded or n == 2 else PASS,
    "only after others": lambda preloaded, n: PASS,
}


class Fake:
    """Plays those tests; one of them fails preloaded only where the others run before it."""

    def __init__(self, crash_after=None):
        self.ran, self.crash_after = {}, crash_after

    def play(self, side, tests):
        results = {}
        for test in tests or TESTS:
            preloaded = side != PLAIN
            n = self.ran[test, preloaded] = self.ran.get((test, preloaded), -1) + 1
            results[test] = TESTS[test](preloaded, n)
            if test == "only after others" and preloaded and tests is None:
                results[test] = FAIL
            if preloaded and test == self.crash_after:
                results[test] = FAIL
                break
        return results


def verdicts(alone):
    fake = Fake()
    plain, preloaded = fake.play(PLAIN, None), fake.play("eager", None)
    tallies = judge.again(fake.play, "eager", plain, preloaded, 5, lambda test: alone)
    return {test: tally.verdict() for test, tally in tallies.items()}, tallies


def expect(seen, wanted):
    if seen != wanted:
        raise common.Failure(f"{seen!r}, {wanted!r} expected")


def regressions_are_told_from_flaky_tests():
    found, tallies = verdicts(alone=True)
    expect(found, {"regressed": "regression", "skips itself": "regression", "regressed now and then": "regression", "flaky": "flaky",
                   "flaky, seldom": "flaky", "once": "once", "mostly regressed": "regression", "only after others": "regression"})
    expect(str(tallies["regressed"]), "plain 0 of 6, preloaded 6 of 6 failed")
    expect(str(tallies["mostly regressed"]), "plain 1 of 6, preloaded 6 of 6 failed")


def so_where_tests_run_only_together():
    found, _ = verdicts(alone=False)
    expect(found["regressed"], "regression")
    expect(found["flaky"], "flaky")
    expect("broken" in found, False)


def what_a_crash_left_out_runs_on_its_own():
    fake = Fake(crash_after="skips itself")
    plain, preloaded = fake.play(PLAIN, None), fake.play("eager", None)
    expect("flaky" in preloaded, False)
    preloaded = judge.complete(fake.play, "eager", preloaded, plain, lambda test: True)
    expect(set(preloaded), set(TESTS))
    expect(preloaded["only after others"], PASS)


def what_never_comes_is_missing():
    tallies = judge.again(lambda side, tests: {"a": PASS}, "eager", {"a": PASS, "b": PASS}, {"a": PASS}, 2, lambda test: True)
    expect({test: (tally.how, tally.bad) for test, tally in tallies.items()}, {"b": (MISSING, {True: 3, False: 2})})


def chance_is_fishers():
    tally = judge.Tally()
    for _ in range(5):
        tally.add(True, FAIL)
        tally.add(False, PASS)
    expect(round(tally.by_chance(), 5), round(1 / 252, 5))
    tally.add(False, FAIL)
    tally.add(True, PASS)
    expect(round(tally.by_chance(), 4), 0.0400)


def a_journal_keeps_what_a_crash_leaves():
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "journal")
        with open(path, "w") as f:
            f.write("begin a\npass a\nbegin b\nfail b\nbegin c\nskip c\nfail setUpClass (d)\nbegin e\n")
        expect(journal.read(path), {"a": PASS, "b": FAIL, "c": SKIP, "setUpClass (d)": FAIL, "e": FAIL})
        expect(journal.read(path + "x"), {})


class Shell:
    """A suite whose unit is a line of shell."""
    name, limit = "shell", 2

    def command(self, unit, place, tests):
        return ["sh", "-c", unit], place, {}

    def results(self, unit, place, text):
        return dict(line.split() for line in text.splitlines() if line.endswith(("pass", "fail")))


def a_unit_that_crashes_or_hangs_is_ended_and_says_so():
    with tempfile.TemporaryDirectory() as keep:
        player = play.Player(common.LIB, keep)
        whole = player.play(Shell(), "echo a pass; sleep 100 & exit 1", PLAIN)
        expect((whole.results, whole.note), ({"a": PASS, "echo a pass; sleep 100 & exit 1: ends": PASS}, ""))
        expect(player.play(Shell(), "echo a pass; kill -11 $$", PLAIN).note, "ended by signal 11")
        hung = player.play(Shell(), "echo a pass; exec sleep 101", PLAIN, tests=["a"])
        expect((hung.results, hung.note), ({"a": PASS}, "not done after 2 s"))
        expect(common.leftovers(0), [])


def line(local, reason, moved, peer=9, link=0):
    """An end as a library reports it."""
    return (f"conn local=127.0.0.1:{local} peer=127.0.0.1:{peer} upgrades={int(link > 0)} demotions=0 tx_tcp={moved} tx_direct=0 "
            f"tx_indirect={link} tx_file=0 rx_tcp=0 rx_direct=0 rx_indirect=0 rx_file=0 reason={reason}\n")


def both(port, one, other, moved, link=0):
    """Both ends of a connection."""
    return line(port, one, moved, 9, link) + line(9, other, moved, port, link)


def connections(text, threshold=1):
    with tempfile.NamedTemporaryFile("w") as report:
        report.write(text)
        report.flush()
        seen = play.Connections()
        seen.add_report(report.name, threshold)
    return seen


def what_a_child_leaves_alone_is_its_parents():
    seen = connections(line(5, "none", 0) + line(5, "fork", 70) + line(5, "none", 0) + line(5, "none", 3)
                       + line(6, "none", 0) + line(6, "none", 0))
    expect((seen.ends, seen.tcp, dict(seen.reasons)), (3, 73, {"fork": 1, "none": 2}))


def strictly_sluices_own_limits_are_no_excuse():
    stays = line(5, "splice", 100) + line(6, "fork", 100) + line(7, "close", 100)
    excused = line(8, "msg-oob", 100) + line(10, "no-answer", 100) + line(11, "below-threshold", 100) + line(12, "close", 9)
    seen = connections(stays + excused + line(13, "none", 100, link=1), 50)
    expect((seen.accelerated, seen.eligible(), seen.strictly()), (1, 1, 4))


def judged(report, side, seen, opened):
    """What the whole run says of one suite with one test, which passed on both sides: (failed, lines that name a failure)."""
    suite, outcomes = Shell(), {}
    suite.version = "0"
    for where in (PLAIN, side):
        outcomes[suite, "u", where] = outcome = play.Outcome()
        outcome.results, outcome.opened = {"a": PASS}, opened
    outcome.connections = seen
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        passed, *failed = report([(suite, ["u"])], [], types.SimpleNamespace(outcomes=outcomes), {(suite, "u", side): {}}, [side])
    expect(passed, 1)
    return sum(failed), [text for text in out.getvalue().splitlines() if text.startswith("FAILED")]


def a_library_that_is_not_loaded_is_found(report):
    talk = ("import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); s.accept(); "
            "print('a pass')")
    with tempfile.TemporaryDirectory() as keep:
        lib = os.path.join(keep, "libsluice.so")
        with open(lib, "w") as f:
            f.write("not a library\n")
        player, suite = play.Player(lib, keep), Shell()
        suite.limit = 60
        for code, failed in ((talk, 1), ("print('a pass')", 0)):
            plain, preloaded = (player.play(suite, f'"{sys.executable}" -c "{code}"', side) for side in (PLAIN, "default"))
            expect([outcome.results["a"] for outcome in (plain, preloaded)], [PASS, PASS])
            expect(plain.opened > 0 or not failed, True)
            # Where there are no namespaces, others' connections were counted, too.
            found = judged(report, "default", preloaded.connections, plain.opened if failed else 0)
            expect(found[0], failed)
            expect(all("shell, default: the library reported no end" in text for text in found[1]), True)


def a_library_that_leaves_too_many_on_tcp_is_found(report):
    long, left = play.LONG, [both(100 + n, "none", "none", 50, link=1) for n in range(18)]

    def found(text, side="eager"):
        return judged(report, side, connections("".join(text)), 10)

    def stay(count, one, other, moved):
        return [both(200 + n, one, other, moved) for n in range(count)]
    expect(found(left + stay(2, "close", "meeting", long)), (0, []))
    bad = left + stay(3, "close", "meeting", long)
    expect(found(bad), (1, ["FAILED  shell, eager: 18 of 21 connections that were worth it left TCP, 0.9 of them should have"]))
    expect(found(left + stay(3, "bounded", "peer-demoted", 50))[0], 1)
    expect(found(stay(1, "bounded", "peer-demoted", 50))[0], 1)
    # What was soon over, what asks for what only TCP has, runs with a threshold, and some of few.
    expect(found(left + stay(3, "close", "meeting", long - 1)), (0, []))
    expect(found(left + stay(3, "meeting", "meeting", 50)), (0, []))
    expect(found(left + stay(3, "msg-oob", "peer-demoted", long)), (0, []))
    expect(found(bad, "default"), (0, []))
    expect(found(left[:2] + stay(3, "close", "meeting", long)), (0, []))


def main(report):
    """`report`: how a run tells what it found."""
    common.adopt_orphans()
    passed = failed = 0
    alone = (regressions_are_told_from_flaky_tests, so_where_tests_run_only_together, what_a_crash_left_out_runs_on_its_own,
             what_never_comes_is_missing, chance_is_fishers, a_journal_keeps_what_a_crash_leaves,
             what_a_child_leaves_alone_is_its_parents, strictly_sluices_own_limits_are_no_excuse,
             a_unit_that_crashes_or_hangs_is_ended_and_says_so)
    reported = (a_library_that_is_not_loaded_is_found, a_library_that_leaves_too_many_on_tcp_is_found)
    for test, args in [*((test, ()) for test in alone), *((test, (report,)) for test in reported)]:
        name = test.__name__.replace("_", " ")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                test(*args)
            passed += 1
            print(f"ok      {name}", flush=True)
        except common.Failure as e:
            failed += 1
            print(f"FAILED  {name}: {e}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
