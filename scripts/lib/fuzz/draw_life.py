"""Proposes calls that make, share and end descriptors, threads and processes."""

from .life import ASKED, SIGNALS
from .ready import LONG
from .state import Epoll, Listener, Stream

MOST_STREAMS = 8


class DrawLife:
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
        if rng.random() < 0.85:
            self.warm(p.name, far, q.name, near)

    def warm(self, p, far, q, near):
        t = self.idle(self.model.processes[p])
        u = self.idle(self.model.processes[q], other_than=t if p == q else None)
        if t is not None and u is not None:
            rounds = self.rng.choice((2, 4, 20, 40, 80))
            self.put(f"{p}{t} warm {far} with={q}{u}:{near} rounds={rounds} len={self.rng.choice((1, 60, 500, 3000))}")

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

    def do_refused(self):
        """A connect to where nobody listens, of a socket that goes on, or not."""
        p = self.rng.choice(self.living())
        t, n = self.idle(p), self.fresh(p)
        if t is not None and self.put(f"{p.name}{t} socket {n}{self.flags('NONBLOCK', 'CLOEXEC', chance=0.3)}"):
            self.put(f"{p.name}{t} connect {n} to=nobody")
            self.put(f"{p.name}{t} getopt {n} ERROR")
            self.put(f"{p.name}{t} close {n}")

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
