"""Runs a program in both worlds, says what differs, how steadily, and finds the smallest program that still shows it."""

import dataclasses
import re
import time

import common

from .model import admitted, size_of
from .program import Program
from .world import LIMIT, World

TRIES = 8       # runs that class a difference as steady or not
# Seconds that a program may seem to hang while it is made smaller: one that hangs is run many times then.
IMPATIENT = 2
# At the end of a report's line: what keeps a connection on TCP, or ended it soon, was the program's own doing.
PINNED = {"msg-oob", "splice", "passed", "shared", "shutdown", "close", "peer-closed", "not-established", "exec"}


class Tally:
    """What has been run, and how much of it went over links."""

    def __init__(self):
        self.programs = self.calls = self.unsteady = 0
        self.connections = self.eligible = self.accelerated = self.demotions = self.tcp = self.link = self.direct = 0
        self.names = {}

    def add(self, other):
        for key, value in vars(other).items():
            if key == "names":
                for name, n in value.items():
                    self.names[name] = self.names.get(name, 0) + n
            else:
                setattr(self, key, getattr(self, key) + value)

    def report(self, path, program):
        """Both ends tell of a connection, and so do the processes that share an end."""
        upgrade = program.settings.get("SLUICE_UPGRADE", "32K")
        # A try at the threshold may be too early for the other end, which then has another.
        worth = 4 * (1 if upgrade == "eager" else size_of(upgrade))
        try:
            lines = common.report_lines(path)
        except common.Failure:
            return
        moved, linked, pinned = {}, set(), set()
        for fields in lines:
            ports = frozenset(fields[end].rsplit(":", 1)[1] for end in ("local", "peer"))
            link = sum(int(v) for k, v in fields.items() if re.fullmatch(r"[tr]x_(direct|indirect|file|pages)", k))
            self.tcp += int(fields["tx_tcp"]) + int(fields["rx_tcp"])
            self.link += link
            self.direct += sum(int(v) for k, v in fields.items() if re.fullmatch(r"[tr]x_direct", k))
            self.demotions += int(fields["demotions"])
            moved[ports] = max(moved.get(ports, 0), link + int(fields["tx_tcp"]) + int(fields["rx_tcp"]))
            if link or int(fields["upgrades"]):
                linked.add(ports)
            if fields["reason"] in PINNED:
                pinned.add(ports)
        eligible = {p for p, n in moved.items() if n >= worth and p in linked | (moved.keys() - pinned)}
        if program.without:
            eligible &= linked      # of the others nobody tells who was at the other end
        self.connections += len(moved)
        self.eligible += len(eligible)
        self.accelerated += len(eligible & linked)

    def __str__(self):
        share = self.accelerated / self.eligible if self.eligible else 0
        bytes_ = self.link / (self.tcp + self.link) if self.link else 0
        direct = self.direct / self.link if self.link else 0
        return (f"{self.programs} programs, {self.calls} calls; {self.accelerated} of {self.eligible} connections that were worth it"
                f" accelerated ({share:.0%}), {self.connections} in all, {bytes_:.0%} of {(self.tcp + self.link) / 1e6:.0f} MB by link ({direct:.0%} of that direct),"
                f" {self.demotions} demotions")


@dataclasses.dataclass
class Difference:
    at: int             # of the admitted calls; beyond them: how processes ended
    call: str
    plain: str
    sluice: str

    def signature(self):
        """What it is, without numbers: to tell it from others while a program shrinks."""
        name = self.call.split()[1] if len(self.call.split()) > 1 else "end"
        if self.sluice.startswith("HANGS") or "STUCK" in self.sluice:
            return name, "", "HANGS"
        return name, shape(self.plain), shape(self.sluice)

    def __str__(self):
        return f"{self.call}: plain {self.plain!r}, preloaded {self.sluice!r}"


def shape(line):
    return re.sub(r"\d+", "N", re.sub(r"0x[0-9a-f]+|\b[A-F]\d?\b", "N", line))[:60]


class Judge:
    def __init__(self, dir, lib, fault_lib, twice=False):
        """`twice`: both worlds are plain, which tests the model and not the library."""
        self.dir, self.lib, self.fault_lib, self.twice = dir, lib, fault_lib, twice
        self.tally = Tally()
        self.on_hang = None
        self.limit = LIMIT

    def run(self, program, calls, preloaded, expected=None):
        lib = None
        if preloaded and not self.twice:
            lib = self.fault_lib if program.build == "fault" else self.lib
        world = World(program, calls, self.dir, lib, expected, self.limit)
        world.on_hang = self.on_hang if preloaded else None
        lines = world.run()
        if lib:
            self.tally.report(world.report, program)
        return lines

    def once(self, program, repeat=1):
        """(Difference or None, plain transcript, preloaded transcript, admitted calls). The preloaded world is run until a
        difference shows, `repeat` times at most."""
        calls, _ = admitted(program)
        plain = self.run(program, calls, False)
        if broken(plain):
            return None, plain, None, calls
        for _ in range(repeat):
            sluice = self.run(program, calls, True, plain)
            found = first_difference(calls, plain, sluice)
            if found:
                return found, plain, sluice, calls
        return None, plain, sluice, calls

    def is_steady(self, program, plain):
        """Does plain TCP say the same again?"""
        calls, _ = admitted(program)
        return all(self.run(program, calls, False) == plain for _ in range(3))

    def frequency(self, program, tries=TRIES):
        """(differences, runs)"""
        found = 0
        for _ in range(tries):
            difference, plain, *_ = self.once(program)
            found += bool(difference)
        return found, tries

    # --- shrinking ---

    def shows(self, signature, often):
        """Does a program show this difference, which `often` of 1 runs do?"""
        repeat = max(1, min(30, round(3 / max(often, 0.1))))

        def shows(candidate):
            found, plain, _, calls = self.once(candidate, repeat)
            return found is not None and found.signature() == signature and self.run(candidate, calls, False) == plain
        return shows

    def is_broken(self, candidate):
        """Does plain TCP not get through?"""
        return broken(self.run(candidate, admitted(candidate)[0], False))

    def is_unsteady(self, candidate):
        """Does plain TCP say now this, now that?"""
        calls, _ = admitted(candidate)
        plain = self.run(candidate, calls, False)
        return not broken(plain) and any(self.run(candidate, calls, False) != plain for _ in range(20))

    def shrink(self, program, shows, lines, seconds):
        """The smallest program found within so many seconds that shows it, too, which is told in the last of so many lines."""
        deadline = time.monotonic() + seconds
        self.limit = IMPATIENT
        calls, _ = admitted(program)
        best = program.with_ops([op for op, _ in calls])
        # What comes behind has nothing to do with it, mostly.
        if shows(candidate := best.with_ops(best.ops[:lines])):
            best = candidate
        for step in (self.fewer_settings, self.fewer_calls, self.smaller_calls, self.fewer_calls, self.fewer_settings):
            best = step(best, shows, deadline)
        self.limit = LIMIT
        calls, _ = admitted(best)
        return best.with_ops([op for op, _ in calls])

    @staticmethod
    def fewer_calls(best, shows, deadline):
        part = max(1, len(best.ops) // 2)
        while time.monotonic() < deadline:
            i, dropped = len(best.ops), False
            while i > 0 and time.monotonic() < deadline:
                i -= part
                # What the model refuses without these is gone as well.
                candidate = best.with_ops([op for op, _ in admitted(best.with_ops(best.ops[:max(i, 0)] + best.ops[max(i, 0) + part:]))[0]])
                if len(candidate.ops) < len(best.ops) and shows(candidate):
                    best, dropped = candidate, True
                    i = min(i, len(best.ops))
            if part == 1 and not dropped:
                break
            part = max(1, part // 2) if not dropped or part > 1 else 1
        return best

    @staticmethod
    def fewer_settings(best, shows, deadline):
        for key in list(best.settings):
            rest = {k: v for k, v in best.settings.items() if k != key}
            candidate = dataclasses.replace(best, settings=rest, build="usual" if key == "SLUICE_FAULT" else best.build)
            if time.monotonic() < deadline and shows(candidate):
                best = candidate
        if best.without and time.monotonic() < deadline and shows(candidate := dataclasses.replace(best, without="")):
            best = candidate
        if best.family != 4 and time.monotonic() < deadline and shows(candidate := dataclasses.replace(best, family=4)):
            best = candidate
        return best

    @staticmethod
    def smaller_calls(best, shows, deadline):
        for i in range(len(best.ops)):
            for option in list(best.ops[i].options):
                for value in simpler(best.ops[i], option):
                    if time.monotonic() > deadline:
                        return best
                    op = best.ops[i]
                    rest = {k: v for k, v in op.options.items() if k != option}
                    new = dataclasses.replace(op, options=rest if value is None else {**op.options, option: value})
                    candidate = best.with_ops(best.ops[:i] + [new] + best.ops[i + 1:])
                    if len(admitted(candidate)[0]) == len(best.ops) and shows(candidate):
                        best = candidate
                        break
        return best


def simpler(op, option):
    """Other values of an option that a reader would rather see."""
    value = op.options[option]
    if option in ("flags", "pieces", "kind", "wait", "most", "times", "chunk"):
        return [None]
    if option == "mask" and "|" in value:
        words = value.split("|")
        return ["|".join(words[:k] + words[k + 1:]) for k in range(len(words))]
    if option in ("len", "rounds") and value != "all":
        return [str(n) for n in (1, 10, 100, 1000, 10000, int(value) // 2) if n < int(value)]
    return []


def broken(lines):
    """Plain TCP did not get through: the model has admitted what it should not."""
    return lines[-1].startswith(("HANGS", "DIED")) or any("STUCK" in line for line in lines)


def first_difference(calls, plain, sluice):
    for i, line in enumerate(plain):
        other = sluice[i] if i < len(sluice) else "(nothing)"
        if line != other:
            return Difference(i, str(calls[i][0]) if i < len(calls) else "at the end", line, other)
    if len(sluice) > len(plain):
        return Difference(len(plain), "at the end", "(nothing)", sluice[len(plain)])
    return None


def told(calls, plain, sluice):
    """Both transcripts beside the calls, as far as they go."""
    out = []
    for i, line in enumerate(plain):
        call = str(calls[i][0]) if i < len(calls) else ""
        other = sluice[i] if sluice and i < len(sluice) else None
        out.append(f"  {call:58}  {line}")
        if other is not None and other != line:
            out.append(f"! {'preloaded':58}  {other}")
            break
    return "\n".join(out)


def replayed(path):
    with open(path) as f:
        return Program.parse(f.read())
