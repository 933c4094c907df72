"""The tests that gevent, coroutines for Python, installs with itself: a unit is a module of them on one of its two loops,
libev's and libuv's."""

import glob
import os
import sys

import fetch
import journal

LOOPS = {"libev": "libev-cext", "libuv": "libuv-cffi"}


class Gevent:
    name = "gevent"
    limit = 300
    tools = ()

    def prepare(self):
        self.folder, version = fetch.prepared("gevent", 1, self._get)
        return version

    def _get(self, folder):
        python = fetch.environment_of_python(folder, sys.executable, "gevent", "dnspython", "idna", "requests", "psutil", "objgraph",
                                             "cffi")
        return fetch.installed_version(folder, python, "gevent")

    def units(self):
        # Under "test__" are those of sockets, servers and loops, beside those of modules that do nothing of the kind.
        paths = glob.glob(f"{self.folder}/venv/lib/python*/site-packages/gevent/tests/test__*.py")
        return [f"{loop}/{os.path.basename(path)[:-3]}" for path in sorted(paths) for loop in LOOPS]

    def alone(self, test):
        return test.startswith("gevent.tests.")

    def command(self, unit, place, tests):
        loop, module = unit.split("/")
        return [f"{self.folder}/venv/bin/python", journal.__file__, f"{place}/journal", "unittest", "-v",
                *(tests or [f"gevent.tests.{module}"])], place, {"GEVENT_LOOP": LOOPS[loop]}

    def results(self, unit, place, text):
        return journal.read(f"{place}/journal")
