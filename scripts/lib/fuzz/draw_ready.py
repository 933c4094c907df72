"""Proposes calls that tell of readiness."""

from .ready import LONG
from .state import Epoll, Listener, Stream


class DrawReady:
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

    def epoll_kind(self):
        return self.rng.choice(("epoll_wait", "epoll_wait", "epoll_pwait", "epoll_pwait2"))

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
