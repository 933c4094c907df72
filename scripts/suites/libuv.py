"""libuv's own tests, of Debian's source. Each runs in a process of its own, with helpers beside it."""

import re

import fetch

_LINE = re.compile(r"^(not ok|ok) \d+ - (\w+)( # SKIP)?", re.M)


class Libuv:
    name = "libuv"
    limit = 900
    tools = ("cmake", "cc", "dpkg-source")

    def prepare(self):
        self.folder, version = fetch.prepared("libuv", 1, self._build)
        self.run = f"{self.folder}/build/uv_run_tests_a"
        return version

    def _build(self, folder):
        version = fetch.debian_source(folder, "libuv1")
        fetch.step(folder, "cmake", "-S", "source", "-B", "build", "-DLIBUV_BUILD_TESTS=ON", "-DBUILD_TESTING=ON")
        fetch.make(folder, "uv_run_tests_a", cwd=f"{folder}/build")
        return version

    def units(self):
        # Two could not run side by side: their pipes have names in /tmp.
        return ["tests"]

    def alone(self, _test):
        return True

    def command(self, unit, place, tests):
        # The runner takes one name, or none for all.
        cmd = ["sh", "-c", 'for each; do "$0" "$each"; done', self.run, *tests] if tests else [self.run]
        return cmd, f"{self.folder}/source", {"UV_RUN_AS_ROOT": "1"}

    def results(self, unit, place, text):
        return {name: "fail" if word == "not ok" else "skip" if skipped else "pass" for word, name, skipped in _LINE.findall(text)}
