"""Which calls that make, share and end descriptors, threads and processes have one outcome."""

from .state import Direction, Epoll, Fresh, Handle, Listener, Stream, need

HANDLES, THREADS = 64, 3
SIGNALS = ("USR1", "USR2")
# option: (level, number, kind of value). Numbers are those of Linux on x86-64.
OPTIONS = {
    "NODELAY": (6, 1, "int"), "CORK": (6, 3, "int"), "KEEPALIVE": (1, 9, "int"), "RCVLOWAT": (1, 18, "int"),
    "RCVTIMEO": (1, 20, "ms"), "SNDTIMEO": (1, 21, "ms"), "LINGER": (1, 13, "linger"), "OOBINLINE": (1, 10, "int"),
    "QUICKACK": (6, 12, "int"),
}
ASKED = {
    "ERROR": (1, 4), "TYPE": (1, 3), "DOMAIN": (1, 39), "PROTOCOL": (1, 38), "ACCEPTCONN": (1, 30), "NODELAY": (6, 1),
    "CORK": (6, 3), "KEEPALIVE": (1, 9), "RCVLOWAT": (1, 18), "RCVTIMEO": (1, 20), "SNDTIMEO": (1, 21), "LINGER": (1, 13),
}


class Life:
    # --- connections ---

    def new_handle(self, p, n, file, cloexec=False, number=None):
        need(0 <= n < HANDLES and n not in p.handles and n not in p.promised(), "this handle is taken")
        p.handles[n] = Handle(file, p.next_number() if number is None else number, cloexec)
        # From here on numbers of closed ones may be others'.
        p.closed.pop(n, None)
        file.refs.add((p.name, n))

    def op_listen(self, op, p):
        self.new_handle(p, op.handle(), Listener(), "CLOEXEC" in op.flags())
        p.handles[op.handle()].file.nonblock = "NONBLOCK" in op.flags()
        return {"file": p.handles[op.handle()].file}

    def op_socket(self, op, p):
        self.new_handle(p, op.handle(), Fresh(), "CLOEXEC" in op.flags())
        p.handles[op.handle()].file.nonblock = "NONBLOCK" in op.flags()

    def op_connect(self, op, p):
        """`to=A:1`, a listener."""
        h = self.handle(op)
        need(isinstance(h.file, Fresh) and len(h.file.refs) == 1 and not any(h.file is f for s in self.sets() for _, f in s.regs),
             "connected already")
        if op.text("to") == "nobody":
            return {"listener": None}
        name, _, handle = op.text("to").partition(":")
        q = self.processes.get(name)
        need(q and int(handle) in q.handles, "nobody listens")
        listener = q.handles[int(handle)].file
        need(isinstance(listener, Listener) and listener.known and len(listener.queue) < 3, "nobody listens")
        a, b = Direction(self.conns, 0), Direction(self.conns, 1)
        near, far = Stream(self.conns, 0, a, b), Stream(self.conns, 1, b, a)
        near.peer, far.peer, far.queued = far, near, True
        near.nonblock, near.refs = h.file.nonblock, h.file.refs
        h.file = near
        self.conns += 1
        listener.queue.append(far)
        # The other end has not heard of it yet, perhaps.
        listener.known = listener.acceptor is not None
        self.wake(listener, data=True)
        return {"listener": listener, "conn": near.conn}

    def op_accept(self, op, p):
        listener, new = self.handle(op).file, op.handle(1)
        need(isinstance(listener, Listener) and op.text("kind", "accept") in ("accept", "accept4", "nameless"), "not a listener")
        need(not op.flags() or op.text("kind") == "accept4", "takes no flags")
        need(0 <= new < HANDLES and new not in p.handles and new not in p.promised(), "this handle is taken")
        need(not listener.acceptor, "another accepts")
        flags = op.flags()

        def take(number):
            listener.acceptor, listener.known = None, True
            s = listener.queue.pop(0)
            s.queued, s.nonblock = False, "NONBLOCK" in flags
            self.new_handle(p, new, s, "CLOEXEC" in flags, number)
            return {"conn": s.conn}

        if op.begins:
            need(not listener.queue and not listener.nonblock, "it would not sleep")
            need(not self.is_watched(listener), "somebody waits for what it would take")
            number = p.next_number()
            x = listener.acceptor = self.begin(op, p, True, lambda: listener.queue, lambda: take(x.number), [listener])
            # The kernel takes it before it sleeps.
            x.number, x.takes_number = number, op.text("wait", "asleep") != "asleep"
            x.restartable = True
            return {}
        if not listener.queue:
            need(listener.nonblock and listener.known, "it would sleep")
            return {"conn": None}
        need(listener.known or not listener.nonblock, "it may have come or not")
        return take(p.next_number())

    def op_shutdown(self, op, p):
        s, how = self.stream(op), op.text("how")
        need(how in ("RD", "WR", "RDWR") and s.rst != 1, "how?")
        if s.rst == 2:
            self.wake(s)
            return {"how": how}
        read, write = "RD" in how, "WR" in how and not s.shut_wr
        if write:
            need(not s.tx.fuzzy and not (s.tx.writer is None and s.tx.full), "room may come or not")
            need(not (s.tx.reader and s.tx.reader.strict and s.tx.unread), "a read may return a part")
            need(not s.tx.writer or not s.tx.writer.is_fired(), "it may be through or not")
            self.check_seen(s)
        if read:
            need(s.settled or s.rx.reader, "bytes may have come or not")
            need(not s.rx.writer and not (s.rx.reader and s.rx.reader.consumed()), "bytes may have come or not")
        if s.shut_wr and s.rx.fin:
            need(s.rx.fin == 2 and s.tx.piled <= self.most_settled, "both ends may be through, which makes it an error, or not")
        if (read or s.shut_rd) and (write or s.shut_wr):
            need(not s.rx.writer and s.settled, "a reset may overtake bytes")
        need(not self.is_watched_twice(s) and not self.is_watched_twice(s.peer), "one of them shows it first")
        if write:
            s.tx.break_writer()
            s.shut_wr, s.tx.fin, s.tx.held = True, 1, False
            self.wake(s.peer)
        if read and s.rx.reader:
            s.rx.reader.strict = True
        s.shut_rd = s.shut_rd or read
        self.wake(s)
        return {"how": how}

    # --- descriptors ---

    def op_close(self, op, p):
        n = op.handle()
        if n not in p.handles:
            need(n in p.closed and p.is_free(p.closed[n]), "never open, or another's number by now")
            return
        # What a call that sleeps does when its socket is closed is another than with TCP: docs/limitations.md.
        need(not any(p.handles[n].file in x.files for x in p.threads.values() if x), "a call sleeps on it")
        h = p.handles[n]
        p.check_numbers()
        self.check_end({h.file: {(p.name, n)}})
        self.drop(p, n)

    def drop(self, p, n):
        h = p.handles.pop(n)
        p.closed[n] = h.number
        h.file.refs.discard((p.name, n))
        if not h.file.refs:
            self.end(h.file)

    def check_end(self, gone):
        """Are the outcomes sure, for everybody else, when these references {file: refs} go?"""
        for file, refs in gone.items():
            if file.refs - refs:
                # Where this process has none of them left its registrations are forgotten: docs/limitations.md.
                here = {name for name, _ in refs} - {name for name, _ in file.refs - refs}
                need(not here and not file.passed or not any(f is file for s in self.sets() for _, f in s.regs), "another process has it, too")
                continue
            if isinstance(file, Listener):
                need(not file.acceptor, "somebody accepts")
                for s in file.queue:
                    self.check_reset(s)
            if not isinstance(file, Stream) or file.rst == 2:
                continue
            need(file.rst != 1 and (file.settled or file.rx.writer), "bytes may have come or not")
            need(not file.tx.writer and not file.tx.fuzzy and not file.tx.full, "how much was sent?")
            need(not file.rx.reader, "somebody reads")
            need(not self.is_watched_twice(file.peer), "one of them shows it first")
            # What a call that sleeps has sent comes before the end or behind it, which makes it a reset.
            need(not file.rx.writer or not file.tx.reader and not self.is_watched(file.peer), "an end or a reset?")
            if file.linger0 or file.rx.unread:
                need(not (file.tx.fin and file.rx.fin), "a reset, or is all over?")
                self.check_reset(file)
            elif not file.peer.dead:
                self.check_seen(file)

    def check_seen(self, s):
        """An end comes behind what was sent, for which there may be no room."""
        need(not self.is_watched(s.peer) or s.tx.piled <= self.most_settled, "whoever waits for the end may not see it")

    def check_reset(self, s):
        """Whether a reset overtakes bytes is nobody's promise."""
        if s.rst or s.peer.dead:
            return
        reader = s.tx.reader
        need(not reader or not s.peer.shut_wr, "has it seen the reset?")
        need(not s.tx.unread if reader else s.tx.arrived == s.tx.sent and s.tx.fin != 1, "a reset may overtake bytes")
        need(s.peer.rst == 0, "reset twice")

    def end(self, file):
        """The last descriptor is gone."""
        for set_ in self.sets():
            for key in [k for k in set_.regs if k[1] is file]:
                del set_.regs[key]
        if isinstance(file, Epoll):
            file.regs.clear()
        if isinstance(file, Listener):
            for s in file.queue:
                self.end_stream(s, True)
        if isinstance(file, Stream):
            self.end_stream(file, file.linger0 or file.rx.unread > 0)

    def end_stream(self, s, reset):
        s.dead = True
        if s.rst:
            return
        s.tx.held = False
        if reset:
            if not s.peer.dead:
                s.peer.rst = 1
                s.peer.tx.break_writer()
        elif s.tx.fin:
            # Behind its own FIN a socket is closed without another word.
            return
        else:
            s.tx.fin = 1
        if not s.peer.dead:
            self.wake(s.peer)

    def op_dup(self, op, p):
        """`dup OLD NEW kind=`: dup2 and dup3 go to NEW's number, closed by now or not."""
        h, new, kind = self.handle(op), op.handle(1), op.text("kind", "dup")
        cloexec = "CLOEXEC" in op.flags()
        need(kind in ("dup", "dup2", "dup3", "fcntl") and (not cloexec or kind in ("dup3", "fcntl")), "how?")
        if kind in ("dup", "fcntl"):
            self.new_handle(p, new, h.file, cloexec)
            return
        if op.handle() == new:
            return          # dup3 refuses, dup2 does nothing
        if new in p.handles:
            need(not any(p.handles[new].file in x.files for x in p.threads.values() if x), "a call sleeps on it")
            number = p.handles[new].number
            if h.file is not p.handles[new].file:
                self.check_end({p.handles[new].file: {(p.name, new)}})
            h.file.refs.add((p.name, new))
            self.drop_for(p, new, h.file)
        else:
            number = p.closed.get(new, -1)
            need(number >= 0 and p.is_free(number), "another's number by now")
            p.check_numbers()
        p.handles[new] = Handle(h.file, number, cloexec)
        p.closed.pop(new, None)
        h.file.refs.add((p.name, new))

    def drop_for(self, p, n, file):
        """Makes way for another file."""
        if p.handles[n].file is file:
            p.handles.pop(n)
        else:
            self.drop(p, n)

    def op_fcntl(self, op, p):
        h, what, on = self.handle(op), op.text("what"), op.number("on")
        need(what in ("getfl", "getfd", "nonblock", "fionbio", "cloexec"), "what?")
        if what in ("nonblock", "fionbio"):
            need(not any(h.file in x.files for x in self.pendings()), "a call sleeps on it")
            h.file.nonblock = bool(on)
        if what == "cloexec":
            h.cloexec = bool(on)

    # --- options ---

    def op_setopt(self, op, p):
        s, name, value = self.stream(op), op.words[1], op.number("value")
        need(name in OPTIONS and s.rst != 1, "which?")
        need(not s.rx.reader and not s.tx.writer, "a call sleeps on it")
        if name == "CORK":
            s.cork = bool(value)
            s.tx.held = s.tx.held and s.cork
        elif name == "NODELAY":
            s.nodelay = bool(value)
        elif name == "RCVLOWAT":
            need(1 <= value <= 4096 and s.settled, "how low?")
            s.lowat = value
            self.wake(s, data=True)
        elif name in ("RCVTIMEO", "SNDTIMEO"):
            need(0 <= value <= 100, "how long?")
            setattr(s, name.lower(), value)
        elif name == "LINGER":
            need(value in (-1, 0), "to wait for the end takes its time")
            s.linger0 = value == 0

    def op_getopt(self, op, p):
        file, name = self.handle(op).file, op.words[1]
        need(name in ASKED and isinstance(file, (Stream, Listener, Fresh)), "which?")
        need(name != "ERROR" or not isinstance(file, Stream) or file.rst != 1, "it may have come or not")

    def op_names(self, op, p):
        file = self.handle(op).file
        need(isinstance(file, Listener) or isinstance(file, Stream) and file.rst != 1, "who?")
        # In a few states of TCP's the peer has no name any more, and when they are left nobody knows.
        need(not isinstance(file, Stream) or file.rst or not (file.shut_wr and file.rx.fin), "it may be over")
        return {"conn": file.conn if isinstance(file, Stream) else None}

    # --- threads and signals ---

    def op_thread(self, op, p):
        n = int(op.words[0])
        need(0 < n < THREADS and n not in p.threads, "there is one")
        p.threads[n] = None

    def op_cancel(self, op, p):
        n = int(op.words[0])
        x = p.threads.get(n)
        need(0 < n != op.thread and x and not x.is_fired() and not x.consumed(), "it does not sleep")
        # Peeks that have something go on when cancelled, loops hold things: docs/limitations.md.
        need(x.op.name in ("recv", "poll", "epoll_wait", "accept") and not x.peeks_on, "it cannot be cancelled")
        need(x.op.name != "epoll_wait" or not self.is_stirred(x), "it may have taken an edge, or not")
        if x.number is not None:
            p.check_numbers(but=x)
        for f in x.files:
            if isinstance(f, Listener) and f.acceptor is x:
                f.acceptor = None
            if isinstance(f, Stream) and f.rx.reader is x:
                f.rx.reader = None
        del p.threads[n]

    def op_sigaction(self, op, p):
        need(op.words[0] in SIGNALS, "which?")
        p.restarts[op.words[0]] = bool(op.number("restart"))

    def op_kill(self, op, p):
        """A signal to a thread of this process, and until its handler has run."""
        n, sig = int(op.words[0]), op.words[1]
        need(n in p.threads and n != op.thread and sig in p.restarts, "whom?")
        x = p.threads[n]
        if not x or x.op.name in ("put", "get"):
            return {"asleep": False}
        need(not x.is_fired() and not x.consumed(), "it may be through or not")
        need(not self.is_stirred(x), "the wait may be awake at any moment: docs/limitations.md")
        if x.number is not None:
            p.check_numbers(but=x)
        x.broken = not (x.restartable and p.restarts[sig])
        if x.number is not None:
            # The kernel gives it back, and takes the lowest when the call begins anew.
            x.number, x.takes_number = None, False
            x.number = None if x.broken else p.lowest()
        if x.broken:
            done = x.finish

            def interrupted():
                # It has moved nothing; what it stood for is free.
                for f in x.files:
                    if isinstance(f, Listener) and f.acceptor is x:
                        f.acceptor = None
                    if isinstance(f, Stream) and f.rx.reader is x:
                        f.rx.reader = None
                return {"interrupted": done is not None}

            x.finish = interrupted
        return {"asleep": True, "ends": x.broken}

    # --- processes ---

    def op_fork(self, op, p):
        name = op.words[0]
        need(name in "ABCDEF" and len(name) == 1 and op.thread == 0, "how?")
        # A copy of what was unread stays with the process that has it: docs/limitations.md.
        need(not any(isinstance(h.file, Stream) and h.file.is_copy_left for h in p.handles.values()), "who reads it?")
        q = self.new_process(name)
        for n, h in p.handles.items():
            q.handles[n] = Handle(h.file, h.number, h.cloexec)
            h.file.refs.add((name, n))
        q.closed, q.restarts = dict(p.closed), dict(p.restarts)
        return {"child": q}

    def op_exec(self, op, p):
        need(op.thread == 0 and not any(p.threads.values()), "a call sleeps")
        kept = [h.file for h in p.handles.values() if not h.cloexec]
        # Nothing tells that the new program will use what the old one's parent keeps: docs/limitations.md.
        for f in kept:
            for s in [f, *(g for _, g in getattr(f, "regs", ()))]:
                need(not isinstance(s, (Stream, Epoll)) or all(r[0] == p.name for r in s.refs), "another process has it, too")
        need(kept, "nothing to go on with")
        need(not any(isinstance(f, Stream) and f.is_copy_left for f in kept), "who reads it?")
        told = (isinstance(s, Stream) and not r.armed for f in kept if isinstance(f, Epoll) for (_, s), r in f.regs.items())
        need(not any(told), "what an EPOLLONESHOT has told may be told once more: docs/limitations.md")
        gone = [n for n, h in p.handles.items() if h.cloexec]
        self.check_gone(p, gone)
        for n in gone:
            self.drop(p, n)
        p.threads, p.restarts = {0: None}, {}

    def check_gone(self, p, handles):
        refs = {}
        for n in handles:
            refs.setdefault(p.handles[n].file, set()).add((p.name, n))
        # Two ends of one connection that go together reset each other, or not.
        ends = [f for f, r in refs.items() if isinstance(f, Stream) and not f.refs - r]
        need(not any(f.peer in ends and (f.rx.unread or f.linger0) for f in ends), "in which order?")
        need(not any(isinstance(f, Listener) and f.queue for f in refs), "in which order?")
        # They go one after the other: who waits for several may be told of the first alone.
        told = (sum(any(self.shows_of(w, f.peer) for w in x.files) for f in ends) for x in self.sleepers())
        need(all(n < 2 for n in told), "which of them is told?")
        self.check_end(refs)

    def op_pass(self, op, p):
        """`pass H to=B as=K`: by SCM_RIGHTS."""
        h, q, new = self.handle(op), self.processes.get(op.text("to")), op.number("as")
        need(q and q.alive and q.threads[0] is None and q is not p, "to whom?")
        need(not isinstance(h.file, Epoll), "not for sets")
        if isinstance(h.file, Stream):
            need(not h.file.is_copy_left, "who reads it?")
            need(not h.file.tx.writer and not h.file.tx.full, "it may wait until that is read: docs/limitations.md")
        need(0 <= new < HANDLES and new not in q.handles, "this handle is taken")
        self.new_handle(q, new, h.file, "CLOEXEC" in op.flags())
        h.file.passed = True
        return {"q": q, "new": new}

    def op_exit(self, op, p):
        need(not any(p.threads.values()) and op.thread == 0, "a call sleeps")
        self.gone(p)

    def op_sigkill(self, op, p):
        need(op.thread == 0, "how?")
        ends = [h.file for h in p.handles.values() if isinstance(h.file, Stream)]
        self.gone(p)
        for f in ends:
            f.tx.orphaned = f.tx.sent

    def gone(self, p):
        for x in p.threads.values():
            for f in x.files if x else ():
                need(not isinstance(f, Stream) or not x.consumed() and x.op.name == "recv", "how much has it moved?")
        pending = [(f, f.rx.reader) for x in p.threads.values() if x for f in x.files if isinstance(f, Stream) and f.rx.reader is x]
        accepting = [f for x in p.threads.values() if x for f in x.files if isinstance(f, Listener)]
        for f, _ in pending:
            f.rx.reader = None
        for f in accepting:
            f.acceptor = None
        try:
            self.check_gone(p, list(p.handles))
        except Exception:
            for f, x in pending:
                f.rx.reader = x
            for f in accepting:
                f.acceptor = f.acceptor or next(x for x in p.threads.values() if x and f in x.files)
            raise
        for n in list(p.handles):
            self.drop(p, n)
        p.alive = False
        p.threads = {0: None}

    def op_pause(self, op, p):
        need(0 < op.number("ms") <= 1000, "how long?")
