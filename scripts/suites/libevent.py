"""libevent's own tests, of Debian's source: a unit for each way of waiting that it has on Linux."""

import re

import fetch

BACKENDS = {"epoll": (), "epoll-changelist": ("EVENT_EPOLL_USE_CHANGELIST",), "poll": ("EVENT_NOEPOLL",),
            "select": ("EVENT_NOEPOLL", "EVENT_NOPOLL")}
# What a test prints stands between its name and the word; of several words (it is tried again) the last counts.
_TEST = re.compile(r"^(\w+/\w+): ", re.M)
_WORD = re.compile(r"\bOK$|\bSKIPPED$|\bDISABLED$|^  \[\w+ FAILED\]$", re.M)


class Libevent:
    name = "libevent"
    limit = 600
    tools = ("cc", "dpkg-source")

    def prepare(self):
        self.folder, version = fetch.prepared("libevent", 1, self._build)
        return version

    def _build(self, folder):
        version = fetch.debian_source(folder, "libevent")
        source = f"{folder}/source"
        fetch.step(folder, "./configure", "-q", "--disable-shared", "--disable-samples", cwd=source)
        fetch.make(folder, cwd=source)
        fetch.make(folder, "test/regress", cwd=source)
        return version

    def units(self):
        return list(BACKENDS)

    def alone(self, _test):
        return True

    def command(self, unit, place, tests):
        return [f"{self.folder}/source/test/regress", "--timeout", "60", *(tests or ())], f"{self.folder}/source/test", \
            {key: "1" for key in BACKENDS[unit]}

    def results(self, unit, place, text):
        results = {}
        begins = list(_TEST.finditer(text)) + [None]
        for test, following in zip(begins, begins[1:]):
            words = _WORD.findall(text[test.end():following.start() if following else None])
            word = words[-1] if words else ""
            results[test.group(1)] = "pass" if word == "OK" else "skip" if word in ("SKIPPED", "DISABLED") else "fail"
        return results
