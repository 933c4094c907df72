"""Which calls that tell of readiness have one outcome."""

from .state import Epoll, Listener, Registration, Stream, need

LONG = 5000     # ms: for an event that comes, however slow the machine is
SHORT = 50      # at most, for one that does not
READABLE = {"IN", "RDNORM"}
EDGES = {"ET", "ONESHOT", "EXCLUSIVE"}
BITS = {"IN", "OUT", "PRI", "RDHUP", "ET", "ONESHOT", "EXCLUSIVE", "RDNORM", "WRNORM"}


def mask_of(text):
    mask = set(filter(lambda w: w not in ("", "none"), text.split("|")))
    need(mask <= BITS, "no such event")
    return mask


class Ready:
    # --- what is shown ---

    def shown(self, file):
        """What poll shows when nothing is under way. ERR is left out: who has had the error is not noted."""
        if isinstance(file, Listener):
            return READABLE if file.queue else set()
        if isinstance(file, Epoll):
            return READABLE if self.reported(file) else set()
        if not isinstance(file, Stream):
            return {"OUT", "HUP"}
        return shown_of(file, file.avail, file.ended, file.rst == 2)

    def shows(self, reg, file):
        """Of what is shown, that for which a registration asks, and what nobody has to ask for."""
        return self.shown(file) & (reg.mask | {"HUP"})

    def is_quiet(self, file):
        """Nothing is under way that would change what is shown."""
        if isinstance(file, Listener):
            return file.known and not (file.acceptor and file.queue)
        if isinstance(file, Epoll):
            return all(self.is_quiet(f) and self.is_certain(r, f) for (_, f), r in file.regs.items())
        if not isinstance(file, Stream):
            return True
        reader = file.rx.reader
        return (file.settled and not file.rx.held and not file.rx.writer
                and not (reader and reader.consumed() or reader and file.rx.unread)
                and not file.tx.writer and not file.tx.fuzzy and not file.tx.full
                and file.tx.unread <= self.most_nonblocking)

    def is_read(self, file):
        """Somebody sleeps in a call that takes what would be shown."""
        if isinstance(file, Epoll):
            return any(self.is_read(f) for _, f in file.regs)
        return isinstance(file, Stream) and file.rx.reader or isinstance(file, Listener) and file.acceptor

    def streams_behind(self, files):
        """The connections among these files, and in the sets among them."""
        for f in files:
            if isinstance(f, Stream):
                yield f
            elif isinstance(f, Epoll):
                yield from self.streams_behind(g for _, g in f.regs)

    def moved(self, files):
        """Grows with whatever happens to the connections behind them: bytes, ends, a reset."""
        return sum(s.tx.sent + s.rx.sent + sum(map(bool, (s.tx.fin, s.rx.fin, s.rst, s.shut_rd))) for s in self.streams_behind(files))

    def is_stirred(self, x):
        """Something moves, or did behind the beginning of the call, on a connection that it waits for: it may look at what it does not want
        to hear of, be it that the connection takes or leaves its link."""
        is_under_way = any(d.writer or d.unread for s in self.streams_behind(x.files) for d in (s.tx, s.rx))
        return is_under_way or self.moved(x.files) != x.moved

    def sleepers(self):
        """Calls that sleep until something shows something."""
        return (x for x in self.pendings() if x.op.name in ("poll", "epoll_wait"))

    def is_watched(self, file):
        """Somebody sleeps until it shows something."""
        around = [s for s in self.sets() if any(f is file for _, f in s.regs)]
        return any(file in x.files for x in self.sleepers()) or any(map(self.is_watched, around))

    def is_watched_twice(self, file):
        """Somebody sleeps until it shows something, or a set in which it is."""
        def watched(x):
            # Something may have been put into the set since.
            return [f for _, f in x.files[0].regs] if x.op.name == "epoll_wait" else x.files

        return any(sum(self.shows_of(f, file) for f in watched(x)) > 1 for x in self.sleepers())

    def has(self, process, file):
        """Has the process a descriptor of it, where it is a connection, and of all in it, where it is a set?"""
        if isinstance(file, Epoll):
            return all(self.has(process, f) for _, f in file.regs)
        return not isinstance(file, Stream) or any(name == process.name for name, _ in file.refs)

    def shows_of(self, watched, file):
        """It is that one, or a set in which it is."""
        return watched is file or isinstance(watched, Epoll) and any(self.shows_of(f, file) for _, f in watched.regs)

    def leaves(self, file):
        """What is not a set: the file, or what is in it."""
        return [leaf for _, f in file.regs for leaf in self.leaves(f)] if isinstance(file, Epoll) else [file]

    def watchers(self, set_):
        """Calls that sleep until the set, or one in which it is, shows something."""
        return sum(any(self.shows_of(f, set_) for f in x.files) for x in self.sleepers())

    def has_edges(self, set_):
        """Is there an event in it, or in a set in it, that only one is told of?"""
        return any(r.mask & EDGES or isinstance(f, Epoll) and self.has_edges(f) for (_, f), r in set_.regs.items())

    def is_behind_edges(self, set_):
        """Is it registered anywhere so that only one is told of what it shows, or a set in which it is?"""
        return any(f is set_ and (r.mask & EDGES or self.is_behind_edges(s)) for s in self.sets() for (_, f), r in s.regs.items())

    def is_certain(self, reg, file):
        if isinstance(file, Epoll) and self.spare_edges(file):
            return False
        if "ET" in reg.mask and reg.by_reset:
            # The kernel wakes twice for one (`tcp_done`, `sk_error_report`): who comes in between finds the second edge later.
            return False
        if "ONESHOT" in reg.mask and self.is_spare_edge(reg, file) and not reg.listed:
            # Told once too often it is disarmed.
            return False
        if "ONESHOT" in reg.mask and not reg.armed and "HUP" in self.shown(file):
            # The end of what was told of is shown by its set, in vain: docs/limitations.md.
            return False
        if "ET" in reg.mask and reg.listed and reg.by_data and isinstance(file, Stream) and file.avail < max(1, file.lowat):
            # Bytes that are read by now: whether their edge still tells of room is nobody's promise.
            return False
        # The peer's word that it has our end moves the connection to another state, at any time, and an edge is told again.
        return not ("ET" in reg.mask and isinstance(file, Stream) and file.shut_wr)

    def may_show_in_vain(self, file):
        """Is it a set in which a connection is or was, or in a set in it? docs/limitations.md."""
        return isinstance(file, Epoll) and (file.had_stream or any(self.may_show_in_vain(f) for _, f in file.regs))

    def reported(self, set_):
        """The registrations of a set that a wait would report."""
        out = []
        for (number, file), r in set_.regs.items():
            if r.armed and self.shown(file) & (r.mask | {"HUP", "ERR"}) and ("ET" not in r.mask or r.listed):
                out.append(r)
        return out

    def sets(self):
        seen = {}
        for p in self.processes.values():
            if p.alive:
                seen.update((id(h.file), h.file) for h in p.handles.values() if isinstance(h.file, Epoll))
        return list(seen.values())

    def wake(self, file, data=False):
        """Something has happened to a file."""
        if data and isinstance(file, Stream) and file.rx.unread < file.lowat and not file.rx.fuzzy:
            return
        for set_ in self.sets():
            for (_, f), r in set_.regs.items():
                # One that EPOLLONESHOT has disarmed hears of nothing (fs/eventpoll.c, ep_poll_callback).
                if f is file and r.armed and (not data or r.mask & (READABLE | {"PRI"})):
                    r.by_data = data and (r.by_data or not r.listed)
                    if not r.listed:
                        r.listed = True
                        self.wake(set_)

    # --- poll and select ---

    def op_poll(self, op, p):
        kind, ms = op.text("kind", "poll"), op.number("ms")
        need(kind in ("poll", "ppoll", "select", "pselect") and 0 < len(op.words) <= 8, "how?")
        items = []
        for word in op.words:
            handle, _, mask = word.partition(":")
            if int(handle) in p.handles:
                items.append((p.handles[int(handle)], mask_of(mask)))
            else:
                need(p.is_free(p.closed.get(int(handle), -1)) and int(handle) in p.closed and "select" not in kind, "no such descriptor")
                need(not op.begins and ms >= 0, "it does not sleep")
        for h, mask in items:
            need(mask <= {"IN", "OUT", "PRI", "RDHUP", "RDNORM", "WRNORM"}, "no event of poll")
            need("select" not in kind or mask <= {"IN", "OUT", "PRI"}, "no event of select")
        note = {"items": [str(w) for w in op.words]}

        def is_ready(h, mask):
            shown = self.shown(h.file)
            if "select" in kind:
                # HUP and ERR are readable; ERR is writable.
                return bool(shown & mask or "HUP" in shown and mask & {"IN", "OUT"})
            return bool(shown & (mask | {"HUP"}))

        if not op.begins and ms > SHORT and len(items) == len(op.words) and self.will_show(items):
            return note
        for h, _ in items:
            need(self.is_quiet(h.file), "it may show something or not")
            need(not isinstance(h.file, Epoll) or not self.spare_edges(h.file), "a set may show an edge or not")
        need(not any(self.may_show_in_vain(h.file) and not is_ready(h, m) for h, m in items), "a set may show itself in vain")
        ready = len(items) < len(op.words) or any(is_ready(h, m) for h, m in items)
        if not op.begins:
            need(ready or 0 <= ms <= SHORT, "it would sleep")
            return note
        need(not ready and (ms < 0 or ms >= LONG), "it would not sleep for good")
        need(not any(self.is_read(h.file) for h, _ in items), "another may take what it waits for")
        # What one call does to both ends of a connection one of them shows first.
        for h, _ in items:
            need(not isinstance(h.file, Epoll) or not self.has_edges(h.file) or not any(map(self.is_watched, self.leaves(h.file))),
                 "only one of them is told")
        ends = [h.file for h, _ in items if isinstance(h.file, Stream)]
        need(not any(s.peer in ends for s in ends), "one of them comes first")
        files = [h.file for h, _ in items]
        # A connection and a set in which it is, or two such sets, are told of it one after the other.
        need(not any(sum(self.shows_of(f, leaf) for f in files) > 1 for f in files for leaf in self.leaves(f)), "one of them shows it first")
        self.begin(op, p, True, lambda: any(is_ready_soon(self, h.file, m) for h, m in items), lambda: None, files)
        return note

    def will_show(self, items):
        """One poll that waits for what is under way: bytes, or room where there was none."""
        if len(items) != 1:
            return False
        s, mask = items[0][0].file, items[0][1]
        if isinstance(s, Listener) and s.queue and mask == {"IN"} and not s.acceptor:
            s.known = True
            return True
        if not isinstance(s, Stream):
            return False
        if s.rx.fin == 1 or s.rst == 1 or s.rx.reader:
            return False
        if mask == {"OUT"} and s.tx.full and not s.tx.fuzzy and not s.tx.unread and s.settled:
            s.tx.full = False
            return True
        # Where room is asked for, too, it is shown at once, whatever has come.
        if "IN" not in mask or "OUT" in mask and not (self.is_quiet_out(s) and s.settled and not s.rx.writer):
            return False
        return s.rx.unread >= max(s.lowat, 1) and not s.rx.held and not s.rx.fuzzy and (s.lowat == 1 or s.rx.piled <= self.most_settled)

    def is_quiet_out(self, s):
        return not s.tx.writer and not s.tx.fuzzy and not s.tx.full and s.tx.unread <= self.most_nonblocking

    # --- epoll ---

    def op_epoll_create(self, op, p):
        self.new_handle(p, op.handle(), Epoll(), "CLOEXEC" in op.flags())

    def op_epoll_ctl(self, op, p):
        set_, what, mask = self.handle(op).file, op.words[1], mask_of(op.text("mask", "none"))
        need(isinstance(set_, Epoll) and what in ("add", "mod", "del"), "not a set")
        h = p.handles.get(op.handle(2))
        if not h:
            need(p.is_free(p.closed.get(op.handle(2), -1)) and op.handle(2) in p.closed, "no such descriptor")
            return {"cookie": 0}
        file = h.file
        need(not isinstance(file, Epoll) or not self.contains(file, set_, 0), "a set in itself")
        if isinstance(file, Epoll):
            need(self.depth(file) < 3 and self.height(set_) + self.depth(file) < 4, "too deep")
            # A set that comes to have something to tell wakes those alone who asked for IN.
            need("RDNORM" not in mask or "IN" in mask or what == "del", "it may not be told")
        # Whether it is ready at this moment decides what the next wait tells.
        need(what == "del" or self.is_quiet(file), "it may be ready or not")
        need(what == "del" or not isinstance(file, Epoll) or not self.spare_edges(file), "it may be ready or not")
        need(not any(set_ in x.files for x in self.pendings()) or what != "mod", "somebody waits")
        need(what == "del" or not (mask & EDGES or self.is_behind_edges(set_)) or self.watchers(set_) < 2, "only one of those who wait is told")
        need(what == "del" or not isinstance(file, Epoll) or not self.has_edges(file) or not (self.is_watched(file) and self.is_watched(set_)),
             "only one of those who wait is told")
        need(what == "del" or not self.is_read(file) or not self.is_watched(set_), "another may take what is waited for")
        # As for a poll that begins.
        need(what == "del" or not any(self.shows_of(f, leaf) for x in self.sleepers() if x.op.name == "poll" and any(self.shows_of(f, set_) for f in x.files)
                                      for f in x.files for leaf in self.leaves(file)), "one of them shows it first")
        self.cookies += 1
        key = (h.number, file)
        reg = set_.regs.get(key)
        note = {"cookie": self.cookies}
        if "EXCLUSIVE" in mask and what != "del":
            # Refused with others, and for a MOD; then nothing changes.
            need(not isinstance(file, Epoll), "refused")
            if mask & {"ONESHOT", "RDHUP", "PRI", "RDNORM", "WRNORM"} or what == "mod":
                return note
        if what == "del":
            if reg:
                del set_.regs[key]
        elif what == "add" and not reg:
            r = set_.regs[key] = Registration(mask, self.cookies)
            set_.had_stream |= isinstance(file, Stream)
            self.rearm(set_, file, r)
        elif what == "mod" and reg and "EXCLUSIVE" not in reg.mask:
            reg.mask, reg.cookie, reg.armed = mask, self.cookies, True
            self.rearm(set_, file, reg)
        return note

    def rearm(self, set_, file, r):
        r.listed = r.listed or bool(self.shows(r, file))
        r.by_data = r.by_reset = False
        if r.listed:
            self.wake(set_)

    def contains(self, set_, other, depth):
        need(depth < 6, "too deep")
        return set_ is other or any(isinstance(f, Epoll) and self.contains(f, other, depth + 1) for _, f in set_.regs)

    def depth(self, set_):
        return 1 + max((self.depth(f) for _, f in set_.regs if isinstance(f, Epoll)), default=0)

    def height(self, set_):
        return 1 + max((self.height(s) for s in self.sets() if any(f is set_ for _, f in s.regs)), default=0)

    def op_epoll_wait(self, op, p):
        set_, ms = self.handle(op).file, op.number("ms")
        most, times = op.number("most", 16), op.number("times", 1)
        need(isinstance(set_, Epoll) and op.text("kind", "epoll_wait") in ("epoll_wait", "epoll_pwait", "epoll_pwait2"), "how?")
        need(0 < most and most * times <= 64, "how many?")
        need(self.is_quiet(set_), "it may show something or not")
        need(all(self.has(p, f) for _, f in set_.regs), "it hears of it when its owner uses the set: docs/limitations.md")
        need(not any(set_ in x.files for x in self.pendings()) or op.begins is False, "two wait")
        reported = self.reported(set_)
        # One that asks for nothing that a set shows is told of none.
        silent = [f for (_, f), r in set_.regs.items() if r.mask & READABLE and r not in reported]
        need(not any(map(self.may_show_in_vain, silent)), "a set may show itself in vain")
        # Of more than it may tell nobody knows which.
        need(most * times >= len(reported) + 1 or most == 1 and times >= len(reported), "which?")
        need(most >= len(reported) or not any(self.tells_in_parts(r, f) for (_, f), r in set_.regs.items() if r in reported), "in how many parts?")
        # Each has its turn, if not in the same call: docs/limitations.md.
        note = {"times": max(times, len(reported)), "spare": self.spare_edges(set_)}
        # Level-triggered ones are told again.
        need(times == 1 or most == 1 and times <= max(1, len(reported)), "how often?")
        if op.begins:
            need(not reported and (ms < 0 or ms >= LONG) and times == 1 and set_.regs, "it would not sleep for good")
            need(not self.is_read(set_), "another may take what it waits for")
            need(not self.has_edges(set_) or not any(map(self.is_watched, self.leaves(set_))), "only one of them is told")
            old = [self.shows(r, f) for (_, f), r in set_.regs.items() if self.is_spare_edge(r, f)]
            need(all(bits <= {"OUT", "WRNORM"} for bits in old), "an edge may be told again")
            # One that tells of more than one thing would tell of them one by one.
            def soon():
                # An edge of room alone is waited over.
                return [r for r in self.soon(set_) if r.cookie not in note["spare"] or self.shows_more(set_, r)]

            def finish():
                reported = soon()
                for (_, f), r in set_.regs.items():
                    r.by_reset |= r in reported and any(isinstance(leaf, Stream) and leaf.rst for leaf in self.leaves(f))
                self.told(set_, reported)

            x = self.begin(op, p, True, soon, finish, [set_])
            x.files += [f for _, f in set_.regs]
            return note
        need(reported or 0 <= ms <= SHORT, "it would sleep")
        need(not any(set_ in x.files for x in self.pendings()) or not any("ET" in r.mask for r in reported), "who waits may be told of it")
        self.told(set_, reported)
        return note

    def spare_edges(self, set_):
        """The registrations of which an edge may be told that was told before: docs/limitations.md."""
        reported = self.reported(set_)
        return {r.cookie for (_, f), r in set_.regs.items() if self.is_spare_edge(r, f) and r not in reported}

    def is_spare_edge(self, reg, file):
        return "ET" in reg.mask and reg.armed and isinstance(file, (Stream, Epoll)) and bool(self.shows(reg, file))

    def tells_in_parts(self, reg, file):
        """May its edges of room and of something else be told one after the other, where an answer has too few places?
        docs/limitations.md."""
        wanted = reg.mask & (self.shown(file) | {"HUP"})
        return "ET" in reg.mask and isinstance(file, Stream) and bool(wanted & {"OUT", "WRNORM"} and wanted - {"OUT", "WRNORM"})

    def soon(self, set_):
        out = []
        for (_, file), r in set_.regs.items():
            if isinstance(file, Epoll):
                ready = r.mask & READABLE and bool(self.soon(file))
            else:
                ready = is_ready_soon(self, file, r.mask)
            if r.armed and ready and ("ET" not in r.mask or r.listed):
                out.append(r)
        return out

    def shows_more(self, set_, reg):
        """Does a registration show anything but room?"""
        file = next(f for (_, f), r in set_.regs.items() if r is reg)
        return not isinstance(file, Stream) or bool(shown_soon(file) & (reg.mask | {"HUP"}) - {"OUT", "WRNORM"})

    def told(self, set_, reported):
        for r in set_.regs.values():
            if "ET" in r.mask or r not in reported:
                r.listed = False
        for r in reported:
            if "ONESHOT" in r.mask:
                r.armed = False

    # --- what has come, and numbers ---

    def op_settle(self, op, p):
        """Waits until all that the other end did is seen here: what it did before is certain then."""
        s = self.stream(op)
        rx = s.rx
        need(not rx.reader and not rx.writer and not rx.held, "it may not come")
        need(rx.piled <= self.most_settled and not rx.fuzzy, "there may be no room for all of it")
        # An end that another processor has sent may be behind what comes of this side's next bytes.
        need(rx.fin != 1 or not s.shut_rd, "its own shutdown shows what the end would")
        # One that has shut its writing half is hung up by an end, too; that a reset was seen once is sure.
        end = "err" if s.rst == 1 and s.shut_wr else "rst" if s.rst else "fin" if rx.fin else "none"
        note = {"rx": rx, "end": end, "fuzzy_out": not self.is_quiet_out(s)}
        rx.arrived = rx.sent
        rx.fin = 2 if rx.fin else 0
        s.rst = 2 if s.rst else 0
        return note

    def op_ioctl(self, op, p):
        s, what = self.stream(op), op.text("what", "FIONREAD")
        if what == "OUTQ":
            # Until all is acknowledged: bytes that were read are.
            need(not s.tx.unread and not s.tx.writer and not s.tx.fuzzy and s.rst == 0 and s.tx.fin == 0 and not s.peer.dead, "when?")
            return {}
        need(what == "FIONREAD" and s.settled and not s.rx.reader and not s.rx.writer, "bytes may have come or not")
        return {}


def is_ready_soon(model, file, mask):
    """Has something happened that makes it show `mask`?"""
    if isinstance(file, Listener):
        return bool(file.queue and mask & READABLE)
    if isinstance(file, Epoll):
        return bool(mask & READABLE and model.soon(file))
    return not isinstance(file, Stream) or bool(shown_soon(file) & (mask | {"HUP"}))


def shown_soon(stream):
    """What it shows when all has come that was sent."""
    return shown_of(stream, stream.rx.unread, stream.rx.fin or stream.rst or stream.shut_rd, stream.rst)


def shown_of(stream, unread, ended, reset):
    """What poll shows of a connection with so many bytes to read, at its end or not, reset or not."""
    shown = {"OUT", "WRNORM"}
    if unread >= max(1, stream.lowat) or ended:
        shown |= READABLE
    if ended:
        shown |= {"RDHUP"}
    if reset or (stream.shut_wr and ended):
        shown |= {"HUP"}
    return shown
