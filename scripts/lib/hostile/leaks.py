"""What a peer of another user is told does not tell where anything lies in the victim's memory."""

import contextlib
import select
import time

import common
from common import Failure
from . import peer
from .kernel import Job
from .victims import ALICE, MALLORY, Server

ALWAYS = True
PAGE = 4096


def words_of(data):
    """Its 8-byte words at every fourth byte: those that can be places."""
    view = memoryview(data)
    out = set()
    for start in (0, 4):
        part = view[start:start + (len(data) - start) // 8 * 8].cast("Q")
        out.update(w for w in part if w >= 1 << 16)
    return out


def listens(job, port, kind):
    """A peer to which everything is told, and all that it has heard."""
    c = peer.Connection(port)
    m = kind(c.key, c)
    heard = []
    receive = peer.receive

    def keep(*args, **kw):
        record = receive(*args, **kw)
        heard.append(record.pack())
        return record

    peer.receive = keep
    stream = m.all()
    stream.begin()
    a = m.arena
    # Behaves as a peer that reads large transfers from the other process's memory.
    a.half(stream.rx + 128 + 28, 1)
    seen = set()

    def look():
        seen.update(words_of(bytes(a.bytes[stream.tx:stream.tx + peer.DIRECTION])))
        seen.update(words_of(bytes(a.bytes[stream.rx:stream.rx + peer.DIRECTION])))

    for n in (100, 3000, 60_000):
        stream.write(b"d" * n)
        got = 0
        deadline = time.monotonic() + 3 * common.SLOW
        while got < n and time.monotonic() < deadline:
            look()
            with contextlib.suppress(Failure):
                got += len(stream.read(0.2))
        if got < n:
            raise Failure(f"{got} bytes of {n} came back by the link")
    # Another connection, which is asked for over the link.
    second = peer.Connection(port)
    second.provoke()
    while select.select([m.socket], [], [], 0.1)[0]:
        peer.receive(m.socket, 0)
    look()
    # All but the data.
    seen |= words_of(bytes(a.bytes[:peer.RINGS]))
    for record in heard:
        seen |= words_of(record)
    job.tell((sorted(seen), len(heard)))
    job.hear()


def mappings(pid):
    """[(begin, end, what)] of a process."""
    out = []
    with open(f"/proc/{pid}/maps") as f:
        for line in f:
            words = line.split()
            begin, end = (int(x, 16) for x in words[0].split("-"))
            # Where all processes have it, there is nothing to be told.
            if words[-1] != "[vsyscall]":
                out.append((begin, end, words[-1] if len(words) > 5 else "memory without a name"))
    return out


def _told(place, server_uid, mode, kind):
    server = Server(place, mode, uid=server_uid, SLUICE_DIRECT="4096")
    job = Job(listens, server.port, kind, uid=MALLORY)
    words, records = job.told()
    if not records or len(words) < 4:
        raise Failure(f"only {len(words)} words were seen: nothing is tested")
    maps = mappings(server.pid)
    leaks = [f"{w:#x} in {what}" for w in words for begin, end, what in maps if begin <= w < end]
    job.say("done")
    job.finish()
    server.end()
    if leaks:
        raise Failure(f"{mode}, the peer is the {kind.__name__.lower()} comer: told {'; '.join(leaks)}")


def no_place_in_memory_is_told_to_another_user(place):
    with open("/proc/sys/kernel/randomize_va_space") as f:
        if f.read().strip() == "0":
            raise Failure("places are not random here: nothing is tested")
    for uid in (ALICE, 0):
        for mode in ("threads", "epoll"):
            for kind in (peer.First, peer.Second):
                _told(place, uid, mode, kind)


TESTS = [no_place_in_memory_is_told_to_another_user]
