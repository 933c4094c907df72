"""curl's own tests, of Debian's source: its program and its library against its servers. A unit is a range of their numbers."""

import os
import re

import fetch

STEP = 60
_BEGUN = re.compile(r"^test (\d+)\.\.\.", re.M)
_PASSED = re.compile(r"^test (\d+)\.\.\.(?:(?!^test ).)*?\bOK +\(", re.M | re.S)
_SKIPPED = re.compile(r"^test (\d+) SKIPPED", re.M)
_FAILED = re.compile(r"^(?:TESTFAIL: These test cases failed:|IGNORED: failed tests:)(.*)$", re.M)


class Curl:
    name = "curl"
    limit = 540
    tools = ("perl", "cc", "dpkg-source")

    def prepare(self):
        self.folder, version = fetch.prepared("curl", 1, self._build)
        self.source = f"{self.folder}/source"
        return version

    def _build(self, folder):
        version = fetch.debian_source(folder, "curl")
        source = f"{folder}/source"
        # Some of its tests ask for a build that can be looked into.
        fetch.step(folder, "./configure", "-q", "--disable-shared", "--enable-debug", "--with-openssl", "--disable-ldap",
                   "--disable-manual", cwd=source)
        fetch.make(folder, cwd=source)
        fetch.make(folder, "-C", "tests", "all", cwd=source)
        for part in ("server", "libtest", "unit"):
            fetch.make(folder, "-C", f"tests/{part}", "check", "TESTS=", cwd=source)
        return version

    def units(self):
        numbers = sorted(int(name[4:]) for name in os.listdir(f"{self.source}/tests/data") if re.fullmatch(r"test\d+", name))
        self.numbers = {f"{part[0]:04}-{part[-1]:04}": part
                        for part in (numbers[n:n + STEP] for n in range(0, len(numbers), STEP))}
        return list(self.numbers)

    def alone(self, _test):
        return True

    def command(self, unit, place, tests):
        # The runner writes beside itself.
        for name in os.listdir(self.source):
            if name != "tests":
                os.symlink(f"{self.source}/{name}", f"{place}/{name}")
        os.mkdir(f"{place}/tests")
        for name in os.listdir(f"{self.source}/tests"):
            if name != "log" and not name.startswith("."):
                os.symlink(f"{self.source}/tests/{name}", f"{place}/tests/{name}")
        return ["perl", "runtests.pl", "-a", "-n", *(tests or map(str, self.numbers[unit]))], f"{place}/tests", {"srcdir": "."}

    def results(self, unit, place, text):
        results = {n: "skip" for n in _SKIPPED.findall(text)}
        results.update((n, "fail") for n in _BEGUN.findall(text))
        results.update((n, "pass") for n in _PASSED.findall(text))
        for numbers in _FAILED.findall(text):
            results.update((f"{int(n):04}", "fail") for n in numbers.split())
        return results
