"""{a proved peer, strangers, a relay} x {everything that may be sent, and nothing} x {each step}, against a live server.

What holds in each cell: a plain client of the same server, and one with a link of its own, get the right bytes in time; the server's own
calls that make descriptors stay as cheap as they are; nobody who does not hold a connection gets further than to a Claim; and the server
ends when it is told to, and when it is killed."""

import contextlib
import errno
import itertools
import os
import pickle
import random
import select
import signal
import socket
import struct
import threading
import time

import common
from common import Failure
from . import kernel, peer
from .fuse import Stuck
from .kernel import Job
from .peer import KINDS, Gone, Record
from .victims import ALICE, BOB, MALLORY, WORST_US, Client, Server, Skip, by_link

ALWAYS = False
# Mean and worst of a call of the server's that makes a descriptor, in microseconds.
CALL_MEAN_US, CALL_WORST_US = 3_000, WORST_US
# A mean is one of so many.
CALLS = 200
# A server has this long to end, whatever it was sent, in seconds.
END_LIMIT = 5

# The attacker: the server's user and its own; whether it has connections of its own.
RELATIONS = {"peer": (ALICE, ALICE, True), "peer of another user": (ALICE, MALLORY, True), "peer of root": (0, MALLORY, True),
             "stranger": (ALICE, ALICE, False), "stranger of another user": (ALICE, MALLORY, False), "relay": (ALICE, ALICE, False)}

# How far a meeting has come when the attack begins, and what the victim expects then.
STAGES = {"dialled": "Claim", "proved": "Reply", "named": "Challenge", "claimed": "Claim", "replied": "Joined", "linked": "Bell"}
# As far as a stranger of the same user comes.
STRANGERS = ("dialled", "named", "claimed")


# --- getting there ---

def carry(job, port, commands):
    """Holds connections that an attacker has not, and moves them on when he asks for it."""
    connections = {}
    while data := commands.recv(4096):
        number, method, args = pickle.loads(data)
        if method == "open":
            c = connections[number] = peer.Connection(port)
            answer = (c.key, c.own_port)
        else:
            answer = getattr(connections[number], method)(*args)
            if method == "close":
                del connections[number]
        commands.send(pickle.dumps(answer))


class Carried:
    """One of those, as the attacker knows it. It has no `tcp`."""
    numbers = itertools.count()

    def __init__(self, commands):
        self.commands, self.number = commands, next(self.numbers)
        self.key, self.own_port = self._do("open")
        self.sent = self.got = 0

    def _do(self, method, *args):
        self.commands.send(pickle.dumps((self.number, method, args)))
        return pickle.loads(self.commands.recv(4096))

    def push(self, n):
        self._do("push", n)

    def pull(self):
        self._do("pull")

    def provoke(self):
        self._do("provoke")

    def close(self):
        self._do("close")


class Other(Carried):
    """A connection of an honest client with the library, which the runner keeps going."""

    def __init__(self, job):
        job.tell("client")
        self.key, self.own_port = job.hear()

        self.job = job

    def provoke(self):
        self.job.tell("bound")

    def push(self, n):
        pass

    pull = close = lambda self: None


class Attacker:
    """One process, and how it comes to a stage."""

    def __init__(self, job, port, relation, commands, fds):
        self.job, self.port, self.relation, self.commands = job, port, relation, commands
        self.holds = RELATIONS[relation][2]
        self.fds = fds
        self.reached = dict.fromkeys(STAGES, 0)
        # Descriptors that went off, by stage.
        self.let_in = dict.fromkeys(STAGES, 0)
        self.kept, self.lingering = [], {}
        self.turns = itertools.count()

    def stages(self):
        if self.holds:
            return list(STAGES)
        return ["dialled"] if self.relation == "relay" else list(STRANGERS)

    def connection(self):
        if self.holds:
            return peer.Connection(self.port)
        return Other(self.job) if self.relation == "relay" else Carried(self.commands)

    def reach(self, stage):
        """A meeting, as far as it comes."""
        c = self.connection()
        first = stage in ("dialled", "proved") or stage == "linked" and next(self.turns) % 2
        m = (peer.First if first else peer.Second)(c.key, c if self.holds else None, 0)
        m.connection, m.stage, m.slots = c, stage, []
        if self.holds:
            m.descriptor = c.tcp.fileno()
        else:
            m.nudge = lambda: c.push(1)
        try:
            self.walk(m, stage, c)
            self.reached[stage] += 1
        except (Gone, OSError):
            if self.holds and not self.reached[stage] and next(self.turns) > 200:
                raise
        return m

    def walk(self, m, stage, c):
        if isinstance(m, peer.First):
            m.bind()
            c.provoke()     # a client of the runner's begins with it
            if self.relation == "relay":
                return self.relay(m)
            m.meet()
            if stage != "dialled":
                m.prove()
            if stage == "linked":
                m.reply()
                m.joined()
        else:
            m.meet(1.0, c.provoke)
            if stage != "named":
                m.challenge()
            if stage in ("replied", "linked"):
                m.prove()
            if stage == "linked":
                m.join()
        if stage == "linked":
            m.stream().begin()
            # What it wants doorbells for.
            with contextlib.suppress(Failure):
                while True:
                    record = peer.receive(m.socket, 0.01)
                    if record.kind == "WantBell":
                        m.slots.append(record.index)

    def relay(self, m):
        """Both ends come; what the client says is shown to the server. Which of them is which the user does not tell."""
        visitors = []
        m.listener.settimeout(2 * common.SLOW)
        for _ in range(2):
            try:
                s, _ = m.listener.accept()
            except TimeoutError:
                break
            s.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            visitors.append(s)
        if not visitors:
            raise Gone("nobody comes to the name")
        heard = [peer.expect(peer.receive(s), "Challenge") for s in visitors]
        for s, record in zip(visitors, reversed(heard)):
            peer.send(s, record)
        m.socket, m.heard = visitors[0], heard[0]
        self.kept += visitors[1:]

    def send(self, m, what, fds=(), **kw):
        """Whatever may come of it."""
        if m.socket is None:
            return False
        try:
            peer.send(m.socket, what, fds, flags=socket.MSG_DONTWAIT, **kw)
            self.let_in[m.stage] += bool(fds)
            return True
        except PermissionError:
            return True
        except Gone:
            return False
        except OSError as e:
            if e.errno in (errno.EAGAIN, errno.ETOOMANYREFS):
                time.sleep(0.0005)
                return True
            if e.errno in (errno.EINVAL, errno.EMSGSIZE, errno.ENOBUFS):
                # The kernel passes no io_uring on, nor what is too long.
                return False
            raise

    def leave(self, m):
        m.close()
        m.connection.close()


def record_of(m, kind):
    """One that would be right, if it were its turn."""
    heard = getattr(m.heard, "nonce", (0, 0))
    fields = {"token": m.token, "nonce": m.nonce, "echo": heard, "fd": m.descriptor}
    if kind in ("Ask", "Grant"):
        fields["token"] = (m.key, m.key)
        fields["mirror"] = m.key
    if kind in ("Bell", "Wake", "Attention", "WantBell", "DropBell", "Joined", "Decline"):
        fields["index"] = m.slots[0] if m.slots else 1
    return Record(kind, **fields)


# --- what is done there; each returns nothing, and may be told nothing ---

def records(change):
    def do(a):
        for stage in a.stages():
            for kind in KINDS:
                m = a.reach(stage)
                for data in change(record_of(m, kind)):
                    if not a.send(m, data):
                        break
                a.leave(m)
    return do


def out_of_turn(record):
    yield record
    yield record


def truncated(record):
    for n in (0, 1, 40, peer.RECORD.size - 1):
        yield record.pack()[:n]


def oversize(record):
    for n in (1, 96, 100_000):
        yield record.pack() + bytes(n)


def garbage(record):
    data = record.pack()
    for _ in range(4):
        # Understood, but for what is in it; and not even that.
        yield data[:16] + random.randbytes(60) + data[76:]
    yield data[:8] + random.randbytes(88)
    yield random.randbytes(96)


def descriptors(make):
    def do(a):
        for stage, expected in STAGES.items():
            if stage not in a.stages():
                continue
            for kind in {expected, "Attention"}:
                m = a.reach(stage)
                records = [record_of(m, kind), *(Record("Bell", index=slot) for slot in m.slots)]
                # Also those that are never looked at, since the victim leaves first.
                for record in (*records, record_of(m, kind)):
                    fds = make(a)
                    a.send(m, record, fds)
                    forget(a, fds)
                time.sleep(0.02)
                a.leave(m)
        time.sleep(0.3)
    return do


def forget(a, fds):
    """From now on the victim has the last, if it was sent. If not, its end here is not to wait, either."""
    for fd in set(fds) - set(a.fds):
        far = a.lingering.pop(fd, None)
        if far:
            # Its close lingers, but where it is not the last.
            threading.Thread(target=os.close, args=(fd,), daemon=True).start()
        else:
            os.close(fd)


def fuse_file(a):
    return list(a.fds)


def pipe_end(a):
    """It blocks, and a read of it in pieces of 4096 bytes finds the last one empty."""
    r, w = os.pipe()
    os.write(w, b"x" * 4096)
    return [r]


def fifo(a):
    path = f"/tmp/hostile-fifo-{os.getpid()}"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    os.unlink(path)
    return [fd]


def large_memory(a):
    fd = os.memfd_create("large")
    os.ftruncate(fd, 2 << 30)
    os.posix_fallocate(fd, 0, 256 << 20)
    return [fd]


def lingering_socket(a):
    l = socket.socket()
    l.bind(("127.0.0.1", 0))
    l.listen(1)
    s = socket.socket()
    s.connect(l.getsockname())
    far, _ = l.accept()
    a.kept += [l, far]
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    s.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            s.send(bytes(1 << 16))
    s.setblocking(True)
    a.lingering[s.fileno()] = True
    return [s.detach()]


def epoll_set(a):
    s = select.epoll()
    a.kept.append(s)
    return [os.dup(s.fileno())]


def io_uring(a):
    try:
        return [kernel.io_uring()]
    except OSError as e:
        raise Failure(f"skip: io_uring: {e}")


def nested(a):
    """A Unix socket in which such descriptors lie unread."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    inside = lingering_socket(a)
    for fd in (*a.fds, *inside):
        socket.send_fds(near, [b"x"], [fd])
    near.close()
    forget(a, inside)
    # Its close has to close those first.
    a.lingering[far.fileno()] = True
    return [far.detach()]


def many(a):
    # One of the same user may send doorbells at any time, and so use up what the victim may have: it could as well end it.
    kinds = [*(a.fds if a.relation != "peer" else ()), *pipe_end(a), *fifo(a)]
    return [os.dup(kinds[i % len(kinds)]) for i in range(253)]


def run_out(a):
    """As many as one message can have, at once over many meetings: they are the victim's, until it has closed them."""
    fds = many(a)
    for stage, expected in (("proved", "Reply"), ("linked", "Bell")):
        meetings = [a.reach(stage) for _ in range(6)] if stage in a.stages() else []
        for m in meetings:
            a.send(m, record_of(m, expected), fds)
            a.send(m, record_of(m, expected), fds)
        time.sleep(0.3)
        for m in meetings:
            a.leave(m)
    if not a.holds:
        for stage in a.stages():
            for _ in range(6):
                m = a.reach(stage)
                a.send(m, record_of(m, STAGES[stage]), fds)
                a.leave(m)
    else:
        for stage in a.stages():
            a.leave(a.reach(stage))


def flood(seconds):
    def do(a):
        for stage in a.stages():
            kinds = list(KINDS) if stage == "linked" else [STAGES[stage], "Attention"]
            for kind in kinds:
                m = a.reach(stage)
                until = time.monotonic() + seconds
                record = record_of(m, kind)
                while time.monotonic() < until and a.send(m, record):
                    if kind == "Ask":
                        record.token = (random.getrandbits(32), record.token[1])
                        record.mirror = random.getrandbits(32)
                a.leave(m)
    return do


def at_all_stages(what):
    def do(a):
        meetings = [a.reach(stage) for stage in a.stages()]
        for m in meetings:
            # The victim has something to say as well.
            with contextlib.suppress(Failure, OSError):
                m.connection.push(20_000)
        what(a)
        for m in meetings:
            a.leave(m)
    return do


def silence(a):
    a.job.tell("reached", a.reached)
    time.sleep(0.7)


def stopped(a):
    a.job.tell("stop", a.reached)
    os.kill(os.getpid(), signal.SIGSTOP)


def death(a):
    a.job.tell("reached", a.reached)
    os.kill(os.getpid(), signal.SIGKILL)


ACTIONS = {"records out of turn": records(out_of_turn), "truncated records": records(truncated), "oversize records": records(oversize),
           "garbage": records(garbage), "flood": flood(0.25), "silence": at_all_stages(silence), "stopped": at_all_stages(stopped),
           "death": at_all_stages(death), "descriptors run out": run_out}
DESCRIPTORS = {"file without an answer": fuse_file, "pipe that blocks": pipe_end, "fifo": fifo, "large memory": large_memory,
               "socket that lingers": lingering_socket, "epoll": epoll_set, "io_uring": io_uring, "nested": nested, "many": many}
ACTIONS.update({name: descriptors(make) for name, make in DESCRIPTORS.items()})


# --- the server and its other clients ---

class Target:
    def __init__(self, place, library, mode, uid):
        self.server = Server(place, mode, uid=uid, library=library)
        self.place, self.lib, self.uid = place, library, uid
        self.plain = Client(place, self.server.port, 10, 3000, 1, library=None, uid=BOB)
        self.linked = Client(place, self.server.port, 10, 3000, 1, library=library, uid=BOB)
        self.others = []
        self.worst = 0

        def is_linked():
            self.linked.rounds()
            return by_link(self.linked.connection())
        common.until(is_linked, "the honest client gets no link", 5)
        self.server.probe()

    def tick(self):
        """All go one round."""
        clients = [self.plain, self.linked, *self.others]
        for c in clients:
            c.go()
        for c in clients:
            self.worst = max(self.worst, c.round(15)[2])

    def another(self):
        """A client with the library, whose connection has moved nothing."""
        c = Client(self.place, self.server.port, 10, 3000, 1, library=self.lib, uid=self.uid)
        self.waiting = c
        if len(self.others) > 4:
            self.others.pop(0).end()
        return c

    def begin(self):
        """Its name is bound."""
        self.others.append(self.waiting)

    def judge(self):
        self.tick()
        calls = self.server.probe()
        # Of few calls the mean says how busy the machine is.
        mean = max((c[1] for c in calls.values() if c[0] >= CALLS), default=0)
        slowest = max(c[2] for c in calls.values())
        if self.worst > WORST_US:
            raise Failure(f"a client beside it waited for {self.worst / 1e6:.2f} s; {calls}")
        if mean > CALL_MEAN_US or slowest > CALL_WORST_US:
            raise Failure(f"the server's own calls (number, mean, worst in us): {calls}")
        return f"worst answer {self.worst / 1000:.0f} ms, calls {mean:.0f} us, worst {slowest / 1000:.0f} ms"

    def must_live_until(self, stuck, sig):
        """A peer of the same user may send doorbells. What else it sends is closed by a thread of the victim, which is not to be ended before
        who serves the file answers, or is ended: docs/threat-model.md."""
        common._signal(self.server.pid, sig)
        stuck.end()

    def end(self, sig):
        took = self.server.end(sig, END_LIMIT)
        for c in (self.plain, self.linked, *self.others):
            common.end(c.child, signal.SIGKILL)
        return took


def attack(job, port, relation, action, commands, fds):
    a = Attacker(job, port, relation, commands, fds)
    ACTIONS[action](a)
    return a.reached, a.let_in


def follow(job, target):
    """Keeps everybody going until the attack is over: (stages reached, descriptors let in)."""
    reached = None
    while True:
        target.tick()
        while select.select([job.pipe], [], [], 0)[0]:
            kind = job._take(0)
            if kind is None or job.over and job.over[0] != "result":
                return reached, {}
            if kind == "result":
                return job.over[1]
            said = job.said.pop(0)
            if said == "client":
                c = target.another()
                job.say((c.inode, c.port))
            elif said == "bound":
                target.begin()
            else:
                word, reached = said
                if word == "stop":
                    until = time.monotonic() + 0.7
                    while time.monotonic() < until:
                        target.tick()
                    os.kill(job.pid, signal.SIGCONT)


def cell(place, relation, action, library, mode, sig):
    server_uid, uid, holds = RELATIONS[relation]
    stuck = None
    if action in ("file without an answer", "nested", "many", "descriptors run out"):
        try:
            stuck = Stuck(place)
        except (OSError, Failure) as e:
            raise Skip(f"no FUSE: {str(e).splitlines()[-1]}")
    try:
        target = Target(place, library, mode, server_uid)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Connections of the server's own user: the stranger of that user has the right owner.
        carrier = Job(carry, target.server.port, far, uid=ALICE, shut=(near.fileno(),))
        far.close()
        job = Job(attack, target.server.port, relation, action, near, [stuck.fd] if stuck else [], uid=uid)
        near.close()
        reached, let_in = follow(job, target)
        if job.over and job.over[0] == "failure":
            if job.over[1].startswith("skip: "):
                raise Skip(job.over[1][6:])
            raise Failure(job.over[1])
        note = target.judge()
        judge_reached(relation, reached)
        # A kernel that can refuse them lets none in, but where the arena is awaited, and doorbells.
        may = {"proved"} | ({"linked"} if relation == "peer" else set())
        more = [s for s, n in let_in.items() if n and s not in may]
        if library == "new" and more:
            raise Failure(f"descriptors were let in where the victim has {', '.join(more)}")
        if stuck and holds:
            waits = stuck.count()
            if action == "file without an answer" and not waits:
                raise Failure("nobody has closed the file: nothing is tested")
            note += f", {waits} requests wait"
        if stuck and relation == "peer":
            target.must_live_until(stuck, sig)
        took = target.end(sig)
        job.end()
        carrier.end()
        return f"{sum(reached.values())} meetings, {note}, {signal.Signals(sig).name} {took * 1000:.0f} ms"
    finally:
        if stuck:
            stuck.end()


def judge_reached(relation, reached):
    """The attack came to where it was to begin, and no further."""
    _, _, holds = RELATIONS[relation]
    if holds:
        missing = [s for s, n in reached.items() if not n]
        if missing:
            raise Failure(f"nothing was tried where the victim has {', '.join(missing)}")
        return
    beyond = [s for s, n in reached.items() if n and s not in STRANGERS]
    if beyond or relation == "stranger of another user" and (reached["dialled"] or reached["claimed"]):
        raise Failure(f"somebody who does not hold the connection came as far as {reached}")
    if relation != "stranger of another user" and not any(reached.values()):
        raise Failure("the stranger came to nobody: nothing is tested")


def tests():
    for relation, action, library in itertools.product(RELATIONS, ACTIONS, ("new", "old")):
        if (relation, action) == ("peer", "descriptors run out"):
            # One of the same user may send doorbells; it could as well stop the process by a signal.
            continue
        def test(place, relation=relation, action=action, library=library):
            n = random.random()
            mode = "epoll" if n < 0.5 else "threads"
            sig = signal.SIGKILL if n * 2 % 1 < 0.5 else signal.SIGTERM
            return f"{mode}: {cell(place, relation, action, library, mode, sig)}"
        test.__name__ = f"{action} / {relation} / {'refusing' if library == 'new' else 'older'} kernel"
        yield test


TESTS = list(tests())
