"""Redis' own tests, of Debian's source: a unit is a file of them. They drive servers from Tcl."""

import os
import re
import shutil

import fetch

_LINE = re.compile(r"\[(ok|err|exception|skip|ignore|timeout)\]: (.*?)(?: \(\d+ ms\)| in tests/\S+.*)?$", re.M)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Redis:
    name = "redis"
    limit = 540
    tools = ("tclsh", "cc", "dpkg-source")

    def prepare(self):
        self.folder, version = fetch.prepared("redis", 1, self._build)
        self.source = f"{self.folder}/source"
        return version

    def _build(self, folder):
        version = fetch.debian_source(folder, "redis")
        fetch.make(folder, "MALLOC=libc", "BUILD_TLS=no", cwd=f"{folder}/source")
        return version

    def units(self):
        with open(f"{self.source}/tests/test_helper.tcl") as f:
            return re.search(r"^set ::all_tests \{(.*?)^\}", f.read(), re.M | re.S).group(1).split()

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
        return ["tclsh", "tests/test_helper.tcl", "--single", unit, "--clients", "1", "--durable", "--timeout", "300"], place, {}

    def results(self, unit, place, text):
        results = {}
        for word, test in _LINE.findall(_COLOURS.sub("", text)):
            result = {"ok": "pass", "skip": "skip", "ignore": "skip"}.get(word, "fail")
            if results.get(test) != "fail":
                results[test] = result
        return results
