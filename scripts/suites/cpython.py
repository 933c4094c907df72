"""CPython's own tests of what has to do with sockets, processes and descriptors: a unit is a module of its `test` package.

The interpreter is $SUITES_PYTHON, else the one that runs this if its `test` package is whole, else Debian's with the tests of
Debian's package. Some modules ask for the resource `network`, though most of their tests only use this host; tests that want the
world outside fail or skip themselves, plain too.
"""

import os
import shutil
import subprocess
import sys

import fetch
import journal

MODULES = """test_socket test_selectors test_select test_poll test_epoll test_asyncio test_asyncore test_asynchat test_ssl
    test_socketserver test_httplib test_httpservers test_http_cookiejar test_ftplib test_smtplib test_smtpd test_poplib test_imaplib
    test_nntplib test_telnetlib test_urllib test_urllib2 test_urllib2_localnet test_xmlrpc test_docxmlrpc test_wsgiref test_robotparser
    test_logging test_multiprocessing_fork test_multiprocessing_forkserver test_multiprocessing_spawn test_multiprocessing_main_handling
    test_concurrent_futures test_subprocess test_os test_posix test_signal test_fcntl test_ioctl test_io test_fileio test_largefile
    test_shutil test_threading test_thread test_threadsignals test_fork1 test_wait3 test_wait4 test_eintr test_pty test_openpty
    test_mmap test_resource test_faulthandler test_support test_queue test_sched test_pdb test_syslog test_uuid""".split()


def _whole(python):
    """Does it have the tests themselves, and not only what helps tests, or the quick ones?"""
    some = ", ".join(f"test.test_{name}" for name in ("socket", "asyncio", "concurrent_futures", "multiprocessing_fork"))
    return subprocess.run([python, "-c", f"import {some}"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


class Cpython:
    name = "cpython"
    limit = 600
    tools = ()

    def prepare(self):
        self.path = None
        for python in filter(None, (os.environ.get("SUITES_PYTHON"), sys.executable)):
            if _whole(python):
                self.python = python
                return "%d.%d.%d" % tuple(map(int, self._say("*sys.version_info[:3]").split()))
        self.python = "/usr/bin/python3"
        self.path, version = fetch.prepared("cpython", 1, self._debians)
        return version

    def _say(self, what):
        return subprocess.check_output([self.python, "-c", f"import sys, os; print({what})"], text=True)

    def _debians(self, folder):
        """Debian's interpreter has a few modules of the package, Debian's package the others."""
        if not os.path.exists(self.python):
            raise fetch.Unavailable("no interpreter with a whole `test` package, and no /usr/bin/python3")
        home = self._say("os.path.dirname(os.__file__)").strip()
        version = fetch.debian_package(folder, f"lib{os.path.basename(home)}-testsuite")
        shutil.copytree(f"{home}/test", f"{folder}/test")
        shutil.copytree(f"{folder}/x/{home}/test", f"{folder}/test", dirs_exist_ok=True)
        shutil.rmtree(f"{folder}/x")
        return version

    def units(self):
        folders = repr([f"{self.path}/test"]) if self.path else "__import__('test').__path__"
        known = self._say(f"*(m for m in {MODULES} if any(os.path.exists(f'{{p}}/{{m}}{{e}}') for p in {folders} for e in ('', '.py')))")
        known = known.split()
        if absent := [module for module in MODULES if module not in known]:
            print(f"cpython: modules that this version does not have: {' '.join(absent)}", flush=True)
        return known

    def alone(self, test):
        return test.startswith("test.")

    def command(self, unit, place, tests):
        some = [word for test in tests or () for word in ("-m", test)]
        env = {"LC_ALL": "C.UTF-8", **({"PYTHONPATH": self.path} if self.path else {})}
        return [self.python, journal.__file__, f"{place}/journal", "test", "-v", "-u", "network", *some, unit], place, env

    def results(self, unit, place, text):
        return journal.read(f"{place}/journal")
