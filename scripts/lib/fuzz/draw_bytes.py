"""Proposes calls that move bytes, and calls that sleep with what ends their sleep."""

from . import bytes as moving
from .ready import LONG
from .state import Epoll, Listener, Stream


class DrawBytes:
    def wait(self):
        return self.rng.choice(("asleep", "asleep", "none", "none", "0.05", "0.3"))

    def kind(self, *kinds):
        """One of these, by which bytes are moved."""
        return self.rng.choice([k for k in kinds if self.pins or k != "splice"])

    def send_text(self, who, n, size):
        rng = self.rng
        kind = self.kind(*moving.SENDS, "send", "write")
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
        for _ in range(3):
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
            if not begins and self.pins and rng.random() < 0.05:
                text += "|OOB" if "flags=" in text else " flags=OOB"
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
        kind = self.kind("recv", "read", "readv", "recvmsg", "recvfrom", "splice")
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
            kind = self.kind("send", "sendmsg", "sendto", *(("write", "writev", "sendfile", "splice") if not s.nonblock else ()))
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
                kind = self.kind("send", "sendmsg", *(("write", "writev", "sendfile", "splice") if not s.nonblock else ()))
                chunk = self.rng.choice((5000, 30000)) if kind == "splice" else self.rng.choice((3000, 65536, 1000000))
                if not self.put(f"{p.name}{t} put {n} kind={kind} len={part} chunk={max(chunk, part // 1000)} way={way}"):
                    break
                left -= part
            self.do_join()

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

    def do_urgent(self):
        end = self.an_end()
        who = end and not end[2].peer.dead and self.end_of(end[2].peer)
        if not who:
            return
        p, n, s = end
        for f in (s, s.peer):
            self.settle(f)
            if f.rx.unread and (reader := self.end_of(f)):
                self.get(reader, f, "all")
        t = self.idle(p, other_than=int(who[0][1:]) if who[0][0] == p.name else None)
        if t is not None:
            self.put(f"{p.name}{t} urgent {n} with={who[0]}:{who[1]} len={self.rng.choice((1, 2, self.size(4096)))}")
