"""The other end of the protocol (docs/protocol.md, "Meeting within a host"), which may break any rule of it.

Records are made and read here, arenas laid out, meetings held: by a `First`, who has bound the name before the victim tries, and by a
`Second`, who comes to the victim's name. Each step is a method, so that an attacker can leave one out, or do another thing instead."""

import array
import errno
import fcntl
import mmap
import os
import random
import select
import socket
import struct
import time

import common
from common import Failure

VERSION, LAYOUT = 3, 6
ARENA = 525 << 20
RINGS, REGION, RING = 13 << 20, 256 << 20, 256 << 10
SEALS = 1 | 2 | 4   # SEAL, SHRINK, GROW
F_ADD_SEALS = 1033
SO_PASSRIGHTS = 83
SLOT, SLOTS, SLOTS_AT = 2112, 64, 4096
DIRECTION, STREAMS_AT = 384, 274432
RECORD = struct.Struct("<4sHHIHHII2Q2Q2QIQ12x")
CREDENTIALS = struct.Struct("iII")

KINDS = {"Challenge": 1, "Claim": 2, "Reply": 3, "Joined": 4, "Decline": 5, "Ask": 6, "Grant": 7, "NotMine": 8,
         "WantBell": 16, "Bell": 17, "Wake": 18, "Attention": 19, "DropBell": 20}
NAMES = {n: name for name, n in KINDS.items()}
PROOFS = ("Claim", "Ask", "Grant", "Joined")
REUSE = 1


def name_of(key, version=VERSION):
    return f"\0sluice/{version}/{key:x}"


def nonce():
    return random.getrandbits(64) | 1, random.getrandbits(64)


class Record:
    """What came or goes, with who has sent it and the descriptors that it brought."""
    FIELDS = ("magic", "version", "kind", "layout", "word", "reason", "index", "flags", "token", "nonce", "echo", "fd",
              "mirror")

    def __init__(self, kind, **fields):
        self.kind = kind
        self.magic, self.version, self.layout, self.word = b"slce", VERSION, LAYOUT, 8
        self.reason = self.index = self.flags = self.fd = self.mirror = 0
        self.token = self.nonce = self.echo = (0, 0)
        self.sender, self.fds = None, []
        for name, value in fields.items():
            if name not in self.FIELDS:
                raise TypeError(name)
            setattr(self, name, value)

    def pack(self):
        number = KINDS.get(self.kind, self.kind)
        return RECORD.pack(self.magic, self.version, number, self.layout, self.word, self.reason, self.index, self.flags,
                           *self.token, *self.nonce, *self.echo, self.fd & 0xFFFFFFFF, self.mirror)

    @classmethod
    def unpack(cls, data):
        if len(data) != RECORD.size:
            raise Failure(f"a record of {len(data)} bytes")
        magic, version, number, layout, word, reason, index, flags, *pairs, fd, mirror = RECORD.unpack(data)
        return cls(NAMES.get(number, number), magic=magic, version=version, layout=layout, word=word, reason=reason, index=index,
                   flags=flags, token=tuple(pairs[0:2]), nonce=tuple(pairs[2:4]), echo=tuple(pairs[4:6]), fd=fd, mirror=mirror)

    def __repr__(self):
        return f"{self.kind} by {self.sender} with {len(self.fds)} descriptors"


class Gone(Failure):
    """The victim has ended the conversation."""


def send(sock, record, fds=(), sender=None, flags=0):
    """A record, or bytes. A proof says who the sender is, as `sender` = (pid, uid, gid) if that is given, which the kernel checks."""
    data, control = record, []
    if isinstance(record, Record):
        data = record.pack()
        if record.kind in PROOFS and sender is None:
            sender = (os.getpid(), os.geteuid(), os.getegid())
    if sender is not None:
        control.append((socket.SOL_SOCKET, socket.SCM_CREDENTIALS, CREDENTIALS.pack(*sender)))
    if fds:
        control.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds)))
    try:
        return sock.sendmsg([data], control, flags | socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionResetError) as e:
        raise Gone(f"the victim has closed: {e}")


def receive(sock, limit=2.0, nudge=None):
    """The next record. Gone at the end, or where nothing comes. A victim without a link moves on in calls of its own only: `nudge()` has
    it make some."""
    deadline = time.monotonic() + limit * common.SLOW
    while not select.select([sock], [], [], 0.01 if nudge else limit * common.SLOW)[0]:
        if time.monotonic() > deadline:
            raise Gone("the victim says nothing")
        if nudge:
            nudge()
    try:
        data, control, _, _ = sock.recvmsg(256, 4096)
    except ConnectionResetError as e:
        raise Gone(f"the victim has closed: {e}")
    if not data:
        raise Gone("the victim has closed")
    record = Record.unpack(data)
    for _, kind, value in control:
        if kind == socket.SCM_CREDENTIALS:
            record.sender = CREDENTIALS.unpack(value[:CREDENTIALS.size])
        elif kind == socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(value[:len(value) - len(value) % 4])
            record.fds += fds
    return record


def expect(record, kind):
    if record.kind == "Decline":
        raise Gone(f"declined for reason {record.reason}")
    if record.kind != kind:
        raise Failure(f"{record!r} instead of {kind}")
    return record


def unix_socket():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return s


def bind_name(key, backlog=8):
    """Listens at the name of a connection. Gone where somebody else does."""
    s = unix_socket()
    try:
        s.bind(name_of(key))
    except OSError as e:
        s.close()
        if e.errno == errno.EADDRINUSE:
            raise Gone("the name is taken")
        raise
    s.listen(backlog)
    return s


def connect_name(key, limit=2.0, nudge=None):
    """Connects to whoever listens at the name of a connection, once somebody does. `nudge()` is called now and then."""
    deadline = time.monotonic() + limit * common.SLOW
    again = 0
    while time.monotonic() < deadline:
        s = unix_socket()
        try:
            s.connect(name_of(key))
            return s
        except OSError:
            s.close()
        if nudge and time.monotonic() > again:
            nudge()
            again = time.monotonic() + 0.3
        time.sleep(0.0005)
    raise Gone("nobody listens at the name")


class Arena:
    """The memory of a link, made here or received."""

    def __init__(self, fd=None, sealed=True, length=ARENA):
        self.side = 0 if fd is None else 1
        self.fd = os.memfd_create("sluice", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, length)
            if sealed:
                fcntl.fcntl(self.fd, F_ADD_SEALS, SEALS)
        self.map = mmap.mmap(self.fd, length, mmap.MAP_SHARED)
        self.words, self.halves, self.bytes = (memoryview(self.map).cast(c) for c in "QIB")
        if fd is None:
            self.words[0] = struct.unpack("<Q", b"sluice\0\x01")[0]
            self.halves[2], self.halves[3], self.words[2] = LAYOUT, 8, length
        self.lent = RINGS + REGION * self.side

    def direction(self, writer, index):
        """Where the direction of a stream lies that side `writer` writes."""
        return STREAMS_AT + index * 2 * DIRECTION + writer * DIRECTION

    def word(self, at, value=None):
        if value is not None:
            self.words[at // 8] = value
        return self.words[at // 8]

    def half(self, at, value=None):
        if value is not None:
            self.halves[at // 4] = value
        return self.halves[at // 4]

    def lend(self, index, ring=RING):
        """Says where the other side writes."""
        d = self.direction(1 - self.side, index)
        self.word(d + 128 + 8, self.lent)
        self.half(d + 128 + 16, ring)
        self.lent += ring

    def close(self):
        for view in (self.words, self.halves, self.bytes):
            view.release()
        self.map.close()
        os.close(self.fd)


class Stream:
    """Stream `index` of a link: what this end writes to it, and reads."""

    def __init__(self, arena, control, index, of):
        self.arena, self.control, self.index, self.of = arena, control, index, of
        self.tx, self.rx = arena.direction(arena.side, index), arena.direction(1 - arena.side, index)
        self.tx_at = self.rx_at = 0
        self.ring = arena.word(self.rx + 128 + 8)

    def begin(self):
        """Both directions leave TCP. The victim consents behind the call in which it waited when it had no link yet."""
        deadline = time.monotonic() + 5 * common.SLOW
        while not self.may_write():
            if time.monotonic() > deadline:
                raise Failure("the victim does not consent")
            self.of.push(1)
            self.of.pull()
        self.of.pull()
        self.arena.word(self.tx + 192 + 8, self.of.sent)
        self.arena.half(self.tx + 192 + 16, 1)
        self.arena.half(self.rx + 128 + 20, 1)

    def echoed(self, data):
        """Goes there and comes back by the link."""
        self.write(data)
        got = b""
        while len(got) < len(data):
            got += self.read()
        if got != data:
            raise Failure("other bytes came back by the link")

    def may_write(self):
        return self.arena.half(self.tx + 128 + 20) == 1

    def wake(self, mask):
        for slot in range(63):
            if mask >> slot & 1:
                at = SLOTS_AT + (1 - self.arena.side) * SLOTS * SLOT + slot * SLOT
                word = self.index // 64
                self.arena.word(at + 24 + 8 * word, self.arena.word(at + 24 + 8 * word) | 1 << self.index % 64)
                self.arena.word(at + 16, self.arena.word(at + 16) | 1 << word // 4)
                send(self.control, Record("Wake", index=slot), flags=socket.MSG_DONTWAIT)

    def write(self, data):
        a = self.arena
        at, length = a.word(self.tx + 128 + 8), a.half(self.tx + 128 + 16)
        for i, byte in enumerate(data):
            a.bytes[at + (self.tx_at + i) % length] = byte
        self.tx_at += len(data)
        a.word(self.tx, self.tx_at)
        self.wake(a.word(self.tx + 128))

    def tail(self):
        return self.arena.word(self.rx) & ~(1 << 63)

    def read(self, limit=3):
        """What the victim has written to the link, once it has."""
        def come():
            # It may have gone to sleep meanwhile.
            self.wake(self.arena.word(self.tx + 128))
            return self.tail() != self.rx_at
        common.until(come, "nothing comes by the link", limit, 0.002)
        end = self.tail()
        data = bytes(self.arena.bytes[self.ring + at % RING] for at in range(self.rx_at, end))
        self.rx_at = end
        self.arena.word(self.rx + 64, end)
        return data


class Connection:
    """A TCP connection to a victim that echoes, and what it takes to make the victim look for its peer."""

    def __init__(self, port, tcp=None):
        self.port = port
        self.tcp = tcp or socket.socket()
        if not tcp:
            self.tcp.connect(("127.0.0.1", port))
        self.tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.key = self.inode = os.fstat(self.tcp.fileno()).st_ino
        self.own_port = self.tcp.getsockname()[1]
        self.sent = self.got = 0
        self.step = 1

    def push(self, n):
        self.tcp.sendall(b"x" * n)
        self.sent += n

    def pull(self, limit=5):
        """Until all is echoed."""
        self.tcp.settimeout(limit * common.SLOW)
        while self.got < self.sent:
            n = len(self.tcp.recv(65536))
            if not n:
                raise Failure("the victim has ended the connection")
            self.got += n

    def provoke(self):
        """Goes beyond the offset at which the victim, which is eager, tries next: 1, 4, 16, 64 ... of both directions together."""
        total = self.sent + self.got
        while self.step <= total:
            self.step *= 4
        self.push(max(1, self.step - total))

    def close(self):
        self.tcp.close()


class Meeting:
    """One of either kind. `of`: the connection, or None where this end has none, and claims `claimed` as its descriptor."""

    def __init__(self, key, of=None, claimed=None):
        self.key, self.of = key, of
        self.descriptor = claimed if claimed is not None else of.tcp.fileno() if of else 0
        self.token, self.nonce = nonce(), nonce()
        self.socket = self.listener = self.arena = self.heard = None
        self.index = 0
        self.nudge = of and (lambda: of.push(1))

    def hear(self, kind):
        self.heard = expect(receive(self.socket, nudge=self.nudge), kind)
        return self.heard

    def claim(self, **fields):
        return Record("Claim", **{"token": self.token, "nonce": self.nonce, "echo": self.heard.nonce, "fd": self.descriptor, **fields})

    def stream(self):
        return Stream(self.arena, self.socket, self.index, self.of)

    def close(self):
        for s in (self.socket, self.listener):
            if s:
                s.close()
        if self.arena:
            self.arena.close()


class First(Meeting):
    """First comer: the name is bound before the victim comes."""

    def bind(self):
        self.listener = bind_name(self.key)

    def meet(self, limit=2.0):
        """The victim has come, and challenges."""
        self.listener.settimeout(limit * common.SLOW)
        try:
            self.socket, _ = self.listener.accept()
        except TimeoutError:
            raise Gone("nobody comes to the name")
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.listener.close()
        self.hear("Challenge")

    def prove(self, **fields):
        """The victim believes, and says who it is."""
        send(self.socket, self.claim(**fields))
        self.hear("Claim")

    def reply(self, fds=None, **fields):
        """Gives it the arena."""
        self.arena = self.arena or Arena()
        self.arena.lend(self.index)
        send(self.socket, Record("Reply", index=self.index, **fields), [self.arena.fd] if fds is None else fds)

    def joined(self):
        expect(receive(self.socket, nudge=self.nudge), "Joined")

    def all(self):
        self.bind()
        self.of.provoke()
        self.meet()
        self.prove()
        self.reply()
        self.joined()
        return self.stream()


class Second(Meeting):
    """Second comer: the victim has bound the name."""

    def meet(self, limit=2.0, nudge=None):
        self.socket = connect_name(self.key, limit, nudge or (self.of and self.of.provoke))

    def challenge(self, **fields):
        send(self.socket, Record("Challenge", nonce=self.nonce, **fields))
        self.hear("Claim")

    def prove(self, **fields):
        """The victim believes, and gives its arena."""
        send(self.socket, self.claim(**fields))
        reply = receive(self.socket, nudge=self.nudge)
        if reply.fds and reply.kind != "Reply":
            raise Failure(f"{reply!r}")
        expect(reply, "Reply")
        self.index = reply.index
        if reply.fds:
            self.arena = Arena(reply.fds[0])

    def join(self):
        self.arena.lend(self.index)
        send(self.socket, Record("Joined"))

    def all(self):
        self.meet()
        self.challenge()
        self.prove()
        self.join()
        return self.stream()


class Over(Meeting):
    """Of another connection, over the link that `meeting` has brought. `inode` is that of the victim's end."""

    def __init__(self, meeting, of, inode, index=0):
        super().__init__(of.key, of)
        self.socket, self.arena, self.inode = meeting.socket, meeting.arena, inode
        # Each side gives out its own.
        self.index = index or 2 + self.arena.side

    def listen(self, kind, limit=3):
        """The next record of this kind: others of a link go by."""
        deadline = time.monotonic() + limit * common.SLOW
        while time.monotonic() < deadline:
            record = receive(self.socket, limit, self.nudge)
            if record.kind == kind:
                self.heard = record
                return record
            if record.kind in ("Decline", "NotMine"):
                raise Gone(f"the answer is {record.kind}")
        raise Gone(f"no {kind} comes")

    def send_ask(self, **fields):
        send(self.socket, Record("Ask", **{"token": (self.key, self.of.inode), "nonce": self.nonce, "fd": self.descriptor,
                                           "mirror": self.inode, **fields}))

    def send_grant(self, **fields):
        send(self.socket, Record("Grant", **{"token": (self.key, self.of.inode), "nonce": self.nonce, "echo": self.heard.nonce,
                                             "fd": self.descriptor, "index": self.index, **fields}))

    def send_joined(self, **fields):
        send(self.socket, Record("Joined", **{"index": self.index, "echo": self.heard.nonce, "fd": self.descriptor, **fields}))

    def ask(self):
        self.send_ask()
        self.of.provoke()
        self.listen("Grant")
        self.index = self.heard.index
        self.arena.lend(self.index)
        self.send_joined()
        return self.stream()

    def answer(self):
        self.of.provoke()
        self.listen("Ask")
        self.arena.lend(self.index)
        self.send_grant()
        self.listen("Joined")
        return self.stream()
