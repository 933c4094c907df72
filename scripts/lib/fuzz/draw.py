"""Draws a program from a seed: proposals, of which the model admits those that have one outcome.

Each program has its own leanings (which calls it is made of, how long its messages are, which settings): one that does a
few things over and over gets further into what these do to each other than one that does a little of everything.
"""

import random

from . import bytes as moving
from .life import ASKED, SIGNALS
from .model import Model
from .program import Op, Program
from .ready import LONG
from .state import Epoll, Invalid, Listener, Stream

MOST_STREAMS = 8


def settings(rng, with_fault):
    """(settings, library)"""
    out = {"SLUICE_UPGRADE": rng.choice(("eager",) * 8 + ("1", "500", "4K", "20K"))}
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


class Draw:
    def __init__(self, seed, with_fault=False, length=None):
        self.rng = rng = random.Random(seed)
        chosen, library = settings(rng, with_fault)
        start = rng.choice(("AB", "AB", "AB", "ABC", "A"))
        self.program = Program(chosen, [], library, rng.choice((4, 4, 4, 6, 46)), start)
        self.model = Model(self.program)
        self.length = length or rng.choice((10, 20, 30, 60, 100))
        self.nodelay = rng.random() < 0.8
        self.sizes = rng.choice(((1, 100), (1, 2000), (1, 4096), (1000, 30000), (1, 200000), (30000, 190000)))
        # Leanings: some kinds of steps not at all, others much.
        self.weights = {name: weight * rng.choice((0, 0.3, 1, 1, 1, 4)) for name, weight in STEPS.items()}
        for name in ("talk", "read", "connect", "begin"):
            self.weights[name] = self.weights[name] or STEPS[name]

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
        if not self.program.ops[-1].name == "join" or True:
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

    def do_connect(self):
        if len(self.model.streams()) >= MOST_STREAMS:
            return
        rng = self.rng
        p, q = rng.choice(self.living()), rng.choice(self.living())
        if len(self.living()) > 1 and p is q and rng.random() < 0.7:
            q = rng.choice([x for x in self.living() if x is not p])
        t, u = self.idle(p), self.idle(q)
        if t is None or u is None:
            return
        listeners = self.model.files_of(Listener, p)
        if listeners and rng.random() < 0.8:
            listener = rng.choice(listeners)
        else:
            listener = self.fresh(p)
            self.put(f"{p.name}{t} listen {listener}{self.flags('NONBLOCK', 'CLOEXEC', chance=0.1)}")
        begun = rng.random() < 0.3 and self.sleeper(p)
        kind = rng.choice(("accept", "accept4", "nameless"))
        flags = self.flags("NONBLOCK", "CLOEXEC", chance=0.25) if kind == "accept4" else ""
        far = self.fresh(p)
        if begun:
            begun = self.put(f"{p.name}{begun}& accept {listener} {far} kind={kind}{flags} wait={self.wait()}")
        near = self.fresh(q)
        while p is q and near in (far, listener):
            near += 1
        u = self.idle(q)
        if u is None or not self.put(f"{q.name}{u} socket {near}{self.flags('NONBLOCK', 'CLOEXEC', chance=0.2)}"):
            return
        if not self.put(f"{q.name}{u} connect {near} to={p.name}:{listener}"):
            return
        t = self.idle(p)
        if t is None:
            return
        if not begun:
            if rng.random() < 0.15:      # bytes before anybody has accepted it
                self.put(f"{q.name}{u} send {near} len={self.size(2000)}")
            if p.handles[listener].file.nonblock or rng.random() < 0.2:
                self.put(f"{p.name}{t} poll {listener}:IN ms={LONG}")
            if not self.put(f"{p.name}{t} accept {listener} {far} kind={kind}{flags}"):
                return
        if self.nodelay:
            self.put(f"{p.name}{t} setopt {far} NODELAY value=1")
            self.put(f"{q.name}{u} setopt {near} NODELAY value=1")
        if rng.random() < 0.75:
            self.warm(p.name, far, q.name, near)

    def warm(self, p, far, q, near):
        t = self.idle(self.model.processes[p])
        u = self.idle(self.model.processes[q], other_than=t if p == q else None)
        if t is not None and u is not None:
            rounds = self.rng.choice((1, 4, 20, 40, 80))
            self.put(f"{p}{t} warm {far} with={q}{u}:{near} rounds={rounds} len={self.rng.choice((1, 60, 500, 3000))}")

    def wait(self):
        return self.rng.choice(("asleep", "asleep", "none", "none", "0.05", "0.3"))

    def send_text(self, who, n, size):
        rng = self.rng
        kind = rng.choice(moving.SENDS + ("send", "write"))
        text = f"{who} send {n} kind={kind} len={size}"
        if kind in moving.FLAGGED:
            text += self.flags("DONTWAIT", "NOSIGNAL", chance=0.25)
            if rng.random() < 0.05:
                text += "|MORE" if "flags=" in text else " flags=MORE"
        return text + (f" pieces={rng.randint(1, 6)}" if kind in ("sendmsg", "writev", "pwritev2", "sendmmsg") else "")

    def do_send(self, end=None, size=None):
        p, n, s = end or self.an_end() or (None,) * 3
        t = p and self.idle(p)
        if t is None:
            return False
        size = size or (0 if self.rng.random() < 0.03 else self.size())
        if s.tx.reader and s.tx.reader.strict:
            size = min(size, self.model.most_whole)
        for n_tries in range(3):
            if self.put(self.send_text(f"{p.name}{t}", n, size)):
                return True
            size = min(size, self.size(4000))
        return False

    def recv_text(self, who, n, s, begins=False):
        rng = self.rng
        kind = rng.choice(moving.RECVS + ("recv", "read"))
        avail = max(s.avail, 1)
        size = rng.choice((avail, avail, avail, rng.randint(1, avail), avail + rng.randint(1, 100), self.size()))
        text = f"{who} recv {n} kind={kind} len={size if rng.random() > 0.03 else 0}"
        if kind in moving.FLAGGED:
            text += self.flags("WAITALL", chance=0.4) if begins else self.flags("DONTWAIT", "WAITALL", "PEEK", "TRUNC", chance=0.2)
            if begins and rng.random() < 0.15:
                text += "|PEEK" if "flags=" in text else " flags=PEEK"
        elif kind == "preadv2" and not begins:
            text += self.flags("DONTWAIT")
        return text + (f" pieces={rng.randint(1, 6)}" if kind in ("recvmsg", "readv", "preadv2", "recvmmsg") else "")

    def settle(self, s):
        if who := self.end_of(s):
            return self.put(f"{who[0]} settle {who[1]}")
        return False

    def do_read(self, s=None):
        ends = [f for _, _, f in self.ends() if f.rx.unread] or [f for _, _, f in self.ends()]
        s = s or (self.rng.choice(ends) if ends else None)
        who = s and self.end_of(s)
        if not who:
            return False
        if not s.settled and self.rng.random() < 0.9:
            if self.rng.random() < 0.3:
                self.put(f"{who[0]} poll {who[1]}:IN ms={LONG} kind={self.rng.choice(('poll', 'ppoll', 'select', 'pselect'))}")
            self.settle(s)
        if self.rng.random() < 0.25 and s.rx.unread:
            return self.get(who, s, self.rng.choice(("all", self.rng.randint(1, s.rx.unread))))
        return any(self.put(self.recv_text(*who, s)) for _ in range(4))

    def get(self, who, s, size, begins=""):
        rng = self.rng
        way = "block" if not s.nonblock else rng.choice(moving.WAYS[1:])
        kind = rng.choice(("recv", "read", "readv", "recvmsg", "recvfrom", "splice"))
        if not s.nonblock and kind in moving.FLAGGED and way == "block" and rng.random() < 0.3:
            kind += " flags=WAITALL"
        chunk = rng.choice((7, 100, 3000, 65536, 300000))
        if size != "all" and int(size) > 100 * chunk:
            chunk = 65536
        return self.put(f"{who[0]}{begins} get {who[1]} kind={kind} len={size} chunk={chunk} way={way}"
                        + (f" wait={self.wait()}" if begins else ""))

    def do_talk(self):
        end = self.an_end()
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            if end and self.do_send(end) and not end[2].peer.dead:
                self.do_read(end[2].peer)

    def do_begin(self):
        """A call that sleeps."""
        rng = self.rng
        end = self.an_end()
        if not end:
            return
        p, n, s = end
        t = self.sleeper(p)
        if t is None:
            return
        who, wait = f"{p.name}{t}", self.wait()
        kind = rng.choice(("recv", "recv", "get", "put", "poll", "epoll"))
        if not s.settled:
            self.settle(s)
        if kind == "recv":
            for _ in range(4):
                text = self.recv_text(f"{who}&", n, s, begins=True)
                if self.put(f"{text} wait={wait}"):
                    break
        elif kind == "get":
            self.get((who, n), s, self.size(500000) + s.rx.unread, "&")
        elif kind == "put":
            way = "block" if not s.nonblock else rng.choice(moving.WAYS[1:])
            size = rng.choice((rng.randint(1, 300000), rng.randint(4 << 20, 12 << 20)))
            kind = rng.choice(("send", "sendmsg", "sendto") + (("write", "writev", "sendfile", "splice") if not s.nonblock else ()))
            chunk = rng.choice((1000, 30000)) if kind == "splice" else rng.choice((1000, 65536, 300000, 2000000))
            self.put(f"{who}& put {n} kind={kind} len={size} chunk={max(chunk, size // 2000)} way={way} wait={wait}")
        elif kind == "poll":
            kind = rng.choice(("poll", "ppoll", "select", "pselect"))
            mine = [(m, h.file) for m, h in p.handles.items() if isinstance(h.file, (Stream, Listener, Epoll))]
            some = rng.sample(mine, min(len(mine), rng.randint(1, 3)))
            words = [f"{m}:{rng.choice(('IN', 'IN', 'IN|RDHUP' if 'select' not in kind else 'IN', 'IN|PRI'))}" for m, _ in some]
            self.put(f"{who}& poll {' '.join(words)} kind={kind} ms={rng.choice((-1, LONG))} wait={wait}")
        else:
            sets = self.model.files_of(Epoll, p)
            if not sets:
                self.do_epoll_set(p)
                sets = self.model.files_of(Epoll, p)
            if sets:
                self.put(f"{who}& epoll_wait {rng.choice(sets)} kind={self.epoll_kind()} ms={rng.choice((-1, LONG))} wait={wait}")

    def epoll_kind(self):
        return self.rng.choice(("epoll_wait", "epoll_wait", "epoll_pwait", "epoll_pwait2"))

    def do_fulfil(self):
        """Something that ends the sleep of a call."""
        waiting = [x for x in self.model.pendings() if not x.is_fired()]
        if not waiting:
            return
        x = self.rng.choice(waiting)
        file = self.rng.choice(x.files) if x.files else None
        if isinstance(file, Epoll):
            file = self.rng.choice(list(file.regs))[1] if file.regs else None
        if isinstance(file, Listener):
            self.do_connect()
        elif isinstance(file, Stream):
            self.fulfil(x, file)
        self.do_join()

    def fulfil(self, x, s):
        rng = self.rng
        if x.op.name == "put":
            if s.peer.dead or s.tx.reader:
                return
            who = self.end_of(s.peer)
            if who and rng.random() < 0.85:
                self.get(who, s.peer, rng.choice((s.tx.unread, max(1, s.tx.unread // 2), rng.randint(1, s.tx.unread))))
            elif who:
                self.put(f"{who[0]} {rng.choice(('close', 'close', 'settle'))} {who[1]}")
            if not x.is_fired() and rng.random() < 0.1 and (mine := self.end_of(s)):
                self.put(f"{mine[0]} shutdown {mine[1]} how=WR")
            return
        who = self.end_of(s.peer) if not s.peer.dead else None
        ends = [e for e in self.ends() if e[2] is s.peer]
        chance = rng.random()
        if chance < 0.1 and (mine := self.end_of(s)):
            self.put(f"{mine[0]} shutdown {mine[1]} how={rng.choice(('RD', 'RDWR'))}")
        elif chance < 0.2 and who:
            self.put(f"{who[0]} shutdown {who[1]} how=WR")
        elif chance < 0.25 and who:
            self.put(f"{who[0]} close {who[1]}")
        elif chance < 0.35 and x.process.restarts and (t := self.idle(x.process)) is not None:
            self.put(f"{x.process.name}{t} kill {x.thread} {rng.choice(list(x.process.restarts))}")
        elif ends and who:
            left = getattr(x, "until", 0) - s.rx.sent
            for _ in range(4):
                if x.is_fired():
                    break
                self.do_send(rng.choice(ends), None if left <= 0 else max(1, min(left, rng.choice((left, left // 2, self.size())))))
                left = getattr(x, "until", 0) - s.rx.sent

    def do_join(self):
        for x in self.model.pendings():
            if x.is_fired():
                self.put(f"{x.process.name}{x.thread} join")

    def do_poll(self):
        p = self.rng.choice(self.living())
        mine = [(m, h.file) for m, h in p.handles.items() if isinstance(h.file, (Stream, Listener, Epoll))]
        t = self.idle(p)
        if not mine or t is None:
            return
        some = self.rng.sample(mine, min(len(mine), self.rng.randint(1, 4)))
        for _, f in some:
            if isinstance(f, Stream) and not f.settled:
                self.settle(f)
        kind = self.rng.choice(("poll", "ppoll", "select", "pselect"))
        masks = ("IN", "OUT", "IN|OUT", "IN|OUT|PRI") + (("IN|OUT|RDHUP", "RDHUP", "none", "RDNORM|WRNORM") if "select" not in kind else ())
        words = " ".join(f"{m}:{self.rng.choice(masks)}" for m, _ in some)
        self.put(f"{p.name}{t} poll {words} kind={kind} ms={self.rng.choice((0, 0, 0, 5, 20, -1, LONG))}")

    def do_epoll_set(self, p=None):
        p = p or self.rng.choice(self.living())
        t = self.idle(p)
        if t is None or len(self.model.files_of(Epoll, p)) >= 4:
            return
        n = self.fresh(p)
        if self.put(f"{p.name}{t} epoll_create {n}{self.flags('CLOEXEC', chance=0.3)}"):
            for _ in range(self.rng.randint(1, 4)):
                self.do_epoll_ctl(p, n)

    def epoll_mask(self):
        rng = self.rng
        mask = rng.choice(("IN", "IN", "IN|OUT", "IN|RDHUP", "IN|OUT|RDHUP", "OUT", "RDHUP", "none", "IN|PRI", "RDNORM|WRNORM"))
        return mask + "".join(f"|{w}" for w, chance in (("ET", 0.4), ("ONESHOT", 0.2), ("EXCLUSIVE", 0.08)) if rng.random() < chance)

    def do_epoll_ctl(self, p=None, set_=None):
        rng = self.rng
        if p is None:
            end = self.an_end(Epoll)
            if not end:
                return self.do_epoll_set()
            p, set_, _ = end
        t = self.idle(p)
        if t is None:
            return None
        mine = [n for n, h in p.handles.items() if isinstance(h.file, (Stream, Stream, Listener, Epoll))]
        if rng.random() < 0.05:
            mine += list(p.closed)
        if not mine:
            return None
        n = rng.choice(mine)
        if n in p.handles and isinstance(p.handles[n].file, Stream) and not p.handles[n].file.settled:
            self.settle(p.handles[n].file)
        has = n in p.handles and (p.handles[n].number, p.handles[n].file) in p.handles[set_].file.regs
        what = rng.choice(("mod", "mod", "mod", "del", "add")) if has else rng.choice(("add",) * 8 + ("mod", "del"))
        return self.put(f"{p.name}{t} epoll_ctl {set_} {what} {n} mask={self.epoll_mask()}")

    def do_epoll_wait(self):
        end = self.an_end(Epoll)
        if not end:
            return self.do_epoll_set()
        p, n, set_ = end
        t = self.idle(p)
        if t is None:
            return None
        self.settle_all(set_)
        ready = len(self.model.reported(set_))
        many = f"most=1 times={ready}" if ready > 1 and self.rng.random() < 0.3 else f"most={ready + self.rng.randint(1, 4)}"
        ms = self.rng.choice((0, 0, 0, 10, LONG, -1))
        return self.put(f"{p.name}{t} epoll_wait {n} kind={self.epoll_kind()} ms={ms} {many}")

    def settle_all(self, set_):
        for _, f in list(set_.regs):
            if isinstance(f, Epoll):
                self.settle_all(f)
            elif isinstance(f, Stream) and not f.settled:
                self.settle(f)
            elif isinstance(f, Listener) and not f.known and (who := self.end_of(f)):
                self.put(f"{who[0]} poll {who[1]}:IN ms={LONG}")

    def do_epoll_talk(self):
        """News for a set, and what it makes of it."""
        sets = [s for _, _, s in self.ends(Epoll) if s.regs]
        if not sets:
            return self.do_epoll_set()
        set_ = self.rng.choice(sets)
        f = self.rng.choice(list(set_.regs))[1]
        if isinstance(f, Stream) and not f.peer.dead:
            ends = [e for e in self.ends() if e[2] is f.peer]
            if ends and self.rng.random() < 0.8:
                self.do_send(self.rng.choice(ends))
            if self.rng.random() < 0.4:
                self.do_read(f)
        return self.do_epoll_wait()

    def do_option(self):
        end = self.an_end()
        if not end:
            return
        p, n, s = end
        t, rng = self.idle(p), self.rng
        if t is None:
            return
        who = f"{p.name}{t}"
        name = rng.choice(("NODELAY", "CORK", "KEEPALIVE", "RCVLOWAT", "RCVTIMEO", "SNDTIMEO", "LINGER", "QUICKACK"))
        if name in ("RCVLOWAT", "RCVTIMEO") and not s.settled:
            self.settle(s)
        value = {"RCVLOWAT": (1, 1, 10, 1000), "RCVTIMEO": (0, 0, 15, 40), "SNDTIMEO": (0, 30), "LINGER": (0, -1, -1)}.get(name, (0, 1))
        what = rng.random()
        if what < 0.55:
            self.put(f"{who} setopt {n} {name} value={rng.choice(value)}")
            if name == "CORK" and s.cork and rng.random() < 0.7:
                self.do_send((p, n, s))
                self.put(f"{who} setopt {n} CORK value=0")
        elif what < 0.7:
            self.put(f"{who} getopt {n} {rng.choice(list(ASKED))}")
        elif what < 0.9:
            self.put(f"{who} fcntl {n} what={rng.choice(('nonblock', 'nonblock', 'fionbio', 'getfl', 'getfd', 'cloexec'))} on={rng.randrange(2)}")
        else:
            self.put(f"{who} names {n}")
        if rng.random() < 0.2:
            self.put(f"{who} ioctl {n} what={rng.choice(('FIONREAD', 'OUTQ'))}")

    def do_restore(self):
        """Options that make most calls depend on time, away again."""
        for p, n, s in self.ends():
            t = self.idle(p)
            if t is None:
                continue
            if s.cork:
                self.put(f"{p.name}{t} setopt {n} CORK value=0")
            if s.lowat > 1:
                self.settle(s)
                self.put(f"{p.name}{t} setopt {n} RCVLOWAT value=1")
            for name in ("RCVTIMEO", "SNDTIMEO"):
                if getattr(s, name.lower()):
                    self.put(f"{p.name}{t} setopt {n} {name} value=0")

    def do_dup(self):
        end = self.an_end(self.rng.choice((Stream, Stream, Stream, Listener, Epoll)))
        if not end:
            return
        p, n, _ = end
        t = self.idle(p)
        kind = self.rng.choice(("dup", "fcntl", "dup2", "dup3"))
        new = self.rng.choice(list(p.closed) or [n]) if kind in ("dup2", "dup3") else self.fresh(p)
        if kind in ("dup2", "dup3") and self.rng.random() < 0.15 and p.handles:
            new = self.rng.choice(list(p.handles))
        if t is not None:
            self.put(f"{p.name}{t} dup {n} {new} kind={kind}{self.flags('CLOEXEC') if kind in ('dup3', 'fcntl') else ''}")

    def do_close(self):
        end = self.an_end(self.rng.choice((Stream,) * 6 + (Listener, Epoll)))
        if not end:
            return
        p, n, f = end
        t = self.idle(p)
        if t is None or (isinstance(f, Stream) and len(f.refs) == 1 and self.rng.random() < 0.5):
            return
        if isinstance(f, Stream):
            self.settle(f)
            if f.rx.unread and self.rng.random() < 0.6:
                self.do_read(f)
            if not f.peer.dead and not f.peer.settled and self.rng.random() < 0.5:
                self.settle(f.peer)
        self.put(f"{p.name}{t} close {n}")
        if isinstance(f, Stream) and f.dead and not f.peer.dead and self.rng.random() < 0.7:
            self.do_aftermath(f.peer)

    def do_aftermath(self, s):
        """What the other end finds."""
        self.settle(s)
        for _ in range(self.rng.randint(1, 4)):
            who = self.end_of(s)
            if who:
                text = self.recv_text(*who, s) if self.rng.random() < 0.7 else self.send_text(*who, self.size(500))
                self.put(text)
                if not s.settled:
                    self.settle(s)

    def do_shutdown(self):
        end = self.an_end()
        if not end or self.rng.random() < 0.4:
            return
        p, n, s = end
        t = self.idle(p)
        if t is not None and self.put(f"{p.name}{t} shutdown {n} how={self.rng.choice(('WR', 'WR', 'WR', 'RD', 'RDWR'))}"):
            if not s.peer.dead and self.rng.random() < 0.6:
                self.do_aftermath(s.peer)

    def do_signal(self):
        rng = self.rng
        p = rng.choice(self.living())
        t = self.idle(p)
        if t is None:
            return
        if not p.restarts or rng.random() < 0.3:
            self.put(f"{p.name}{t} sigaction {rng.choice(SIGNALS)} restart={rng.randrange(2)}")
        others = [u for u in p.threads if u != t]
        if others and p.restarts:
            busy = [u for u in others if p.threads[u]] or others
            self.put(f"{p.name}{t} kill {rng.choice(busy)} {rng.choice(list(p.restarts))}")

    def do_cancel(self):
        for x in self.model.pendings():
            t = self.idle(x.process)
            if t is not None and self.put(f"{x.process.name}{t} cancel {x.thread}"):
                if self.rng.random() < 0.7:
                    self.put(f"{x.process.name}{t} thread {x.thread}")
                return

    def do_fork(self):
        free = [n for n in "BCDEF" if n not in self.model.processes]
        p = self.rng.choice(self.living())
        if not free or p.threads.get(0) or len(self.living()) >= 4:
            return
        if self.put(f"{p.name}0 fork {free[0]}") and self.rng.random() < 0.7:
            # The usual ways: one of the two goes on with a connection.
            q = self.model.processes[free[0]]
            for n in list(q.handles):
                if n in p.handles and self.rng.random() < 0.7:
                    self.put(f"{self.rng.choice((p, q)).name}0 close {n}")

    def do_pass(self):
        end = self.an_end(self.rng.choice((Stream, Stream, Listener)))
        others = [q for q in self.living() if end and q is not end[0]]
        if not others:
            return
        p, n, _ = end
        q = self.rng.choice(others)
        t = self.idle(p)
        if t is not None and self.put(f"{p.name}{t} pass {n} to={q.name} as={self.fresh(q)}{self.flags('CLOEXEC')}") and self.rng.random() < 0.6:
            self.put(f"{p.name}{t} close {n}")

    def do_exec(self):
        p = self.rng.choice(self.living())
        self.put(f"{p.name}0 exec")

    def do_end(self):
        if len(self.living()) < 2 or self.rng.random() < 0.5:
            return
        p = self.rng.choice(self.living())
        mine = [f for q, _, f in self.ends() if q is p]
        for s in mine:
            self.settle(s)
        if self.put(f"{p.name}0 {self.rng.choice(('exit', 'exit raw=1', 'sigkill', 'sigkill'))}"):
            for s in mine:
                if s.dead and not s.peer.dead:
                    self.do_aftermath(s.peer)

    def do_pause(self):
        p = self.rng.choice(self.living())
        self.put(f"{p.name}0 pause ms={self.rng.choice((1, 2, 5, 5, 20, 60, 120, 300))}")

    def do_full(self):
        """No room, and room again."""
        end = self.an_end()
        if not end or self.rng.random() < 0.5:
            return
        p, n, s = end
        t = self.idle(p)
        if t is None or s.peer.dead:
            return
        if self.put(f"{p.name}{t} put {n} full=1 way=poll kind=send len={16 << 20} chunk={self.rng.choice((3000, 65536, 1000000))}"):
            if who := self.end_of(s.peer):
                self.get(who, s.peer, "all")
                self.put(f"{p.name}{t} poll {n}:OUT ms={LONG}")

    def do_bulk(self):
        """Many bytes, between calls that sleep and those that end their sleep."""
        end = self.an_end()
        if not end:
            return
        p, n, s = end
        if s.peer.dead or not (who := self.end_of(s.peer)):
            return
        q = self.model.processes[who[0][0]]
        u = self.sleeper(q)
        t = self.idle(p, other_than=u if p is q else None)
        if u is None or t is None:
            return
        size = self.rng.choice((self.rng.randint(1, 100000), self.rng.randint(100000, 3 << 20)))
        if self.get((f"{q.name}{u}", who[1]), s.peer, size + s.tx.unread, "&"):
            left = size
            while left > 0:
                part = min(left, self.rng.choice((left, left, self.rng.randint(1, left))))
                way = "block" if not s.nonblock else self.rng.choice(moving.WAYS[1:])
                kind = self.rng.choice(("send", "sendmsg") + (("write", "writev", "sendfile", "splice") if not s.nonblock else ()))
                chunk = self.rng.choice((5000, 30000)) if kind == "splice" else self.rng.choice((3000, 65536, 1000000))
                if not self.put(f"{p.name}{t} put {n} kind={kind} len={part} chunk={max(chunk, part // 1000)} way={way}"):
                    break
                left -= part
            self.do_join()

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
}


def draw(seed, with_fault=False, length=None):
    return Draw(seed, with_fault, length).draw()
