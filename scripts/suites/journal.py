"""Runs unittest or CPython's own `test` package and notes what comes of each test, as it comes:

    python3 journal.py FILE unittest|test ARGUMENTS...

`unittest` and `test` are what `python3 -m` takes. Each line of FILE is `begin|pass|fail|skip NAME`: whoever reads it knows
after a crash or a hang which test it was, and needs not tell the runner's output from that of the tests.
"""

import os
import sys
import unittest


class Journal:
    def __init__(self, path):
        # Opened for each line: tests count descriptors.
        self.path, self.owner, self.bad, self.skipped = path, os.getpid(), set(), set()

    def note(self, word, test):
        # A forked child that goes on in the runner's code is no run of its own.
        if os.getpid() == self.owner:
            with open(self.path, "a", encoding="utf-8", errors="backslashreplace") as f:
                f.write(f"{word} {test.id()}\n".replace("\n", " ").rstrip() + "\n")

    def failed(self, test):
        # Of setUpClass and setUpModule there is neither a begin nor an end.
        self.bad.add(test.id())
        self.note("fail", test)

    def ended(self, test):
        if test.id() not in self.bad:
            self.note("skip" if test.id() in self.skipped else "pass", test)


def listen(journal):
    """From now on every result of unittest's is noted."""
    kind = unittest.TestResult

    def before(name, act):
        real = getattr(kind, name)

        def wrapper(self, test, *args):
            act(test, *args)
            return real(self, test, *args)
        setattr(kind, name, wrapper)

    def skipped(test, _reason):
        if hasattr(test, "_testMethodName"):
            journal.skipped.add(test.id())
        else:
            journal.note("skip", test)

    before("startTest", lambda test: journal.note("begin", test))
    before("stopTest", journal.ended)
    before("addError", lambda test, _err: journal.failed(test))
    before("addFailure", lambda test, _err: journal.failed(test))
    before("addUnexpectedSuccess", journal.failed)
    before("addSkip", skipped)
    before("addSubTest", lambda test, _subtest, err: err and journal.failed(test))


def read(path):
    """{test: pass, fail or skip} of such a file. What has begun and not ended has failed; of several runs of one test the
    worst counts."""
    results, running = {}, set()
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            for line in f:
                word, _, test = line.rstrip("\n").partition(" ")
                if word == "begin":
                    running.add(test)
                    continue
                running.discard(test)
                if results.get(test) != "fail":
                    results[test] = word
    return {**results, **{test: "fail" for test in running}}


def main():
    path, kind = sys.argv[1:3]
    del sys.argv[1:3]
    # `python3 -m` looks in the working directory, not beside this file.
    sys.path[0] = os.getcwd()
    listen(Journal(path))
    if kind == "test":
        from test.libregrtest.main import main as regrtest
        regrtest()
    else:
        unittest.main(module=None)


if __name__ == "__main__":
    main()
