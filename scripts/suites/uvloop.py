"""The tests of uvloop, an event loop for Python on libuv: its release's sources against its release's built package."""

import glob
import os
import sys

import fetch
import journal


class Uvloop:
    name = "uvloop"
    limit = 300
    tools = ()

    def prepare(self):
        self.folder, version = fetch.prepared("uvloop", 1, self._get)
        return version

    def _get(self, folder):
        python = fetch.environment_of_python(folder, sys.executable, "uvloop", "aiohttp", "psutil", "pyOpenSSL")
        version = fetch.installed_version(folder, python, "uvloop")
        fetch.step(folder, python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "uvloop", f"uvloop=={version}")
        fetch.step(folder, "tar", "-xf", glob.glob(f"{folder}/uvloop-*.tar.gz")[0], "--strip-components=1", "--one-top-level=source")
        # Only the tests: beside them the package's sources would be taken for the built package.
        os.rename(f"{folder}/source/tests", f"{folder}/tests")
        return version

    def units(self):
        return sorted(os.path.basename(path)[:-3] for path in glob.glob(f"{self.folder}/tests/test_*.py"))

    def alone(self, test):
        return test.startswith("tests.")

    def command(self, unit, place, tests):
        names = tests or [f"tests.{unit}"]
        return [f"{self.folder}/venv/bin/python", journal.__file__, f"{place}/journal", "unittest", "-v", *names], self.folder, {}

    def results(self, unit, place, text):
        return journal.read(f"{place}/journal")
