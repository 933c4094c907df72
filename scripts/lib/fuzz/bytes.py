"""Which calls that move bytes have one outcome."""

from .state import need

SENDS = ("write", "send", "sendto", "sendmsg", "writev", "pwritev2", "sendmmsg", "sendfile", "sendfile0", "splice")
RECVS = ("read", "recv", "readv", "preadv2", "recvfrom", "recvmsg", "recvmmsg")
# Those to which flags can be given.
FLAGGED = ("send", "sendto", "sendmsg", "sendmmsg", "recv", "recvfrom", "recvmsg", "recvmmsg")
WAYS = ("block", "poll", "select", "level", "edge", "oneshot")
LONGEST = 2 << 20       # of one call
SENDFILE_PART = 32768   # of a file the kernel sends as much at once, at least
LONGEST_LOOP = 16 << 20


class Bytes:
    # --- writing ---

    def op_send(self, op, p):
        s, size, kind, flags = self.stream(op), op.number("len"), op.text("kind", "send"), op.flags()
        tx = s.tx
        need(kind in SENDS and 0 <= size <= LONGEST, "how?")
        need(not flags or kind in FLAGGED, "takes no flags")
        need(flags <= {"DONTWAIT", "MORE", "NOSIGNAL"}, "no flag of this call")
        need(kind != "splice" or size <= 32768, "more than the pipe takes")
        need(s.rst != 1, "an error may have come or not")
        need(not tx.writer and not tx.fuzzy, "another writes")
        note = {"tx": tx, "len": size}
        if s.rst == 2 or s.shut_wr or not size:
            return note
        need(not s.peer.shut_both or self.is_still(tx), "a reset may overtake bytes")
        need(not s.peer.shut_both or s.rx.piled <= self.most_settled, "whether the end has come decides which error it is")
        need(not s.rx.reader or not s.peer.dead and not s.peer.shut_both, "it may see the end or a reset")
        waits = not (s.nonblock or "DONTWAIT" in flags)
        need(tx.unread + size <= (self.most_blocking if waits else self.most_nonblocking), "there may be no room")
        self.check_room_watched(s, size)
        held = s.cork or "MORE" in flags
        gone = s.peer.dead or s.peer.shut_both
        need(kind != "sendmmsg" or not gone or op.number("pieces", 1) == 1, "one of its messages may take the error that another has met")
        in_parts = kind in ("sendfile", "sendfile0") and size > SENDFILE_PART
        need(not gone or not in_parts or s.rx.piled <= self.most_settled, "whether the end has come decides whether its second part raises SIGPIPE")
        need(not gone or not in_parts or not self.is_watched(s), "its second part may take the error that who sleeps would show")
        note["lost"] = s.peer.shut_both
        if tx.reader and tx.reader.strict:
            whole = kind not in ("splice", "sendmmsg") and not held and not tx.held
            in_one = op.number("pieces", 1) == 1 or not self.is_direct
            need(whole and in_one and size <= self.most_whole, "a read may return a part")
        self.send_bytes(s, size)
        tx.held = held
        return note

    def check_room_watched(self, s, size):
        """Of more bytes than there may be room for a call makes several portions, and whoever waits for room may be told of it in between."""
        sets = [set_ for set_ in self.sets() if self.watchers(set_)]
        watched = any(f is s and r.mask & {"OUT", "WRNORM"} for set_ in sets for (_, f), r in set_.regs.items())
        need(not watched or s.tx.unread + size <= self.most_nonblocking, "room may be used up, and come again")

    @staticmethod
    def is_still(direction):
        """All that was sent has arrived, and nobody is in a call about it."""
        return direction.arrived == direction.sent and not direction.reader and not direction.writer

    def send_bytes(self, s, size):
        if s.peer.shut_both and not s.peer.dead:
            # Lost bytes.
            s.rst = s.peer.rst = 1
            self.wake(s)
            self.wake(s.peer)
            return
        s.tx.sent += size
        if s.peer.dead:
            s.rst = 1       # nobody is there any more
            self.wake(s)
        else:
            self.wake(s.peer, data=True)

    def op_put(self, op, p):
        """In a loop, all of it; `full=1`: until there is no room."""
        s, size, way, kind = self.stream(op), op.number("len"), op.text("way", "block"), op.text("kind", "send")
        tx, full = s.tx, op.number("full")
        need(kind in SENDS and way in WAYS and 0 < size <= LONGEST_LOOP and not op.flags(), "how?")
        need(0 < op.number("chunk", 65536) <= (32768 if kind == "splice" else LONGEST), "in which portions?")
        need(s.rst == 0 and not s.shut_wr and not s.peer.dead and not s.peer.shut_both, "it ends in an error")
        need(not tx.writer and not tx.fuzzy and not tx.full, "another writes")
        need(not (tx.reader and tx.reader.strict), "a read may return a part")
        need(full or (way == "block") == (not s.nonblock), "does it wait?")
        # Not every call can be told not to wait.
        need(way == "block" and not full or kind in FLAGGED or s.nonblock, "does it wait?")
        need(s.sndtimeo == 0, "it may end early")
        self.check_room_watched(s, LONGEST_LOOP if full else size)
        note = {"tx": tx, "len": size}
        if full:
            need(not op.begins and not tx.reader and way == "poll" and kind in FLAGGED, "how?")
            self.send_bytes(s, 1)
            tx.fuzzy = tx.full = True
            return {**note, "fuzzy": True}
        if not op.begins:
            # As much as a reader will take that waits for more.
            taken = tx.reader.until - tx.read if tx.reader else 0
            need(tx.unread + size - taken <= self.most_blocking, "there may be no room")
            self.send_bytes(s, size)
            tx.held = s.cork
            return note
        need(not tx.reader, "two that sleep for each other")
        self.send_bytes(s, size)
        tx.held = s.cork

        def fired():
            return tx.unread <= self.most_blocking or s.rst or s.shut_wr

        def finish():
            tx.writer = None
            if tx.broken:
                tx.fuzzy = True
            # It may have been through before its end was, and has seen of a reset one of two errors, or none.
            if tx.broken and s.rst == 1:
                s.rst = 2
            return {"broken": tx.broken, "reset": tx.broken and s.rst}

        tx.broken = False
        tx.writer = self.begin(op, p, False, fired, finish, [s])
        return note

    # --- reading ---

    def op_recv(self, op, p):
        s, size, kind, flags = self.stream(op), op.number("len"), op.text("kind", "recv"), op.flags()
        rx = s.rx
        need(kind in RECVS and 0 <= size <= LONGEST, "how?")
        need(not flags or kind in FLAGGED or (kind == "preadv2" and flags == {"DONTWAIT"}), "takes no flags")
        need(flags <= {"DONTWAIT", "WAITALL", "PEEK", "TRUNC", "OOB"}, "no flag of this call")
        need(not rx.reader and not rx.fuzzy, "another reads")
        need(s.rst != 1, "an error may have come or not")
        peek, waitall = "PEEK" in flags, "WAITALL" in flags
        note = {"rx": rx, "len": size}
        if "OOB" in flags:
            # `urgent` reads its byte itself, so there is none.
            need(not op.begins and kind != "recvmmsg", "it does not sleep")
            return note
        waits = not (s.nonblock or "DONTWAIT" in flags)
        low = max(size, 1) if waitall else min(max(s.lowat, 1), max(size, 1))
        if kind == "recvmmsg":
            need(not peek and size > 0, "each message would be the same")
            need(not s.rst, "it takes the error of a reset, and no byte, if nothing has taken that before")
            low = size
        if op.begins:
            need(waits and not s.rcvtimeo and size > 0 and kind != "recvmmsg", "it does not sleep")
            need(not self.is_watched(s), "somebody waits for what it would take")
            # TCP wakes readers at the low mark only: one that wants less, or the rest, may sleep on.
            need(s.lowat == 1 or not waitall and size >= s.lowat and not s.avail, "it may sleep on")
            need(not peek or rx.piled + size <= self.most_settled, "there may be no room for all of it")
            need(not rx.writer and s.settled and not s.ended and not rx.held and s.avail < low, "it would not sleep")
            return {**note, **self.begin_recv(op, p, s, low, size, peek, waitall)}
        if size == 0 and kind in ("read", "readv", "preadv2"):
            return note
        # Whether it has come or not: a call that waits for all of it.
        sure = size and waits and waitall and not peek and not s.shut_rd and not s.rcvtimeo and size <= rx.unread and not rx.held and s.lowat == 1
        if not sure and s.avail < max(size, 1):
            need(not rx.writer and s.settled, "bytes may have come or not")
            need(s.avail >= low or s.ended or not waits or 0 < s.rcvtimeo <= 100, "it would sleep")
        if not peek:
            rx.take(size if sure else min(size, s.avail))
        return note

    def begin_recv(self, op, p, s, low, size, peek, waitall):
        rx = s.rx
        begin = rx.read

        def fired():
            return rx.unread >= low or rx.fin or s.rst or s.shut_rd

        def finish():
            rx.reader = None
            if not peek:
                rx.take(min(size, rx.unread))

        x = rx.reader = self.begin(op, p, not waitall, fired, finish, [s])
        x.until = begin + size
        x.restartable = True
        x.peeks_on = peek and (waitall or s.lowat > 1)
        # Bytes that it has taken, so that a signal ends it.
        x.consumed = lambda: rx.sent > begin
        return {}

    def op_get(self, op, p):
        """In a loop, all of it (`len=all`: what is there, known when it runs), or until the end or an error."""
        s, way, kind = self.stream(op), op.text("way", "block"), op.text("kind", "recv")
        rx = s.rx
        every = op.text("len") == "all"
        size = rx.unread if every else op.number("len")
        need(kind in (*RECVS, "splice") and kind != "recvmmsg" and way in WAYS, "how?")
        need(op.flags() <= {"WAITALL"} and (not op.flags() or kind in FLAGGED), "no flag of this call")
        need(0 < op.number("chunk", 65536) <= LONGEST, "in which portions?")
        need(not rx.reader and s.rst != 1, "another reads")
        need(kind != "splice" or not s.is_copy_left, "who reads it?")
        # It finds an end wherever there is nothing at the moment.
        need(not s.shut_rd or s.settled and not op.begins, "bytes may have come or not")
        # What a call that sleeps has sent is counted when it is joined.
        need(not every or not rx.writer, "how many there are is not known")
        need((way == "block") == (not s.nonblock) and not s.rcvtimeo and s.lowat == 1, "does it wait?")
        need(way == "block" or kind in FLAGGED or s.nonblock, "does it wait?")
        note = {"rx": rx, "len": size, "every": every}
        if rx.fuzzy:
            need(every and not rx.writer and not op.begins and not rx.held, "how many there are is not known")
            rx.exchange(0)
            rx.fuzzy = False
            return note
        need(0 < size <= LONGEST_LOOP, "how many?")
        if not op.begins:
            need(size <= rx.unread or rx.fin or s.ended, "it would sleep")
            need(not rx.held, "it may sleep for long")
            rx.take(min(size, rx.unread))
            return note
        need(not rx.writer, "two that sleep for each other")
        need(not self.is_watched(s), "somebody waits for what it would take")
        begin = rx.read

        def fired():
            return rx.sent - begin >= size or rx.fin or s.rst or s.shut_rd

        def finish():
            rx.reader = None
            rx.take(min(size, rx.unread))

        x = rx.reader = self.begin(op, p, False, fired, finish, [s])
        x.until = begin + size
        x.consumed = lambda: rx.sent > begin
        return note

    def op_warm(self, op, p):
        """To and fro between the two ends, `with=` the other thread and its handle: what makes a connection worth an upgrade."""
        s, rounds, size = self.stream(op), op.number("rounds"), op.number("len")
        need(0 < rounds <= 400 and 0 < size <= 4096, "how much?")
        note = self.both_ends(op, p, s)
        for end in (s, s.peer):
            end.tx.exchange(rounds * size)
            self.wake(end, data=True)
        return note

    def op_urgent(self, op, p):
        """`len` bytes of which the last is urgent, a byte behind them, and how the other end, `with=` its thread and handle, finds
        them. That is one step, since the mark, until it is passed, changes what other calls tell."""
        s, size = self.stream(op), op.number("len")
        need(0 < size <= 4096, "how much?")
        note = self.both_ends(op, p, s)
        # The urgent byte is none of the stream's, that behind it is.
        s.tx.exchange(size)
        self.wake(s.peer, data=True)
        return note

    def both_ends(self, op, p, s):
        """Of a connection where nothing is under way, for a step that both its ends take part in."""
        other, _, handle = op.text("with").partition(":")
        q = self.processes.get(other[:1])
        need(q and q.alive and q.threads.get(int(other[1:]), 0) is None, "no such thread")
        need((q.name, int(other[1:])) != (p.name, op.thread), "the same thread")
        h = q.handles.get(int(handle))
        need(h and h.file is s.peer, "no such end")
        for end in (s, s.peer):
            need(not self.is_watched(end), "somebody waits for what comes and goes")
            need(end.settled and not end.ended and not end.shut_wr and not end.cork and not end.tx.held, "not at rest")
            need(not end.rx.unread and not end.rx.reader and not end.rx.writer and not end.tx.full, "not at rest")
            need(not end.rcvtimeo and not end.sndtimeo and end.lowat == 1, "it may end early")
        return {"tx": s.tx, "rx": s.rx, "q": q, "thread": int(other[1:]), "handle": int(handle)}
