"""That the peer of these tests is one: as long as it behaves it gets to a link. Otherwise no attack would reach what it attacks."""

import common
from . import peer
from .kernel import Job, inode_of
from .victims import ALICE, MALLORY, Server, by_link

ALWAYS = True
ECHOED = b"over the link" * 100


def behave(job, port, kind):
    """Meets the victim, and sends and gets bytes by the link."""
    c = peer.Connection(port)
    stream = kind(c.key, c).all()
    stream.begin()
    stream.echoed(ECHOED)
    job.tell(c.own_port)
    job.hear()


def linked(server, port, least):
    def moved():
        return by_link(server.connection(port)) >= least
    common.until(moved, f"not accelerated: {server.connection(port)}", 3)


def a_peer_that_behaves_is_linked(place):
    for library in place.libs:
        for mode in ("threads", "epoll"):
            for uid in (0, ALICE):
                server = Server(place, mode, uid=uid, library=library)
                for kind in (peer.First, peer.Second):
                    for who in {uid, MALLORY}:
                        job = Job(behave, server.port, kind, uid=who)
                        linked(server, job.told(), 2 * len(ECHOED))
                        job.say("done")
                        job.finish()
                server.end()


def behave_over_the_link(job, port, asks):
    """The same with a second connection, which is asked for over the link of the first."""
    first = peer.Connection(port)
    meeting = peer.First(first.key, first)
    meeting.all().begin()
    second = peer.Connection(port)
    over = peer.Over(meeting, second, inode_of(port, second.own_port))
    stream = over.ask() if asks else over.answer()
    stream.begin()
    stream.echoed(ECHOED)
    job.tell(second.own_port)
    job.hear()


def a_second_connection_is_met_over_the_link(place):
    """The peer asks, and is asked."""
    for uid, who in ((ALICE, ALICE), (ALICE, MALLORY), (0, MALLORY)):
        for asks in (True, False):
            server = Server(place, uid=uid)
            job = Job(behave_over_the_link, server.port, asks, uid=who)
            linked(server, job.told(), 2 * len(ECHOED))
            job.say("done")
            job.finish()
            server.end()


TESTS = [a_peer_that_behaves_is_linked, a_second_connection_is_met_over_the_link]
