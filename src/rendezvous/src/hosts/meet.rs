//! Meetings over a link between two hosts: asking, granting, proving.

use super::{ASK_NS, ASKED, Asked, DIAL_NS, Hosts, Question, SEEKS, Seek, full, said};
use crate::hosts::proof::Known;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_fabric::verbs::cm::Key;
use sluice_runtime::address;
use sluice_sockets::socket::{self, Socket, role};
use sluice_sockets::{jobs, path, upgrade};
use sluice_stats::Reason;
use sluice_stream::PeerFault;
use sluice_stream::record::{Nonce, Role};
use sluice_stream::wire::{Berth, Meeting, Proof};
use sluice_transport::verbs::endpoint::{Endpoint, Lost, Offered};

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// It is granted or denied.
    Answered,
    /// Its proof fails, so it says nothing of the connection.
    Unproved,
    /// There is no room for a ring yet.
    Later,
}

impl Hosts {
    /// Answers a question about the connection.
    pub(crate) fn grant(&mut self, seek: Seek, question: &Question) -> Granted {
        let Some(up) = self.up(question.key).filter(|up| !up.lost) else {
            return Granted::Unproved;
        };
        let (endpoint, salt) = (up.endpoint, up.salt);
        let decided = self.open_granted(endpoint, salt, &seek, question);
        match decided {
            Ok(grant) => {
                endpoint.with(|pump| pump.meet(grant));
            }
            // The other end's own question may still come.
            Err(Reason::ProofFailed) => {
                self.deny(question.key, seek.connection, Reason::ProofFailed);
                return Granted::Unproved;
            }
            Err(Reason::MemoryLimit) if sys::now_ns() < question.until => {
                self.wants_room();
                return Granted::Later;
            }
            Err(reason) => {
                seek.stays(reason);
                self.deny(question.key, seek.connection, reason);
            }
        }
        self.listens
            .retain(|l| !core::ptr::eq(l.seek.sock, seek.sock));
        Granted::Answered
    }

    pub(crate) fn open_granted(
        &self,
        endpoint: &'static Endpoint,
        [a, b]: [Proof; 2],
        seek: &Seek,
        question: &Question,
    ) -> Result<Meeting, Reason> {
        let (sock, known) = (seek.sock, question.known);
        let failed = Reason::ProofFailed;
        if !known.verify(sock, &[&a, &b, &question.said()], &question.proof) {
            return Err(failed);
        }
        let [near, _] = endpoint.links().ok_or(Reason::LinkLost)?;
        let owner = core::ptr::from_ref(seek.sock) as usize;
        let ours = endpoint
            .offer(upgrade::far_ring_len(near, sock), owner)
            .map_err(full)?;
        let grant = |proof| Meeting::Grant {
            connection: seek.connection,
            berth: ours.into(),
            proof,
        };
        let said = said(grant([0; 16]));
        let proof = known.prove(sock, &[&a, &b, &question.proof, &said]);
        let secret = known.secret(sock, &[&a, &b, &question.proof, &said]);
        let (Some(proof), Some(secret)) = (proof, secret) else {
            endpoint.withdraw(ours.stream);
            return Err(failed);
        };
        self.open(
            endpoint,
            seek,
            ours,
            question.berth.into(),
            (Role::Second, secret),
        )?;
        Ok(grant(proof))
    }

    /// Opens the stream and attaches it to the socket.
    pub fn open(
        &self,
        endpoint: &'static Endpoint,
        seek: &Seek,
        ours: Offered,
        theirs: Offered,
        terms: (Role, Nonce),
    ) -> Result<(), Reason> {
        let [near, _] = endpoint.links().ok_or(Reason::LinkLost)?;
        let owner = core::ptr::from_ref(seek.sock) as usize;
        let read = seek.sock.rx.kernel_bytes();
        let (role, _) = terms;
        let known = (read, path::of(seek.sock));
        let opened = endpoint.open(ours, theirs, terms, known, owner);
        opened.map_err(full)?;
        let index = u32::from(ours.stream);
        let attached = upgrade::attach(seek.sock, seek.generation, near, index);
        if attached.is_err() {
            near.leave_stream(index);
            match role {
                // The other end has opened the stream, so this one must leave it.
                Role::First => endpoint.leave(ours.stream),
                // The other end has not opened the stream, and will not be told to.
                Role::Second => endpoint.discard(ours.stream),
            }
        }
        attached
    }

    pub(crate) fn ask_or_dial(&mut self, seek: Seek) {
        let host = seek.peer.ip();
        let known: Vec<Key> = self.standing(host).take(ASKED).map(|up| up.key).collect();
        let (mut asked, mut no_room) = (false, None);
        for key in known {
            match self.ask(seek, key, ASK_NS) {
                Ok(()) => asked = true,
                Err(Some(Reason::MemoryLimit)) => return self.waits_for_room(seek, key),
                Err(reason) => no_room = no_room.or(reason),
            }
        }
        if !asked {
            // The other end may be in a process of that host with which there is no link yet.
            self.dial(seek, no_room);
        }
    }

    /// Asks the process at the other end of a link for the connection.
    ///
    /// # Errors
    /// Why no ring can be offered. `None`: the link is gone, or this end can prove nothing yet.
    pub fn ask(&mut self, seek: Seek, key: Key, patience: u64) -> Result<(), Option<Reason>> {
        let up = self
            .up(key)
            .filter(|up| up.stands && !up.lost)
            .ok_or(None)?;
        let [near, _] = up.endpoint.links().ok_or(None)?;
        let known = Known::of(seek.sock).ok_or(None)?;
        let owner = core::ptr::from_ref(seek.sock) as usize;
        let offered = up
            .endpoint
            .offer(upgrade::far_ring_len(near, seek.sock), owner);
        let ours = offered.map_err(|errno| (errno != libc::ENOTCONN).then(|| full(errno)))?;
        let ask = |proof| Meeting::Ask {
            connection: seek.connection,
            berth: ours.into(),
            known: known.emit(),
            proof,
        };
        let [a, b] = up.salt;
        let Some(proof) = known.prove(seek.sock, &[&a, &b, &said(ask([0; 16]))]) else {
            up.endpoint.withdraw(ours.stream);
            return Err(None);
        };
        up.endpoint.with(|pump| pump.meet(ask(proof)));
        self.asked.push(Asked {
            key,
            seek,
            ours,
            known,
            proof,
            late: false,
            until: sys::now_ns() + patience,
        });
        Ok(())
    }

    pub(crate) fn on_meeting(&mut self, key: Key, meeting: Meeting) {
        match meeting {
            Meeting::Ask {
                connection,
                berth,
                known,
                proof,
            } => {
                let mut question = Question {
                    key,
                    connection,
                    berth,
                    known: Known::heard(known),
                    proof,
                    until: sys::now_ns() + DIAL_NS,
                    finds_no_room: false,
                };
                if !question.known.is_enough() {
                    // The other end asks again when it can prove more.
                    return self.deny(key, connection, Reason::Meeting);
                }
                // Questions about one connection are answered in their order.
                let asks = |q: &Question| q.key == key && q.connection == connection;
                let is_first = !self.questions.iter().any(asks);
                match self.sought(connection).filter(|_| is_first) {
                    Some(seek) if question.known.is_reached(seek.sock) => {
                        match self.grant(seek, &question) {
                            Granted::Later if self.keeps_question(key) => {
                                question.finds_no_room = true;
                                self.questions.push(question);
                            }
                            Granted::Later => self.deny(key, connection, Reason::MemoryLimit),
                            Granted::Answered | Granted::Unproved => {}
                        }
                    }
                    _ => match declines(connection) {
                        Some(reason) => self.deny(key, connection, reason),
                        None if self.keeps_question(key) => self.questions.push(question),
                        None => self.deny(key, connection, Reason::Meeting),
                    },
                }
            }
            Meeting::Grant {
                connection,
                berth,
                proof,
            } => self.on_grant(key, connection, berth, proof),
            Meeting::Deny { connection, reason } => {
                if let Some(asked) = self.take_asked(key, connection) {
                    self.withdraw(&asked);
                    if !asked.late {
                        let told = Reason::from_u16(reason).unwrap_or(Reason::NoAnswer);
                        asked.seek.stays_for_peer(told);
                    }
                }
            }
        }
    }

    /// True if one more question of the link may be kept. A link may have more than half of the
    /// places only if no other link has any.
    fn keeps_question(&self, key: Key) -> bool {
        let own = self.questions.iter().filter(|q| q.key == key).count();
        let all = self.questions.len();
        all < SEEKS && (own < SEEKS / 2 || own == all)
    }

    /// The connection of this number, if this end has come to an offset with it and may have a
    /// stream.
    pub(crate) fn sought(&self, connection: u64) -> Option<Seek> {
        let listens = self.listens.iter().map(|l| l.seek);
        let found = listens
            .into_iter()
            .find(|seek| seek.connection == connection);
        if let Some(seek) = found {
            return seek.is_open().then_some(seek);
        }
        let (sock, generation) = connecting(connection)?;
        let fd = sock.fd.load(Ordering::Relaxed);
        let seek = Seek {
            sock,
            generation,
            connection,
            local: address::plain(address::name(fd, false)?),
            peer: address::plain(address::name(fd, true)?),
        };
        seek.is_open().then_some(seek)
    }

    /// Declines a question over a link.
    pub(crate) fn deny(&self, key: Key, connection: u64, reason: Reason) {
        if let Some(up) = self.up(key) {
            let reason = reason as u16;
            let deny = Meeting::Deny { connection, reason };
            up.endpoint.with(|pump| pump.meet(deny));
        }
    }

    /// Answers the questions for which this end has read enough by now.
    pub(crate) fn look_at_questions(&mut self) {
        let mut at = 0;
        while let Some(question) = self.questions.get(at) {
            if question.finds_no_room && !self.room.has_looked() {
                at += 1;
                continue;
            }
            let seek = self.sought(question.connection);
            let seek = seek.filter(|seek| question.known.is_reached(seek.sock));
            match seek {
                Some(seek) => {
                    // The order of the others stays: see `take_asked`.
                    let mut question = self.questions.remove(at);
                    if self.grant(seek, &question) == Granted::Later {
                        question.finds_no_room = true;
                        self.questions.insert(at, question);
                        at += 1;
                    }
                }
                None => at += 1,
            }
        }
    }

    /// Takes out the oldest question about the connection: the other end answers those about one
    /// connection in the order in which they were asked.
    pub(crate) fn take_asked(&mut self, key: Key, connection: u64) -> Option<Asked> {
        let is = |a: &Asked| a.key == key && a.seek.connection == connection;
        let at = self.asked.iter().position(is)?;
        Some(self.asked.remove(at))
    }

    pub(crate) fn on_grant(&mut self, key: Key, connection: u64, berth: Berth, proof: Proof) {
        let Some(up) = self.up(key) else {
            return;
        };
        let (endpoint, [a, b]) = (up.endpoint, up.salt);
        let Some(asked) = self.take_asked(key, connection) else {
            return endpoint.lose(Lost::Peer(PeerFault::Malformed.into()));
        };
        let Asked {
            seek, ours, known, ..
        } = asked;
        let said = said(Meeting::Grant {
            connection,
            berth,
            proof: [0; 16],
        });
        let said = [a.as_slice(), &b, &asked.proof, &said];
        let secret = known.secret(seek.sock, &said);
        let proved = known.verify(seek.sock, &said, &proof);
        // A late answer counts, unless another link has answered first.
        let Some(secret) = secret.filter(|_| proved && seek.is_open()) else {
            // The other end has opened the stream, and must hear that this one has left it.
            let owner = core::ptr::from_ref(seek.sock) as usize;
            let terms = (Role::First, Nonce::new([0; 16]));
            if endpoint
                .open(ours, berth.into(), terms, Default::default(), owner)
                .is_ok()
                && let Some([near, _]) = endpoint.links()
            {
                near.leave_stream(u32::from(ours.stream));
                endpoint.leave(ours.stream);
            }
            if !proved && !asked.late {
                seek.stays(Reason::ProofFailed);
            }
            return;
        };
        let opened = self.open(endpoint, &seek, ours, berth.into(), (Role::First, secret));
        if let Err(reason) = opened {
            return seek.stays(reason);
        }
        // The other end may have left the stream by now.
        jobs::advance(seek.sock);
        // The other questions about the connection need no answer any more.
        for other in self
            .asked
            .iter_mut()
            .filter(|a| core::ptr::eq(a.seek.sock, seek.sock))
        {
            other.late = true;
        }
        self.dials
            .retain(|d| !(core::ptr::eq(d.seek.sock, seek.sock) && d.is_queued()));
    }

    /// Takes back the stream that a question of this end has offered.
    pub fn withdraw(&self, asked: &Asked) {
        if let Some(up) = self.up(asked.key) {
            up.endpoint.withdraw(asked.ours.stream);
        }
    }
}

/// The socket of this process that has made the connection of this number, with its generation.
fn connecting(connection: u64) -> Option<(&'static Socket, u32)> {
    let mut known = None;
    socket::for_all(|sock| {
        let generation = sock.generation.load(Ordering::Acquire);
        if sock.key.load(Ordering::Relaxed) == connection
            && sock.role.load(Ordering::Relaxed) == role::CONNECTING
        {
            known = Some((sock, generation));
        }
    });
    known
}

/// Why the connection of this number has no stream here and gets none soon, if that is known.
fn declines(connection: u64) -> Option<Reason> {
    let (sock, _) = connecting(connection)?;
    let pinned = sock.pinned.load(Ordering::Relaxed);
    if pinned != 0 {
        return Reason::from_u16(pinned as u16);
    }
    sock.is_shared().then_some(Reason::Shared)
}
