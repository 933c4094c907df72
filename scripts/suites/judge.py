"""What is a regression, and what fails now and then by itself: runs of one unit of a suite compared, plain against preloaded.

A result is {test: PASS, FAIL or SKIP}; a test that a run says nothing of, though another run knows it, is MISSING (the
program crashed or hung before). Nothing here knows how a unit is run: that is a function, `play(side, tests)`.
"""

import math

PASS, FAIL, SKIP, MISSING = "pass", "fail", "skip", "missing"
PLAIN = "plain"
# That few runs preloaded would be so much worse than those plain by chance alone.
CHANCE = 0.05
# That many more times all of its runs are repeated where chance might have been it.
MORE = 4


def suspects(plain, preloaded):
    """Tests that passed plain and not preloaded. One that skips itself there has lost something, too."""
    return [test for test, result in plain.items() if result == PASS and preloaded.get(test, MISSING) != PASS]


class Tally:
    """How often a test was run on each side, and how often it did not pass."""

    def __init__(self):
        self.runs = {True: 0, False: 0}
        self.bad = {True: 0, False: 0}
        self.how = FAIL             # preloaded, the first time

    def add(self, preloaded, result):
        self.runs[preloaded] += 1
        self.bad[preloaded] += result != PASS

    def __str__(self):
        return f"plain {self.bad[False]} of {self.runs[False]}, preloaded {self.bad[True]} of {self.runs[True]} failed"

    def by_chance(self):
        """How probable it is that preloaded runs fail this often or oftener, if the library made no difference (Fisher)."""
        runs, bad = self.runs[True], self.bad[True]
        total, failed = runs + self.runs[False], bad + self.bad[False]
        ways = sum(math.comb(failed, k) * math.comb(total - failed, runs - k) for k in range(bad, min(failed, runs) + 1))
        return ways / math.comb(total, runs)

    def is_in_doubt(self):
        """Failed preloaded alone, but not so often that chance would seldom do it."""
        return self.bad[True] > 1 and not self.bad[False] and self.by_chance() >= CHANCE

    def verdict(self):
        """`regression`; `flaky`, it fails plain as well; or `once`, it failed preloaded once and never again.

        What never failed plain and failed preloaded twice, in all the runs that were to tell, is a regression whatever chance says: rather
        one too many."""
        if self.bad[True] <= 1:
            return "flaky" if self.bad[False] else "once"
        if not self.bad[False] or self.by_chance() < CHANCE:
            return "regression"
        return "flaky"


def again(play, side, plain, preloaded, rounds, alone):
    """{suspect: Tally} after the suspects ran again, both ways in turns: by themselves, and those that then passed each time
    once more among the others of their unit, whose traces they may need; and on as long as chance might have been it.
    `alone(test)`: can it run by itself?"""
    tallies = {}
    for test in suspects(plain, preloaded):
        tallies[test] = tally = Tally()
        tally.how = preloaded.get(test, MISSING)
        tally.add(False, PASS)
        tally.add(True, tally.how)
    single = [test for test in tallies if alone(test)]
    if single:
        _repeat(play, side, tallies, rounds, single, single)
    left = [test for test, tally in tallies.items() if tally.bad[True] == 1]
    if left:
        _repeat(play, side, tallies, max(1, rounds // 2) if single else rounds, left, None)
    for _ in range(MORE):
        doubtful = [test for test, tally in tallies.items() if tally.is_in_doubt()]
        by_themselves = [test for test in doubtful if test not in left]
        among_others = [test for test in doubtful if test in left]
        if by_themselves:
            _repeat(play, side, tallies, rounds, by_themselves, by_themselves)
        if among_others:
            _repeat(play, side, tallies, rounds, among_others, None)
    return tallies


def _repeat(play, side, tallies, times, tests, asked):
    for _ in range(times):
        for where in (PLAIN, side):
            results = play(where, asked)
            for test in tests:
                tallies[test].add(where != PLAIN, results.get(test, MISSING))


def complete(play, side, results, known, alone):
    """`results` of a run that ended early (a crash, a hang), with those of the tests that it did not come to: they run
    on their own, as long as each run comes to some."""
    results = dict(results)
    while left := [test for test in known if test not in results and alone(test)]:
        more = play(side, left)
        if not any(test in more for test in left):
            break
        results.update((test, more[test]) for test in left if test in more)
    return results
