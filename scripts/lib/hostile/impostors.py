"""Whoever does not hold the other end of a connection becomes nobody's peer: victims' bytes are right and complete, the impostor is
given no descriptor and no stream, and the connection is on TCP, or accelerated with its true peer.

An attack is work of a child of the runner, as another user. It tells what it has been given: `loot`."""

import contextlib
import os
import select
import shutil
import socket
import threading
import time

import common
from common import Failure
from . import kernel, peer
from .kernel import Job
from .peer import Gone, Record
from .victims import ALICE, BOB, MALLORY, NOBODY, Client, Server, Skip, must_be_linked, must_be_on_tcp, must_be_whole, stat

ON_TCP_WITH_STRANGER = ("peer-owner", "name-taken", "no-answer", "too-many-names", "meeting")


ALWAYS = True


class Loot:
    """What an attacker was told and given."""

    def __init__(self):
        self.heard, self.fds, self.streams = [], 0, 0

    def note(self, record):
        self.heard.append(record.kind)
        self.fds += len(record.fds)
        return record

    def __reduce__(self):
        return _loot, (self.heard, self.fds, self.streams)


def _loot(heard, fds, streams):
    out = Loot()
    out.heard, out.fds, out.streams = heard, fds, streams
    return out


def nothing(loot, *words):
    """It was given no descriptor and no stream, and told no more than these kinds of record."""
    more = [k for k in loot.heard if k not in words and k != "Decline"]
    if loot.fds or loot.streams or more:
        raise Failure(f"an impostor was given {loot.fds} descriptors and {loot.streams} streams, and told {', '.join(loot.heard)}")


# --- attackers ---

class Squatter:
    """Has bound the name of a connection ahead. Answers whoever comes as a first comer does, claiming to hold it by `descriptor`, and
    relays what it can: the visitor's records are shown, unchanged but for the sender, to whoever else comes."""

    def __init__(self, job, key, descriptor=0, relay=False, unchanged=False, listener=None):
        self.job, self.loot, self.relay, self.unchanged = job, Loot(), relay, unchanged
        self.descriptor = descriptor
        self.listener = listener or peer.bind_name(key, 64)
        self.visitors, self.nonces, self.arenas = [], {}, []
        if not listener:
            job.tell("ready")

    def run(self):
        while not self.job.is_over():
            ready, _, _ = select.select([self.listener, *self.visitors], [], [], 0.02)
            for s in ready:
                if s is self.listener:
                    visitor, _ = s.accept()
                    visitor.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                    self.visitors.append(visitor)
                else:
                    try:
                        self.on(s, self.loot.note(peer.receive(s, 0)))
                    except (Failure, OSError):
                        self.visitors.remove(s)
                        s.close()
        return self.loot

    def on(self, s, record):
        other = next((v for v in self.visitors if v is not s), None)
        if self.relay and other and self.unchanged:
            # Without explicit credentials the kernel adds the sender's own.
            return other.sendmsg([record.pack()])
        if self.relay and other and record.kind in peer.PROOFS:
            return peer.send(other, record)
        if record.kind == "Challenge":
            echo = record.nonce
            self.nonces[s] = peer.nonce()
            peer.send(s, Record("Claim", token=peer.nonce(), nonce=self.nonces[s], echo=echo, fd=self.descriptor))
        elif record.kind == "Claim":
            arena = peer.Arena()
            arena.lend(0)
            self.arenas.append(arena)
            with contextlib.suppress(OSError):
                peer.send(s, Record("Reply"), [arena.fd])
        elif record.kind == "Joined":
            self.loot.streams += 1


def squat(job, key, **kw):
    return Squatter(job, key, **kw).run()


def visit(job, key, descriptor=0, early=False):
    """Comes to the name whenever somebody listens there, before the true peer does, and claims to be it."""
    loot = Loot()
    job.tell("ready")
    while not job.is_over():
        try:
            s = peer.connect_name(key, 0.05)
        except Gone:
            continue
        with contextlib.suppress(Failure, OSError):
            own = peer.nonce()
            if early:
                # Before anything is asked: with what credentials the kernel lets it have.
                peer.send(s, Record("Claim", token=peer.nonce(), nonce=own, echo=(0, 0), fd=descriptor))
            peer.send(s, Record("Challenge", nonce=own))
            claim = peer.expect(loot.note(peer.receive(s, 0.3)), "Claim")
            peer.send(s, Record("Claim", token=peer.nonce(), nonce=own, echo=claim.nonce, fd=descriptor))
            loot.streams += loot.note(peer.receive(s, 0.3)).kind == "Reply"
        s.close()
    return loot


def sandboxed(work):
    """The same of a process in namespaces of its own: users, pids, mounts."""
    def run(job, *args, **kw):
        kernel.unshare(kernel.NEWUSER | kernel.NEWPID | kernel.NEWNS)
        return kernel.in_pid_namespace(job, lambda job: work(job, *args, **kw))
    run.__name__ = f"sandboxed_{work.__name__}"
    return run


def hidden(work):
    """The same of a process at which nobody may look."""
    def run(job, *args, **kw):
        kernel.call("prctl", kernel.PR_SET_DUMPABLE, 0, 0, 0, 0)
        return work(job, *args, **kw)
    run.__name__ = f"hidden_{work.__name__}"
    return run


# --- the frame ---

class Stage:
    """Two victims and the connection between them, which has moved nothing yet."""

    def __init__(self, place, server=ALICE, client=BOB, mode="threads", library="new", server_kw=None, client_kw=None, **settings):
        self.server = Server(place, mode, uid=server, library=library, SLUICE_LOG="debug", **(server_kw or {}), **settings)
        self.client = Client(place, self.server.port, uid=client, **{"library": library, **(client_kw or {})}, SLUICE_LOG="debug", **settings)
        self.jobs = []

    @property
    def key(self):
        return self.client.inode

    def attack(self, work, *args, uid=MALLORY, **kw):
        job = Job(lambda job: work(job, *args, **kw), uid=uid, name=work.__name__)
        self.jobs.append(job)
        said = job.told()
        if said != "ready":
            raise Failure(f"{work.__name__} said {said}")
        return job

    def rounds(self, *reasons, of="both"):
        """While the attack goes on: on TCP, for one of these reasons."""
        self.client.rounds()
        for name, c in (("server", self.server.connection(self.client.port)), ("client", self.client.connection())):
            must_be_on_tcp(c, *(reasons if of in ("both", name) else ()))

    def linked(self):
        """Nobody is in the way."""
        self.client.rounds(2)
        must_be_linked(self.server.connection(self.client.port))
        must_be_linked(self.client.connection())
        self.whole()

    def whole(self):
        """What the client has sent and got is right and complete."""
        must_be_whole(self.server, self.client, self.client.rounds())

    def close(self):
        for job in self.jobs:
            job.end()
        self.client.end()
        self.server.end()


@contextlib.contextmanager
def stage(*args, **kw):
    s = Stage(*args, **kw)
    try:
        yield s
    finally:
        s.close()


RELAY = {"relay": True}


def squatted(place, work=squat, uid=MALLORY, told=(), reasons=(), server=ALICE, client=BOB, of="both", attack=None, **kw):
    """The name is bound by `work` before the two try: they stay on TCP for one of these reasons."""
    with stage(place, server, client, **kw) as s:
        job = s.attack(work, s.key, uid=uid, **(attack or {}))
        s.rounds(*reasons, of=of)
        loot = job.done()
        nothing(loot, *told)
        s.whole()
        return loot


def visited(place, work=visit, uid=MALLORY, told=(), server=ALICE, client=BOB, attack=None, **kw):
    """Somebody comes to the name, perhaps before the true peer does: on TCP, or with the true peer."""
    with stage(place, server, client, **kw) as s:
        job = s.attack(work, s.key, uid=uid, **(attack or {}))
        s.client.rounds()
        loot = job.done()
        nothing(loot, *told)
        s.whole()
        return loot


# --- tests ---

def mitm_as_another_user(place):
    """Has the name of a connection between two others: it is told nothing at all."""
    for server, client in ((ALICE, BOB), (ALICE, ALICE), (0, 0), (0, BOB), (ALICE, 0)):
        squatted(place, reasons=("peer-owner",), server=server, client=client, attack=RELAY)


def mitm_as_another_user_visits(place):
    for server, client in ((ALICE, BOB), (ALICE, ALICE), (0, 0), (0, BOB), (ALICE, 0)):
        visited(place, server=server, client=client)


def mitm_as_the_same_user(place):
    """Relays what each of the two says to the other, by itself or as it came; and as one who claims anything."""
    for attack in (RELAY, {"relay": True, "unchanged": True}, {}, {"descriptor": 1}):
        loot = squatted(place, uid=ALICE, server=ALICE, client=ALICE, told=("Challenge", "Claim"), attack=attack,
                        reasons=("proof-failed",) if "relay" not in attack else ("proof-failed", "no-answer", "meeting"))
        if "Challenge" not in loot.heard:
            raise Failure("nobody came to the name: nothing is tested")


def visitor_as_the_same_user(place):
    """A name that one of the two has bound is come to by a third before the other."""
    met = 0
    for descriptor in (0, 1):
        # Any other client of it is plain.
        loot = visited(place, uid=ALICE, server=ALICE, client=ALICE, told=("Claim",), attack={"descriptor": descriptor},
                       client_kw={"library": None})
        met += loot.heard.count("Claim")
        visited(place, uid=ALICE, server=ALICE, client=ALICE, told=("Claim",), attack={"descriptor": descriptor})
    if not met:
        raise Failure("the visitor came to nobody: nothing is tested")


def mitm_in_a_sandbox(place):
    """The same user, in namespaces of its own."""
    squatted(place, work=sandboxed(squat), uid=ALICE, server=ALICE, client=ALICE, reasons=("peer-hidden",), attack=RELAY)
    visited(place, work=sandboxed(visit), uid=ALICE, server=ALICE, client=ALICE)


def mitm_that_may_not_be_looked_at(place):
    """The same user, PR_SET_DUMPABLE 0."""
    squatted(place, work=hidden(squat), uid=ALICE, server=ALICE, client=ALICE, told=("Challenge",), reasons=("peer-hidden",), attack=RELAY)
    visited(place, work=hidden(visit), uid=ALICE, server=ALICE, client=ALICE, told=("Claim",))


# --- the process that answers is not the one that listened or connected ---

def listens_and_leaves(job, port, how, helper=None):
    """Has a TCP socket, listens at its name, and leaves that to a child, which answers; and goes on as the honest other end: itself, or
    by executing a program with another group's rights. `how`: fork, exec, again (the child listens once more), or passed (the child has
    the socket that was accepted)."""
    tcp = socket.socket()
    key = os.fstat(tcp.fileno()).st_ino
    listener = peer.bind_name(key)
    ours, theirs = socket.socketpair()
    if how == "passed":
        tcp.connect(("127.0.0.1", port))
        job.tell(tcp.getsockname()[1])
        tcp.sendall(b"x")
        accepted, _ = listener.accept()
    if os.fork() == 0:
        kernel.call("prctl", kernel.PR_SET_PDEATHSIG, 9, 0, 0, 0)
        tcp.close()
        if how == "again":
            listener.listen(4)
        theirs.send(b"!")
        squatter = Squatter(job, key, listener=listener, descriptor=tcp.fileno())
        if how == "passed":
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            squatter.visitors.append(accepted)
        return squatter.run()
    listener.close()
    ours.recv(1)
    if how == "exec":
        os.set_inheritable(tcp.fileno(), True)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.execve(helper, [helper, "adopt", str(port), str(tcp.fileno())], {})
    if how != "passed":
        tcp.connect(("127.0.0.1", port))
        job.tell(tcp.getsockname()[1])
    # Long enough for a victim without a link, which moves on in calls of its own.
    for _ in range(100):
        tcp.sendall(b"x" * 10)
        tcp.recv(4096)
        time.sleep(0.005)
    time.sleep(600)


def connects_and_leaves(job, port):
    """Connects to the victim's name as the holder of the connection, and leaves the rest to a child."""
    c = peer.Connection(port)
    job.tell(c.own_port)
    meeting = peer.Second(c.key, c)
    meeting.meet()
    loot = Loot()
    if os.fork() == 0:
        kernel.call("prctl", kernel.PR_SET_PDEATHSIG, 9, 0, 0, 0)
        number = c.tcp.fileno()
        c.close()
        with contextlib.suppress(Gone):
            peer.send(meeting.socket, Record("Challenge", nonce=meeting.nonce))
            meeting.heard = peer.expect(loot.note(peer.receive(meeting.socket)), "Claim")
            peer.send(meeting.socket, meeting.claim(fd=number))
            loot.streams += loot.note(peer.receive(meeting.socket)).kind == "Reply"
        return loot
    for _ in range(100):
        c.push(1)
        c.pull()
        time.sleep(0.005)
    time.sleep(600)


def left_to_another(place, work, *args, server=ALICE, uid=MALLORY, reasons=("proof-failed",)):
    victim = Server(place, uid=server, SLUICE_LOG="debug")
    job = Job(work, victim.port, *args, uid=uid)
    port = job.told() if "exec" not in args else None
    if port is None:
        common.until(lambda: victim.seen(), "nobody connects", 5)
        port = next(iter(victim.seen()))

    def tried():
        with contextlib.suppress(Failure):
            return victim.connection(port)["reason"] in reasons
    common.until(tried, f"not on TCP for {reasons}: {victim.log()[-300:]}", 3)
    must_be_on_tcp(victim.connection(port), *reasons)
    nothing(job.done(), "Challenge", "Claim")
    victim.end()


# Server and attacker; what a server says that may look at the holder, and one that may not.
PAIRS = ((ALICE, MALLORY), (ALICE, ALICE), (0, MALLORY))


def a_name_left_to_a_child(place):
    for server, uid in PAIRS:
        left_to_another(place, listens_and_leaves, "fork", server=server, uid=uid)


def a_name_left_over_exec_with_other_rights(place):
    """Of the set-group-ID program nobody may see what it holds, but who has listened is it, by the kernel's word."""
    if os.statvfs(place.dir).f_flag & os.ST_NOSUID:
        raise Skip(f"{place.dir} is mounted nosuid")
    helper = shutil.copy(place.victim, f"{place.dir}/other-group")
    os.chown(helper, 0, BOB)
    os.chmod(helper, 0o2755)
    for server, uid in PAIRS:
        left_to_another(place, listens_and_leaves, "exec", helper, server=server, uid=uid, reasons=("proof-failed", "peer-hidden"))


def a_name_listened_at_twice(place):
    """By another process of the user the second time: the kernel names that one. Of one user it has to show the connection."""
    for server, uid in ((ALICE, ALICE), (0, MALLORY)):
        left_to_another(place, listens_and_leaves, "again", server=server, uid=uid)


def an_accepted_socket_passed_on(place):
    for server, uid in PAIRS:
        left_to_another(place, listens_and_leaves, "passed", server=server, uid=uid)


def a_connected_socket_passed_on(place):
    for server, uid in PAIRS:
        left_to_another(place, connects_and_leaves, server=server, uid=uid)


def a_process_with_the_number_of_another(place):
    """Whoever came to the name has died, and its number is a holder's or not: in a namespace of pids, with the victims in it."""
    def inside(job):
        kernel.private_mounts()
        kernel.mount_proc()
        job.tell("in")
        victim = Server(place, uid=ALICE, SLUICE_LOG="debug")
        client = Client(place, victim.port, uid=ALICE, library=None)
        out = Loot()

        def visit_and_die(child):
            s = peer.connect_name(client.inode, 2, None)
            peer.send(s, Record("Challenge", nonce=peer.nonce()))
            os.set_inheritable(s.fileno(), True)
            socket.send_fds(child.pipe, [b"s"], [s.fileno()])

        first = Job(visit_and_die, uid=ALICE)

        def nudge():
            client.go()
            client.round()
            return select.select([first.pipe], [], [], 0)[0]

        common.until(nudge, "nobody listens at the name", 5)
        _, (number,), _, _ = socket.recv_fds(first.pipe, 16, 1)
        pid = first.pid
        first.end()
        way = socket.socket(fileno=number)
        claim = out.note(peer.receive(way, 2, lambda: (client.go(), client.round())))

        with open("/proc/sys/kernel/ns_last_pid", "w") as f:
            f.write(str(pid - 1))
        again = Job(lambda child: peer.send(way, Record("Claim", nonce=peer.nonce(), echo=claim.nonce)), uid=ALICE)
        if again.pid != pid:
            again.end()
            return "skip", f"number {again.pid} instead of {pid}"
        again.finish()
        client.rounds()
        with contextlib.suppress(Gone):
            out.streams += out.note(peer.receive(way, 0.2)).kind == "Reply"
        must_be_on_tcp(victim.connection(client.port), "proof-failed", "no-answer")
        client.end()
        victim.end()
        return "loot", out

    def outside(job):
        kernel.unshare(kernel.NEWPID | kernel.NEWNS)
        return kernel.in_pid_namespace(job, inside)

    kind, what = Job(outside).finish(30)
    if kind == "skip":
        raise Skip(what)
    nothing(what, "Claim")


# --- a process that holds an O_PATH descriptor of the socket, not the socket ---

def holds_a_name_only(job, key, path_fd, decoy=None):
    """Squats, and claims the connection by an O_PATH descriptor, which a thread swaps with a socket that may be used, if there is one."""
    number = os.dup(path_fd)
    if decoy is not None:
        def swap():
            while True:
                os.dup2(decoy, number)
                os.dup2(path_fd, number)
        threading.Thread(target=swap, daemon=True).start()
    return squat(job, key, descriptor=number)


def a_descriptor_that_is_a_name_only(place):
    """And the same number a socket at one moment, and that name at the next."""
    seen = 0
    for swaps in (False, True):
        for _ in range(4 if swaps else 1):
            with stage(place, ALICE, ALICE) as s:
                path_fd = os.open(f"/proc/{s.client.pid}/fd/{descriptor_of(s.client.pid, s.key)}", os.O_PATH)
                decoy = socket.create_connection(("127.0.0.1", s.server.port))
                job = s.attack(holds_a_name_only, s.key, path_fd, decoy.fileno() if swaps else None, uid=ALICE)
                os.close(path_fd)
                s.rounds("proof-failed")
                loot = job.done()
                decoy.close()
                nothing(loot, "Challenge", "Claim")
                seen += loot.heard.count("Challenge")
                s.whole()
    if not seen:
        raise Failure("nobody came to the name: nothing is tested")


def descriptor_of(pid, inode):
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{number}") == f"socket:[{inode}]":
                return int(number)
    raise Failure(f"{pid} does not hold socket {inode}")


# --- users that are not what they seem ---

def everybody_else_is_nobody(place):
    """In a user namespace all others have one number, and it proves nothing."""
    def enter():
        kernel.become(ALICE)
        kernel.unshare(kernel.NEWUSER)
    for uid in (MALLORY, NOBODY):
        with stage(place, None, BOB, server_kw={"prepare": enter}) as s:
            job = s.attack(squat, s.key, uid=uid)
            s.rounds("peer-owner", of="server")
            nothing(job.done())
            s.whole()
    with stage(place, None, BOB, server_kw={"prepare": enter}) as s:
        s.client.rounds()
        must_be_on_tcp(s.server.connection(s.client.port), "peer-owner")
        s.whole()


def a_real_nobody_is_somebody(place):
    for server, client in ((ALICE, NOBODY), (NOBODY, NOBODY), (NOBODY, 0)):
        with stage(place, server, client) as s:
            s.linked()


def real_and_effective_users_differ(place):
    """The effective one counts."""
    for ids in ((ALICE, BOB), (0, BOB), (BOB, 0)):
        for role in ("server_kw", "client_kw"):
            with stage(place, None, None, **{role: {"ids": ids}}) as s:
                s.linked()


def a_connection_that_was_given_away(place):
    """By fchown, as only root can: its owner is another than who uses it."""
    with stage(place, ALICE, BOB) as s:
        give_away(s.client.pid, descriptor_of(s.client.pid, s.key), MALLORY)
        job = s.attack(visit, s.key, uid=NOBODY)
        s.rounds("peer-owner", "no-answer", "name-taken")
        nothing(job.done())
        s.whole()


def give_away(pid, number, uid):
    pidfd = os.pidfd_open(pid)
    fd = kernel.call("syscall", 438, pidfd, number, 0)      # pidfd_getfd
    os.fchown(fd, uid, -1)
    os.close(fd)
    os.close(pidfd)


def credentials_queued_early(place):
    """A Claim that was sent before anything was asked."""
    for uid in (MALLORY, ALICE):
        for kw in ({"client_kw": {"library": None}}, {}):
            visited(place, uid=uid, server=ALICE, client=ALICE, told=("Claim",), attack={"early": True}, **kw)


def says_it_late(job, port, how):
    """Holds the connection, and repeats another nonce than it was told: as one does who was asked in another meeting."""
    c = peer.Connection(port)
    job.tell(c.own_port)
    loot = Loot()
    wrong = {"echo": (1, 2)}
    try:
        if how in ("Grant", "Joined"):
            meeting = peer.First(c.key, c)
            meeting.all().begin()
            second = peer.Connection(port)
            job.tell(second.own_port)
            over = peer.Over(meeting, second, kernel.inode_of(port, second.own_port))
            if how == "Grant":
                second.provoke()
                over.listen("Ask")
                over.arena.lend(over.index)
                over.send_grant(**wrong)
                over.listen("Joined", 0.5)
            else:
                over.send_ask()
                second.provoke()
                over.listen("Grant")
                over.arena.lend(over.heard.index)
                over.send_joined(index=over.heard.index, **wrong)
                # It is sealed: nothing comes by it.
                over.index = over.heard.index
                stream = over.stream()
                common.until(lambda: stream.arena.word(stream.rx) >> 63, "the stream is not sealed", 3)
                raise Gone("sealed")
        else:
            m = (peer.First if how == "first" else peer.Second)(c.key, c)
            if how == "first":
                m.bind()
                c.provoke()
                m.meet()
            else:
                m.meet()
                m.challenge()
            m.prove(**wrong)
    except Gone:
        return loot
    loot.streams += 1
    return loot


def a_nonce_that_was_not_drawn_for_this(place):
    for server, uid in PAIRS:
        for how in ("first", "second", "Grant", "Joined"):
            victim = Server(place, uid=server)
            job = Job(says_it_late, victim.port, how, uid=uid)
            job.told()
            nothing(job.finish())
            victim.end()


# --- what the host hides ---

def in_mounts_of_its_own(prepare):
    def run():
        kernel.unshare(kernel.NEWNS)
        kernel.private_mounts()
        prepare()
    return run


def proc_that_hides_others(place):
    """hidepid=2: of one's own user one sees what one needs, of others nothing is needed."""
    hide = in_mounts_of_its_own(lambda: kernel.mount_proc(b"hidepid=2"))
    for server, client in ((ALICE, ALICE), (ALICE, BOB), (0, BOB)):
        with stage(place, server, client, server_kw={"prepare": hide}, client_kw={"prepare": hide}) as s:
            s.linked()
    squatted(place, work=hidden(squat), uid=ALICE, server=ALICE, client=ALICE, told=("Challenge",), reasons=("peer-hidden",),
             server_kw={"prepare": hide}, client_kw={"prepare": hide})


def no_proc(place):
    """Nothing of one's own user can be looked at; of others nothing has to be."""
    cover = in_mounts_of_its_own(lambda: kernel.call("mount", b"none", b"/proc", b"tmpfs", 0, None))
    with stage(place, ALICE, ALICE, server_kw={"prepare": cover}, client_kw={"prepare": cover}) as s:
        s.rounds("peer-hidden", "proc-missing", "no-answer")
        s.whole()
    squatted(place, uid=ALICE, server=ALICE, client=ALICE, told=("Challenge",), reasons=("peer-hidden", "proc-missing", "no-answer"),
             server_kw={"prepare": cover}, client_kw={"prepare": cover})


def netlink_refused(place):
    """By a filter, to the end that has threads (another stays on TCP as it does not try what may be fatal): /proc/net/tcp says the same."""
    def refuse():
        kernel.refuse_system_call(kernel.socket_call_number(), 0, socket.AF_NETLINK, 97)
    with stage(place, ALICE, BOB, server_kw={"prepare": refuse}) as s:
        s.linked()
    for server, client in ((ALICE, BOB), (ALICE, ALICE)):
        squatted(place, reasons=("peer-owner",), server=server, client=client, server_kw={"prepare": refuse}, attack=RELAY)
    squatted(place, uid=ALICE, server=ALICE, client=ALICE, told=("Challenge", "Claim"), reasons=("proof-failed",),
             server_kw={"prepare": refuse})


def sibling_namespaces_of_pids(place):
    """Of one user, neither sees the other: on TCP, and it says so."""
    def inside(job, work):
        kernel.private_mounts()
        kernel.mount_proc()
        job.tell("in")
        return work(job)

    def outside(work):
        def run(job):
            kernel.unshare(kernel.NEWPID | kernel.NEWNS)
            return kernel.in_pid_namespace(job, inside, work)
        return run

    def serve(job):
        server = Server(place, uid=ALICE)
        job.tell(server.port)
        port = job.hear()
        c = server.connection(port)
        server.end()
        return c

    def connect(job):
        client = Client(place, job.hear(), uid=ALICE)
        job.tell(client.port)
        client.rounds()
        c = client.connection()
        job.tell("moved")
        job.hear()
        client.end()
        return c

    a, b = Job(outside(serve)), Job(outside(connect))
    a.told(), b.told()
    b.say(a.told())
    port = b.told()
    b.told()
    a.say(port)
    must_be_on_tcp(a.finish(), "peer-hidden", "no-answer")
    b.say("done")
    must_be_on_tcp(b.finish(), "peer-hidden", "no-answer")


# --- over links that the attacker has with both ---

def relays_questions(job, ports, target, claims):
    """Has a link with each of two servers, by a connection of its own with each. What one asks of a third connection the other is asked,
    and its answers go back. `target`: of that connection, what the two call it."""
    loot = Loot()
    links = []
    for port in ports:
        c = peer.Connection(port)
        meeting = peer.First(c.key, c)
        meeting.all().begin()
        links.append(meeting)
    job.tell("ready")
    sockets = {m.socket: m for m in links}
    while not job.is_over():
        for s in select.select(list(sockets), [], [], 0.02)[0]:
            record = peer.receive(s, 0)
            if record.kind not in ("Ask", "Grant", "Joined"):
                continue
            if record.kind != "Joined" and record.token[0] != target:
                continue
            loot.note(record)
            other = next(o for o in sockets if o is not s)
            if record.kind == "Grant" or claims and record.kind == "Ask":
                sockets[other].arena.lend(record.index or 2)
            if claims and record.kind == "Ask":
                # Without the other: any number of a descriptor.
                peer.send(s, Record("Grant", token=(target, claims), nonce=peer.nonce(), echo=record.nonce, index=2, fd=0))
            else:
                peer.send(other, record)
            loot.streams += record.kind == "Joined"
    return loot


def mitm_over_links(place):
    """Who has a link with each of the two answers for a connection between them."""
    for server, uid in ((ALICE, ALICE), (ALICE, MALLORY), (0, MALLORY)):
        for claims in (False, True):
            a, b = (Server(place, uid=server, SLUICE_LOG="debug") for _ in "ab")
            port, inode = a.dial(b.port)
            far = kernel.inode_of(b.port, port)
            # Nobody is to come to the name before the questions are answered.
            name = Job(lambda job: squat(job, inode), uid=NOBODY)
            name.told()
            job = Job(relays_questions, (a.port, b.port), inode, far if claims else 0, uid=uid)
            if job.told() != "ready":
                raise Failure("no links")
            a.go()
            sent = a.round()
            for end, kw in ((a, {"local": port}), (b, {"peer": port})):
                must_be_on_tcp(stat(end.pid, **kw), "proof-failed", "peer-owner", "no-answer", "name-taken", "meeting")
            loot = job.done()
            name.end()
            if uid != server:
                nothing(loot)
            elif "Ask" not in loot.heard:
                raise Failure("nobody has asked: nothing is tested")
            elif loot.streams:
                raise Failure(f"a relay was given {loot.streams} streams")
            a.go()
            sent = a.round()
            if b.seen().get(port) != sent[:2]:
                raise Failure("other bytes have come")
            a.end()
            b.end()


def asks_about_others(job, port, sockets):
    """Has a link with a server, and asks it for sockets that are none of its connection's: the
    answers."""
    c = peer.Connection(port)
    meeting = peer.First(c.key, c)
    meeting.all().begin()
    answers = []
    for key, mirror in sockets:
        peer.Over(meeting, c, mirror).send_ask(token=(key, key))
        while (record := peer.receive(meeting.socket, nudge=c.provoke)).kind not in ("NotMine", "Decline", "Grant"):
            pass
        answers.append((record.kind, record.reason))
    return answers


def a_question_about_others(place):
    """Of a connection that is another's a peer is told no more than of one that is not there:
    neither whose it is nor why it is on TCP."""
    for server in (ALICE, 0):
        a, b = (Server(place, uid=server) for _ in "ab")
        port, inode = a.dial(b.port)
        far = kernel.inode_of(b.port, port)
        sockets = [(inode, far), (inode, 1), (far, inode)]
        # Not used yet, and used.
        answers = Job(asks_about_others, b.port, sockets, uid=MALLORY).finish()
        a.go()
        a.round()
        answers += Job(asks_about_others, b.port, sockets, uid=MALLORY).finish()
        if set(answers) != {("NotMine", 0)}:
            raise Failure(f"a stranger was told {answers}")
        a.end()
        b.end()


TESTS = [mitm_as_another_user, mitm_as_another_user_visits, mitm_as_the_same_user,
         visitor_as_the_same_user, mitm_in_a_sandbox, mitm_that_may_not_be_looked_at,
         mitm_over_links, a_question_about_others, a_name_left_to_a_child,
         a_name_left_over_exec_with_other_rights, a_name_listened_at_twice,
         an_accepted_socket_passed_on, a_connected_socket_passed_on,
         a_process_with_the_number_of_another, a_descriptor_that_is_a_name_only,
         everybody_else_is_nobody, a_real_nobody_is_somebody, real_and_effective_users_differ,
         a_connection_that_was_given_away, credentials_queued_early,
         a_nonce_that_was_not_drawn_for_this, proc_that_hides_others, no_proc, netlink_refused,
         sibling_namespaces_of_pids]
