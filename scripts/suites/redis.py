"""Redis' own tests, of Debian's source: a unit is a file of them. They drive servers from Tcl.

There are four runners: `runtest`; the same again for modules; and those of sentinel and of cluster, where each file is about
ten or twenty servers that find each other, fail over and come back.
"""

import os
import re
import shutil

import fetch

_LINE = re.compile(r"\[(ok|err|exception|skip|ignore|timeout)\]: (.*?)(?: \(\d+ ms\)| in tests/\S+.*)?$", re.M)
# Sentinel and cluster: "12:34:56> NAME: ", what is told on the way, and then one of two words.
_STEP = re.compile(r"^\d\d:\d\d:\d\d> ", re.M)
_WORD = re.compile(r"OK$|FAILED: ", re.M)
# Nodes are picked at random, and ports as they are free: in names of tests any number stands for them.
_NUMBER = re.compile(r"(?<=#)\d+|(?<=epoch )\d+|(?<=\d:)\d+")
# One file of the others does so, too, and names how much it came to write, in as many rounds as there was time for.
_AT_RANDOM = {"integration/psync2": re.compile(r"(?<=#)\d+|(?<=x = )\d+|(?<=CYCLE )\d+")}
# What of a file fails outside its tests.
_TROUBLE = re.compile(r"^(FAILED: caught an error|ERROR: Sentinel has leaked|\*\*\* Crash report|WARNING: Aborting|Forcing process)",
                      re.M)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MANY = ("sentinel", "cluster")


class Redis:
    name = "redis"
    limit = 540
    silence = 300       # a hundred thousand writes to a cluster, between two words
    tools = ("tclsh", "cc", "dpkg-source", "ps")

    def prepare(self):
        self.folder, version = fetch.prepared("redis", 2, self._build)
        self.source = f"{self.folder}/source"
        return version

    def _build(self, folder):
        version = fetch.debian_source(folder, "redis")
        fetch.make(folder, "MALLOC=libc", "BUILD_TLS=no", cwd=f"{folder}/source")
        fetch.make(folder, cwd=f"{folder}/source/tests/modules")
        return version

    def units(self):
        with open(f"{self.source}/tests/test_helper.tcl") as f:
            units = re.search(r"^set ::all_tests \{(.*?)^\}", f.read(), re.M | re.S).group(1).split()
        with open(f"{self.source}/runtest-moduleapi") as f:
            units += re.findall(r"--single (\S+)", f.read())
        for runner in _MANY:
            folder = f"{self.source}/tests/{runner}/tests"
            units += [f"{runner}/{name.removesuffix('.tcl')}" for name in sorted(os.listdir(folder))
                      if name.endswith(".tcl") and self._has_tests(f"{folder}/{name}")]
        return units

    def _has_tests(self, path):
        """Some files are an idea, and some are switched off as a whole."""
        with open(path) as f:
            text = f.read()
        return re.search(r"^\s*test ", text, re.M) and not re.search(r"^if \{false\}", text, re.M)

    def alone(self, _test):
        # Tests go on where the last one of their file stopped.
        return False

    def command(self, unit, place, tests):
        # The tests write beside themselves.
        for name in os.listdir(self.source):
            if name == "tests":
                shutil.copytree(f"{self.source}/tests", f"{place}/tests")
            else:
                os.symlink(f"{self.source}/{name}", f"{place}/{name}")
        runner, _, name = unit.partition("/")
        if runner in _MANY:
            # It takes part of a path.
            return ["tclsh", f"tests/{runner}/run.tcl", "--single", f"/{name}.tcl"], place, {}
        return ["tclsh", "tests/test_helper.tcl", "--single", unit, "--clients", "1", "--durable", "--timeout", "300"], place, {}

    def results(self, unit, place, text):
        text, results = _COLOURS.sub("", text), {}
        if unit.partition("/")[0] in _MANY:
            return self._steps(unit, text)
        number = _AT_RANDOM.get(unit)
        for word, test in _LINE.findall(text):
            test = number.sub("N", test) if number else test
            result = {"ok": "pass", "skip": "skip", "ignore": "skip"}.get(word, "fail")
            if results.get(test) != "fail":
                results[test] = result
        return results

    def _steps(self, unit, text):
        results = {f"{unit}: servers and file": "fail" if _TROUBLE.search(text) or "Cleaning up..." not in text else "pass"}
        for step in _STEP.split(text)[1:]:
            name, _, rest = step.partition(": ")
            name, word = _NUMBER.sub("N", name), _WORD.search(rest)
            if results.get(name) != "fail":
                results[name] = "pass" if word and word.group() == "OK" else "fail"
        return results
