"""Paired measurements: plain and preloaded alternately in one run, medians and ratios.

A case is a function `case(side, place, secs) -> Result`. `side` says how to start programs (plain or
preloaded), `place` where. The order within a pair flips from round to round, so that neither side
always has the warmer machine.
"""

import os
import resource
import signal
import sys
from dataclasses import dataclass, field

import common
from common import median, si

# Of an accelerated case at least this share of the client's bytes goes by link: all but the first
# 32 KiB of each connection, in runs that are no longer than they are.
LINK_SHARE = 0.80
PLACES = ("one", "two", "free")


@dataclass
class Result:
    rate: float                 # the figure compared; more is better
    unit: str
    ops: float = 0              # operations, warm-up included: what `cpu` was spent on
    secs: float = 0
    cpu: float = 0              # CPU seconds of both processes; 0: `measure` fills it in
    p50: float = 0              # ns
    p99: float = 0
    counters: object = None     # what the client's library reported


ENDS = ("both", "client", "server")


class Side:
    """Starts programs of one variant. A client is started with `env(report=True)`, a server with
    `env()`; `ends` says which of them a preloaded side preloads. `reports`: a preloaded client
    writes down what its connections did, a line at each one's end."""

    def __init__(self, preload, extra=None, lib=common.LIB, reports=True, ends="both"):
        if ends not in ENDS:
            sys.exit(f"the ends are one of {', '.join(ENDS)}, not {ends!r}")
        self.preload, self.extra, self.lib, self.ends = preload, extra or {}, lib, ends
        self.reports = preload and reports and ends != "server"
        self.report = None

    def name(self):
        return "preloaded" if self.preload else "plain"

    def env(self, report=False, host=None, **more):
        preload = self.preload and self.ends in ("both", "client" if report else "server")
        return common.environment(preload, {**self.extra, **more},
                                  self.report if report else None, self.lib, host)

    def fresh_report(self, directory):
        self.report = (common.fresh_report(os.path.join(directory, "report"))
                       if self.reports else None)

    def counters(self, **ports):
        if not self.reports:
            return None
        return common.read_report(self.report, **ports)


class Place:
    """CPUs of the client and of the server, and whether busy loops share them. `hosts`: of the
    client and of the server, in scripts/guest/run; then `address` is the server's."""
    hosts = (None, None)
    address = None

    def __init__(self, name, hogs=False):
        if name not in PLACES:
            sys.exit(f"a placement is one of {', '.join(PLACES)}, not {name!r}")
        have = common.cpus()
        self.name, self.hogs = name, hogs
        self.client = self.server = None
        if name == "one":
            self.client = self.server = have[0]
        elif name == "two":
            self.client, self.server = have[0], have[1 % len(have)]

    def __str__(self):
        return self.name + ("+hogs" if self.hogs else "")

    def possible(self):
        return self.name != "two" or len(common.cpus()) > 1

    def start_hogs(self):
        if not self.hogs:
            return []
        only = [self.client] if self.name == "one" else common.cpus()
        return [common.start([os.path.join(common.BIN, "hog")], cpu=c) for c in only]


@dataclass
class Row:
    case: str
    place: str
    plain: list = field(default_factory=list)
    fast: list = field(default_factory=list)
    errors: list = field(default_factory=list)

    def key(self):
        return f"{self.case} / {self.place}"

    def ratios(self):
        return [f.rate / p.rate for p, f in zip(self.plain, self.fast) if p.rate > 0]

    def ratio(self):
        r = self.ratios()
        return median(r) if r else None

    def cpu_ratio(self):
        r = [(f.cpu / f.ops) / (p.cpu / p.ops) for p, f in zip(self.plain, self.fast)
             if p.ops and f.ops and p.cpu and f.cpu]
        return median(r) if r else None

    def share(self):
        """Median share of bytes by link, None where nothing was counted."""
        shares = [f.counters.share() for f in self.fast if f.counters is not None]
        return median(shares) if shares else None

    def accelerated(self):
        """The least number of accelerated connections in any round."""
        counts = [f.counters.accelerated for f in self.fast if f.counters is not None]
        return min(counts) if counts else None

    def cells(self):
        if not self.ratios():
            return [self.case, self.place, "-", "-", "-", "-", "-", "-", "-", "-"]
        r, cpu, share = self.ratios(), self.cpu_ratio(), self.share()
        p50 = [x.p50 for x in self.fast if x.p50]
        p99 = [x.p99 for x in self.fast if x.p99]
        q50 = [x.p50 for x in self.plain if x.p50]
        q99 = [x.p99 for x in self.plain if x.p99]
        unit = self.plain[0].unit
        return [
            self.case, self.place,
            si(median([x.rate for x in self.plain])) + unit,
            si(median([x.rate for x in self.fast])) + unit,
            f"{median(r):.2f}", f"{min(r):.2f}..{max(r):.2f}",
            "-" if cpu is None else f"{cpu:.2f}",
            f"{median(q50) / 1e3:.1f} > {median(p50) / 1e3:.1f}" if p50 and q50 else "-",
            f"{median(q99) / 1e3:.1f} > {median(p99) / 1e3:.1f}" if p99 and q99 else "-",
            "-" if share is None else f"{share * 100:.1f}",
        ]

    HEADS = ["case", "place", "plain", "preloaded", "ratio", "min..max", "cpu/op", "p50 us", "p99 us", "link %"]

    def json(self):
        def one(x):
            return {"rate": x.rate, "unit": x.unit, "ops": x.ops, "secs": x.secs, "cpu": x.cpu,
                    "p50_ns": x.p50, "p99_ns": x.p99,
                    "link_share": None if x.counters is None else x.counters.share()}
        r = self.ratios()
        return {"case": self.case, "place": self.place, "ratio": self.ratio(),
                "ratio_min": min(r) if r else None, "ratio_max": max(r) if r else None,
                "cpu_per_op_ratio": self.cpu_ratio(), "link_share": self.share(),
                "plain": [one(x) for x in self.plain], "preloaded": [one(x) for x in self.fast],
                "errors": self.errors}


def children_cpu():
    u = resource.getrusage(resource.RUSAGE_CHILDREN)
    return u.ru_utime + u.ru_stime


def measure(name, case, place, rounds, secs, extra=None, directory=None, progress=None, reports=True):
    """One row: `rounds` pairs. A run that fails is recorded and ends the row. `reports`: as of `Side`; not where
    connections are many and short, whose report would be what is measured."""
    row = Row(name, str(place))
    directory = directory or common.workplace()
    for n in range(rounds):
        pair = {}
        order = (False, True) if n % 2 == 0 else (True, False)
        for preload in order:
            side = Side(preload, extra, reports=reports)
            side.fresh_report(directory)
            hogs = place.start_hogs()
            before = children_cpu()
            try:
                result = pair[preload] = case(side, place, secs)
                # Every program of the case was waited for by now; the hogs were not.
                result.cpu = result.cpu or children_cpu() - before
            except common.Failure as e:
                common.end_trees()
                hogs = []
                row.errors.append(f"{side.name()}: {e}")
            finally:
                for hog in hogs:
                    common.end(hog, signal.SIGKILL)
                left = common.leftovers()
                if left:
                    row.errors.append(f"{side.name()}: left behind: {'; '.join(left)}")
            if row.errors:
                return row
        row.plain.append(pair[False])
        row.fast.append(pair[True])
        if progress:
            progress(f"{row.key()}: round {n + 1} of {rounds}: {pair[True].rate / pair[False].rate:.2f}")
    return row
