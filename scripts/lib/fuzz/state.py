"""What is known of descriptors, connections, processes and calls that were begun. See model.py for what it is known for."""


class Invalid(Exception):
    """The outcome of this call is nobody's promise, or the call makes no sense here."""


def need(holds, why):
    if not holds:
        raise Invalid(why)


class Direction:
    """Bytes from one end to the other."""

    def __init__(self, conn, side):
        self.key = (conn, side)
        self.seed = 2 * conn + side
        self.sent = self.read = 0
        self.arrived = 0        # of those sent, seen at the other end
        self.emptied = 0        # sent when nothing of it was unread for the last time
        self.orphaned = 0       # sent before a process was killed that could write
        self.held = False       # some may wait in the writer's kernel for more (MSG_MORE, TCP_CORK)
        self.fin = 0            # 1: sent, 2: seen at the other end
        self.fuzzy = False      # how many are sent is known only when it runs
        self.full = False       # the writer has met the end of room, and has not been told of room since
        self.reader = None      # a pending call that reads
        self.writer = None      # a pending call that writes
        self.broken = False     # it ends in an error

    def break_writer(self):
        """A call that writes ends in an error, which has to be taken before anything shows whether there is one."""
        if self.writer:
            self.broken = self.writer.strict = True

    @property
    def unread(self):
        return self.sent - self.read

    @property
    def piled(self):
        """What may take room at the reader's: a segment does until the last byte of it is read."""
        return self.sent - self.emptied

    def take(self, size):
        """So many bytes are read."""
        self.read += size
        self.arrived = max(self.arrived, self.read)
        if not self.unread:
            self.emptied = self.sent

    def exchange(self, size):
        """So many bytes are sent and read."""
        self.sent += size
        self.take(self.sent - self.read)


class File:
    """What descriptors stand for: an open file description."""

    def __init__(self):
        self.refs = set()       # (process, handle)
        self.nonblock = False
        self.passed = False     # so that one of them may be a descriptor of which its process does not know whose it is


class Stream(File):
    def __init__(self, conn, side, tx, rx):
        super().__init__()
        self.conn, self.side, self.tx, self.rx = conn, side, tx, rx
        self.peer = None
        self.rst = 0            # 1: the other end has reset it, or will; 2: seen
        self.shut_rd = self.shut_wr = False
        self.lowat = 1
        self.rcvtimeo = self.sndtimeo = 0
        self.cork = self.nodelay = self.linger0 = False
        self.dead = False       # no descriptor is left
        self.queued = False     # nobody has accepted it yet

    @property
    def avail(self):
        return self.rx.arrived - self.rx.read

    @property
    def settled(self):
        """All that the other end did is known to be seen here."""
        return self.rx.arrived == self.rx.sent and self.rx.fin != 1 and self.rst != 1 and not self.rx.fuzzy

    @property
    def shut_both(self):
        """What arrives now resets both ends."""
        return self.shut_rd and self.shut_wr

    @property
    def ended(self):
        return self.rx.fin == 2 or self.rst == 2 or self.shut_rd

    @property
    def is_copy_left(self):
        """Behind a reset what a link had brought is only where hooks read; so it is where the writer was killed: docs/limitations.md."""
        return bool(self.rst and self.rx.unread) or self.peer.dead and self.rx.read < self.rx.orphaned


class Listener(File):
    def __init__(self):
        super().__init__()
        self.queue = []         # streams nobody has accepted
        self.known = True       # that the last of them is there has been seen
        self.acceptor = None


class Fresh(File):
    """A socket that was never connected."""


class Epoll(File):
    def __init__(self):
        super().__init__()
        self.regs = {}          # (number, file): Registration
        self.had_stream = False


class Registration:
    def __init__(self, mask, cookie):
        self.mask, self.cookie = mask, cookie
        self.armed = True
        self.listed = False     # something has happened since it was last told
        self.by_data = False    # that was the arrival of bytes alone
        self.by_reset = False   # what slept was told of a reset, perhaps before all of it was done


class Handle:
    def __init__(self, file, number, cloexec=False):
        self.file, self.number, self.cloexec = file, number, cloexec


class Process:
    def __init__(self, name, index):
        self.name, self.index = name, index
        self.alive = True
        self.handles = {}
        self.closed = {}        # handle: number, of descriptors that were closed
        self.threads = {0: None}
        self.restarts = {}      # signal: does its handler ask for it

    def lowest(self):
        taken = self.numbers()
        n = 3
        while n in taken:
            n += 1
        return n

    def promised(self):
        """Handles that calls which sleep will give."""
        return {x.op.handle(1) for x in self.threads.values() if x and x.op.name == "accept"}

    def numbers(self):
        """Those that are taken: a call that sleeps for a connection has taken the one that it will give."""
        reserved = {x.number for x in self.threads.values() if x and x.number is not None}
        return reserved | {h.number for h in self.handles.values()}

    def is_free(self, number):
        return number not in self.numbers()

    def check_numbers(self, but=None):
        """Before numbers are taken, or become free, also by the end of a call."""
        others = (x for x in self.threads.values() if x and x is not but)
        need(not any(x.takes_number for x in others), "a call on its way to sleep may take this number, or another")

    def next_number(self):
        self.check_numbers()
        return self.lowest()


class Pending:
    """A call that was begun. `strict`: when something has ended its sleep, it must be joined before anything else."""

    def __init__(self, op, process, strict, fired, finish, files):
        self.op, self.process, self.thread = op, process, op.thread
        self.strict, self.fired, self.finish, self.files = strict, fired, finish, files
        self.broken = False     # by a signal
        self.number = None      # of a descriptor that it has taken already
        self.takes_number = False   # it may not have done so yet
        self.restartable = False
        self.peeks_on = False   # a peek behind bytes, which goes on when it is cancelled
        self.consumed = lambda: False
        self.moved = 0          # by then, on the connections that it waits for

    def is_fired(self):
        return self.broken or self.fired()
