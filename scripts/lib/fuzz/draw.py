"""Draws a program from a seed: proposals, of which the model admits those that have one outcome.

Each program has its own leanings (which calls it is made of, how long its messages are, which settings): one that does a
few things over and over gets further into what these do to each other than one that does a little of everything.
"""

import random

from .draw_bytes import DrawBytes
from .draw_life import DrawLife
from .draw_ready import DrawReady
from .model import Model
from .program import Op, Program
from .state import Epoll, Invalid, Stream


def settings(rng, with_fault):
    """(settings, build)"""
    out = {}
    if upgrade := rng.choice(("eager",) * 8 + ("1", "500", "4K", "20K", None)):
        out["SLUICE_UPGRADE"] = upgrade
    if mode := rng.choice((None, None, "dynamic", "direct", "indirect")):
        out["SLUICE_MODE"] = mode
    if rng.random() < 0.4:
        out["SLUICE_RING"] = rng.choice(("4K", "8K", "32K", "64K", "1M"))
    if rng.random() < 0.4:
        out["SLUICE_DIRECT"] = rng.choice(("1", "500", "4K", "64K", "off"))
    if rng.random() < 0.4:
        out["SLUICE_SPIN_US"] = rng.choice(("0", "0", "5", "1000"))
    if with_fault and rng.random() < 0.25:
        return out | {"SLUICE_FAULT": f"demote:{rng.randrange(1 << 31)}"}, "fault"
    return out, "usual"


class Draw(DrawBytes, DrawReady, DrawLife):
    def __init__(self, seed, with_fault=False, length=None):
        self.rng = rng = random.Random(seed)
        chosen, build = settings(rng, with_fault)
        start = rng.choice(("AB", "AB", "AB", "ABC", "A"))
        without = rng.choice(start) if len(start) > 1 and rng.random() < 0.06 else ""
        self.program = Program(chosen, [], build, rng.choice((4, 4, 4, 6, 46)), start, without)
        self.model = Model(self.program)
        self.length = length or rng.choice((10, 20, 30, 60, 100))
        self.nodelay = rng.random() < 0.8
        # Calls after which a connection stays on TCP for good.
        self.pins = rng.random() < 0.15
        self.sizes = rng.choice(((1, 100), (1, 2000), (1, 4096), (1000, 30000), (1, 200000), (30000, 190000)))
        # Leanings: some kinds of steps not at all, others much.
        self.weights = {name: weight * rng.choice((0, 0.3, 1, 1, 1, 4)) for name, weight in STEPS.items()}
        for name in ("talk", "read", "connect", "begin"):
            self.weights[name] = self.weights[name] or STEPS[name]
        if not self.pins:
            self.weights["urgent"] = 0

    # --- helpers ---

    def put(self, text):
        """Proposes a call. True: it is part of the program now."""
        op = Op.parse(text)
        try:
            self.model.step(op)
        except (Invalid, ValueError, IndexError, KeyError):
            return False
        self.program.ops.append(op)
        self.join_fired()
        return True

    def join_fired(self):
        """What must be joined before anything else."""
        for x in self.model.pendings():
            if x.strict and x.is_fired():
                self.put(f"{x.process.name}{x.thread} join")
                return

    def living(self):
        return [p for p in self.model.processes.values() if p.alive]

    def idle(self, p, other_than=None):
        free = [t for t, x in p.threads.items() if x is None and t != other_than]
        return self.rng.choice(free) if free else None

    def sleeper(self, p):
        """A thread for a call that sleeps: not the first, so that something else can go on."""
        free = [t for t, x in p.threads.items() if x is None]
        if len(free) > 1:
            return max(free)
        for t in (1, 2):
            if t not in p.threads and free and self.put(f"{p.name}{free[0]} thread {t}"):
                return t
        if free and len(self.living()) > 1 and self.rng.random() < 0.5:
            return free[0]
        return None

    def fresh(self, p):
        """A handle nobody has used, most times."""
        n = 0
        while n in p.handles or (n in p.closed and self.rng.random() < 0.8):
            n += 1
        return n

    def ends(self, kind=Stream):
        return [(p, n, h.file) for p in self.living() for n, h in p.handles.items() if isinstance(h.file, kind)]

    def an_end(self, kind=Stream):
        ends = self.ends(kind)
        return self.rng.choice(ends) if ends else None

    def end_of(self, file):
        """Somebody who has this file, and a thread for it: (`B0`, handle)."""
        who = [(p, n) for p, n, f in self.ends(type(file)) if f is file and self.idle(p) is not None]
        if not who:
            return None
        p, n = self.rng.choice(who)
        return f"{p.name}{self.idle(p)}", n

    def size(self, most=None):
        low, high = self.sizes
        n = self.rng.choice((1, self.rng.randint(low, high), self.rng.randint(low, high), self.rng.randint(1, 300)))
        return max(1, min(n, most or n))

    def flags(self, *names, chance=0.3):
        on = [n for n in names if self.rng.random() < chance]
        return f" flags={'|'.join(on)}" if on else ""

    # --- steps ---

    def step(self):
        names = list(self.weights)
        name = self.rng.choices(names, [self.weights[n] for n in names])[0]
        getattr(self, "do_" + name)()

    def do_pause(self):
        p = self.rng.choice(self.living())
        self.put(f"{p.name}0 pause ms={self.rng.choice((1, 2, 5, 5, 20, 60, 120, 300))}")

    # --- all of it ---

    def draw(self):
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            self.do_connect()
        tries = 0
        while len(self.program.ops) < self.length and tries < 4 * self.length:
            tries += 1
            self.step()
            if self.rng.random() < 0.1:
                self.do_join()
            if self.rng.random() < 0.03:
                self.do_restore()
        self.close_up()
        return self.program

    def close_up(self):
        """Everything to its end, so that nothing that went wrong stays unseen."""
        for _ in range(3):
            self.do_fulfil()
        self.do_join()
        self.do_restore()
        for s in self.model.streams():
            self.settle(s)
            if (s.rx.unread or s.rx.fuzzy) and (who := self.end_of(s)):
                self.get(who, s, "all")
        for p, n, f in self.ends(Epoll):
            t = self.idle(p)
            if t is not None:
                self.put(f"{p.name}{t} epoll_wait {n} ms=0")
        for s in self.model.streams():
            if self.rng.random() < 0.5:
                for p, n, f in self.ends():
                    if f is s and (t := self.idle(p)) is not None:
                        self.put(f"{p.name}{t} close {n}")
                if s.dead and not s.peer.dead:
                    self.do_aftermath(s.peer)


# Kinds of steps, and how often they are drawn.
STEPS = {
    "talk": 10, "send": 6, "read": 8, "begin": 10, "fulfil": 12, "join": 3, "poll": 4, "epoll_set": 1, "epoll_ctl": 4,
    "epoll_wait": 4, "epoll_talk": 6, "option": 4, "dup": 2, "close": 1.5, "shutdown": 1, "signal": 2, "cancel": 1, "fork": 0.7,
    "pass": 0.7, "exec": 0.4, "end": 0.3, "pause": 0.7, "full": 0.4, "bulk": 2, "connect": 1.5, "restore": 1,
    "urgent": 1, "refused": 0.3,
}


def draw(seed, with_fault=False, length=None):
    return Draw(seed, with_fault, length).draw()
