//! How a link to another host is made: the accepted end dials, the connecting end listens.

use super::meet::Granted;
use super::{
    DEVICE, DIAL_MS, DIAL_NS, Hosts, Listen, Question, SEEKS, Seek, Up, full, tell, token,
};
use crate::hosts::hello::{self, Answer, Request, VERSION};
use crate::hosts::proof::Known;
use core::net::{IpAddr, SocketAddr};
use sluice_fabric::sys;
use sluice_fabric::verbs::cm::{Channel, Event, Id, Key, REJECTED};
use sluice_fabric::verbs::device::Device;
use sluice_runtime::config::config;
use sluice_runtime::{own_fds, subnet};
use sluice_stats::Reason;
use sluice_transport::verbs;
use sluice_transport::verbs::endpoint::Lost;

/// How long after [`DIAL_NS`] an answer to a dial is still taken: the host is busy, not silent.
/// Less than the 4.3 s after which the connection manager of an InfiniBand device retransmits.
const LATE_NS: u64 = 3 * DIAL_NS;
/// Dials under way at once. Others wait for their turn.
const DIALS: usize = 4;
/// Time from an offset of this end to its first dial: the other end reaches the offset, and
/// listens, only when it has read those bytes.
pub(crate) const FIRST_NS: u64 = 5_000_000;
/// Times between dials for which the other end does not listen: loading the libraries may take a
/// while there. A host that has answered before has loaded them, so the first time is left out.
const AGAIN_NS: [u64; 3] = [30_000_000, 100_000_000, 400_000_000];
/// A host that did not answer is not dialled again for a minute, then for two, four, up to an hour.
/// If it has answered before, the first time is a second.
const QUIET_NS: u64 = 60_000_000_000;
const MET_QUIET_NS: u64 = 1_000_000_000;
const QUIET_MOST: u64 = 60 * QUIET_NS;

#[derive(Debug)]
enum Stage {
    /// Waits for its turn.
    Queued,
    Resolving(Id),
    Routing(Id),
    Connecting,
    /// [`DIAL_NS`] is over and no connection waits for it any more, but an answer is still taken.
    Late,
}

#[derive(Debug)]
pub struct Dial {
    key: Key,
    stage: Stage,
    pub seek: Seek,
    /// Why a link to the host that stands already could not be used.
    no_room: Option<Reason>,
    /// The request, if it was sent.
    request: Option<Request>,
    until: u64,
    /// The dial begins at this time.
    pub from: u64,
    /// How often the other end did not listen.
    pub vain: usize,
    /// The second port is dialled: another program may listen at the first.
    second: bool,
    /// An iWARP device, whose ports are those of TCP.
    iwarp: bool,
}

impl Dial {
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.stage, Stage::Queued)
    }

    /// True if an answer is expected within [`DIAL_NS`].
    fn is_under_way(&self) -> bool {
        !self.is_queued() && !self.is_late()
    }

    pub fn is_late(&self) -> bool {
        matches!(self.stage, Stage::Late)
    }

    /// When it ends. One that waits for its turn has no end of its own.
    pub fn ends(&self) -> Option<u64> {
        (!self.is_queued()).then_some(self.until)
    }
}

#[derive(Debug)]
pub struct Quiet {
    host: IpAddr,
    until: u64,
    wait: u64,
}

/// The end of a step. Each has its own time: a delay of this thread is no silence of the host.
fn step_ends() -> u64 {
    sys::now_ns() + DIAL_NS
}

impl Hosts {
    pub fn listen(&mut self, seek: Seek) {
        let asks = |q: &Question| q.connection == seek.connection;
        let reached = |q: &Question| asks(q) && q.known.is_reached(seek.sock);
        while let Some(at) = self.questions.iter().position(reached) {
            let mut question = self.questions.remove(at);
            match self.grant(seek, &question) {
                Granted::Answered => return,
                Granted::Unproved => {}
                Granted::Later => {
                    question.finds_no_room = true;
                    return self.questions.insert(at, question);
                }
            }
        }
        let key = self.key();
        let ip = subnet::mapped(&config().map, seek.local.ip());
        let at = |port| SocketAddr::new(ip, port);
        let [first, second] = hello::ports(seek.local.port());
        let opening = own_fds::Opening::begin();
        let mut id = Id::listen(&self.channel, key, at(first));
        if matches!(id, Err(libc::EADDRINUSE)) {
            id = Id::listen(&self.channel, key, at(second));
        }
        let listening = id.and_then(|id| {
            self.may_use(&id, seek.peer.ip())?;
            Ok(id)
        });
        drop(opening);
        match listening {
            Ok(id) => self.listens.push(Listen {
                key,
                _id: id,
                seek,
                until: sys::now_ns() + DIAL_NS,
            }),
            Err(errno) => {
                tell(&seek, "listen", errno);
                seek.stays(Reason::PeerRemote);
            }
        }
    }

    /// Checks that this process may use the device of an id. A device without immediates is an
    /// iWARP one, whose dial is a TCP connection: only peers that the user has named may get one.
    pub(crate) fn may_use(&mut self, id: &Id, peer: IpAddr) -> Result<(), sys::Errno> {
        let configured = config().peers.iter().any(|subnet| subnet.contains(peer));
        let device = id.device().inspect(|device| self.meet_device(*device));
        let wanted = config().device.as_deref();
        match device {
            Ok(device) if wanted.is_some_and(|name| name != device.name()) => Err(libc::ENODEV),
            Ok(device) if !device.limits.immediate && !configured => Err(libc::EACCES),
            Ok(_) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Enters a new device. librdmacm opens each once and never closes it.
    pub(crate) fn meet_device(&mut self, device: Device) {
        let [commands, _] = device.descriptors();
        let known = |known: &Device| known.descriptors()[0] == commands;
        if !self.devices.iter().any(known) {
            device.rehouse(own_fds::copy);
            let events = device.events();
            if sys::set_nonblocking(events).is_ok() {
                verbs::watch(events, DEVICE, libc::EPOLLIN as u32);
            }
            self.devices.push(device);
        }
    }

    /// Queues a dial. `no_room` is why an existing link to that host could not be used.
    pub fn dial(&mut self, seek: Seek, no_room: Option<Reason>) {
        let now = sys::now_ns();
        let host = seek.peer.ip();
        if self.quiet.iter().any(|q| q.host == host && now < q.until) {
            return seek.stays(no_room.unwrap_or(Reason::NoAnswer));
        }
        let key = self.key();
        self.dials.push(Dial {
            key,
            stage: Stage::Queued,
            seek,
            no_room,
            request: None,
            until: 0,
            from: now + FIRST_NS,
            vain: 0,
            second: false,
            iwarp: false,
        });
    }

    /// Begins queued dials, as many as may be under way. While one to a host is, others to that
    /// host wait for its link.
    pub(crate) fn dial_next(&mut self) {
        let now = sys::now_ns();
        loop {
            let busy: Vec<IpAddr> = self
                .dials
                .iter()
                .filter(|d| d.is_under_way())
                .map(|d| d.seek.peer.ip())
                .collect();
            if busy.len() >= DIALS {
                return;
            }
            let next = self
                .dials
                .iter()
                .position(|d| d.is_queued() && now >= d.from && !busy.contains(&d.seek.peer.ip()));
            let Some(at) = next else { return };
            let mut dial = self.dials.swap_remove(at);
            let Seek { local, peer, .. } = dial.seek;
            let mapped = |ip| subnet::mapped(&config().map, ip);
            let [first, second] = hello::ports(peer.port());
            let port = if dial.second { second } else { first };
            let to = SocketAddr::new(mapped(peer.ip()), port);
            let from = SocketAddr::new(mapped(local.ip()), 0);
            if !dial.seek.is_open() {
                continue;
            }
            dial.until = now + DIAL_NS;
            let opening = own_fds::Opening::begin();
            let dialled = Id::dial(&self.channel, dial.key, Some(from), to, DIAL_MS);
            drop(opening);
            match dialled {
                Ok(id) => {
                    dial.stage = Stage::Resolving(id);
                    self.dials.push(dial);
                }
                Err(errno) => {
                    tell(&dial.seek, "dial", errno);
                    dial.seek.stays(Reason::PeerRemote);
                }
            }
        }
    }

    pub(crate) fn read_channel(&mut self) {
        let next = |channel: &Channel| {
            let _opening = own_fds::Opening::begin();
            channel.next()
        };
        while let Some(event) = next(&self.channel) {
            match event {
                // A key is that of a direct queue pair, or that of a dial or link.
                Event::Resolved(key) if self.is_direct_qp(key) => self.on_direct_qp_resolved(key),
                Event::Routed(key) if self.is_direct_qp(key) => self.on_direct_qp_routed(key),
                Event::Asked(key, id, data) if self.is_direct_qp(key) => {
                    self.on_direct_qp_asked(key, id, &data);
                }
                Event::Established(key, _) if self.is_direct_qp(key) => {
                    self.on_direct_qp_stands(key)
                }
                Event::Refused(key, ..) | Event::Gone(key) if self.is_direct_qp(key) => {
                    self.on_direct_qp_over(key);
                }
                Event::Resolved(key) => self.on_resolved(key),
                Event::Routed(key) => self.on_routed(key),
                Event::Asked(key, id, data) => self.on_asked(key, id, &data),
                Event::Established(key, data) => self.on_established(key, &data),
                Event::Refused(key, event, status, data) => {
                    self.on_refused(key, event, status, &data);
                }
                Event::Gone(key) => self.on_gone(key),
                // For a link this is only a hint (`UNREACHABLE`, `ADDR_CHANGE`); a dial ends with
                // it.
                Event::Other(key, event) => {
                    if self.dials.iter().any(|d| d.key == key) {
                        self.on_refused(key, event, 0, &[]);
                    } else if let Some(up) = self.up(key).filter(|up| up.stands) {
                        up.endpoint.probe();
                    }
                }
            }
        }
    }

    pub(crate) fn take_dial(&mut self, key: Key) -> Option<Dial> {
        let at = self.dials.iter().position(|d| d.key == key)?;
        Some(self.dials.swap_remove(at))
    }

    pub(crate) fn on_resolved(&mut self, key: Key) {
        let Some(mut dial) = self.take_dial(key) else {
            return;
        };
        let Stage::Resolving(id) = dial.stage else {
            return;
        };
        let host = dial.seek.peer.ip();
        match self.may_use(&id, host).and_then(|()| id.route(DIAL_MS)) {
            Ok(()) => {
                dial.iwarp = id.device().is_ok_and(|device| !device.limits.immediate);
                (dial.stage, dial.until) = (Stage::Routing(id), step_ends());
                self.dials.push(dial);
            }
            Err(errno) => {
                tell(&dial.seek, "route", errno);
                dial.seek.stays(Reason::PeerRemote);
                self.dial_next();
            }
        }
    }

    pub(crate) fn on_routed(&mut self, key: Key) {
        let Some(mut dial) = self.take_dial(key) else {
            return;
        };
        let Stage::Routing(id) = dial.stage else {
            return;
        };
        let host = dial.seek.peer.ip();
        let active = id.is_port_active().then_some(()).ok_or(libc::ENETDOWN);
        let raised = active.and_then(|()| self.raise(key, id, [dial.seek.local.ip(), host], false));
        let connected = raised.and_then(|(endpoint, ours)| {
            let known = Known::of(dial.seek.sock).ok_or(libc::EBADMSG)?;
            let mut request = Request {
                version: VERSION,
                known: known.emit(),
                connection: dial.seek.connection,
                token: token(),
                hello: ours,
                proof: [0; 16],
            };
            let proof = known.prove(dial.seek.sock, &[&request.said()]);
            request.proof = proof.ok_or(libc::EBADMSG)?;
            dial.request = Some(request);
            let connected = endpoint.with_id(|id| id.connect(&request.emit()));
            connected.unwrap_or(Err(libc::ENOTCONN))
        });
        match connected {
            Ok(()) | Err(libc::ECONNREFUSED) => {
                (dial.stage, dial.until) = (Stage::Connecting, step_ends());
                self.dials.push(dial);
                if let Err(errno) = connected {
                    // On iWARP the RST of a TCP port where nobody listens fails the call at once.
                    self.on_refused(key, REJECTED, errno, &[]);
                }
            }
            Err(errno) => {
                tell(&dial.seek, "connect", errno);
                self.give_up(key);
                dial.seek.stays(full(errno));
                self.dial_next();
            }
        }
    }

    pub(crate) fn on_asked(&mut self, listener: Key, id: Id, data: &[u8]) {
        let refuse = |id: &Id, reason| {
            let _ = id.refuse(&hello::refusal(reason));
        };
        let Some(at) = self.listens.iter().position(|l| l.key == listener) else {
            return refuse(&id, Reason::PeerClosed);
        };
        let Some(seek) = self.listens.get(at).map(|l| l.seek) else {
            return;
        };
        let request = match Request::parse(data) {
            Ok(request) => request,
            Err(reason) => {
                seek.stays(reason);
                return refuse(&id, reason);
            }
        };
        if request.connection != seek.connection {
            return refuse(&id, Reason::NoAnswer);
        }
        let known = Known::heard(request.known);
        if !known.is_enough() || !known.is_reached(seek.sock) {
            // Too little is proved, or this end has not read as much yet: the other end tries
            // again.
            return refuse(&id, Reason::Meeting);
        }
        if !known.verify(seek.sock, &[&request.said()], &request.proof) {
            seek.stays(Reason::ProofFailed);
            return refuse(&id, Reason::ProofFailed);
        }
        // The other end is there, and asks over a link soon.
        if let Some(listen) = self.listens.get_mut(at) {
            listen.until = sys::now_ns() + DIAL_NS;
        }
        // Two processes have one link for each pair of addresses. If there is one, or soon will be,
        // this end answers over that: the dialling end finds it by the address. Another pair may
        // lead to another device.
        let joined = |up: &Up| {
            let same = request.token != 0 && up.token == Some(request.token);
            // The token is the peer's word, so the addresses must match, too.
            same && !up.lost && up.local == seek.local.ip() && up.host == seek.peer.ip()
        };
        if self.ups.iter().any(joined) {
            return refuse(&id, Reason::Meeting);
        }
        let key = self.key();
        let (endpoint, ours) = match self.raise(key, id, [seek.local.ip(), seek.peer.ip()], true) {
            Ok(raised) => raised,
            Err(errno) => {
                tell(&seek, "answer", errno);
                return seek.stays(full(errno));
            }
        };
        endpoint.heard(request.hello);
        let mut answer = Answer {
            version: VERSION,
            token: token(),
            hello: ours,
            proof: [0; 16],
        };
        let Some(proof) = known.prove(seek.sock, &[&request.proof, &answer.said()]) else {
            return self.give_up(key);
        };
        answer.proof = proof;
        if let Some(up) = self.ups.iter_mut().find(|up| up.key == key) {
            up.salt = [request.proof, answer.proof];
            up.token = Some(request.token);
        }
        let accepted = endpoint.with_id(|id| id.accept(&answer.emit()));
        if accepted != Some(Ok(())) {
            self.give_up(key);
        }
    }

    pub(crate) fn on_established(&mut self, key: Key, data: &[u8]) {
        let dial = self.take_dial(key);
        let Some(up) = self.ups.iter_mut().find(|up| up.key == key) else {
            return;
        };
        if let Some(Dial { seek, request, .. }) = dial {
            let answer = Answer::parse(data).and_then(|answer| {
                let failed = Reason::ProofFailed;
                let request = request.ok_or(failed)?;
                let known = Known::heard(request.known).turned();
                let said = [request.proof.as_slice(), &answer.said()];
                let proved = known.verify(seek.sock, &said, &answer.proof);
                proved.then_some((request.proof, answer)).ok_or(failed)
            });
            match answer {
                Ok((proof, answer)) => {
                    up.endpoint.heard(answer.hello);
                    (up.salt, up.stands) = ([proof, answer.proof], true);
                    up.token = Some(answer.token);
                    up.endpoint.stands();
                    self.link_stands(key);
                    if seek.is_open()
                        && let Err(Some(reason)) = self.ask(seek, key, DIAL_NS)
                    {
                        seek.stays(reason);
                    }
                }
                Err(reason) => {
                    self.give_up(key);
                    seek.stays(reason);
                }
            }
            self.meets(seek.peer.ip());
        } else {
            up.stands = true;
            up.endpoint.stands();
            self.link_stands(key);
        }
        self.dial_next();
    }

    pub(crate) fn on_refused(&mut self, key: Key, event: u32, status: i32, data: &[u8]) {
        self.give_up(key);
        if let Some(mut dial) = self.take_dial(key) {
            let reason = hello::refused(data);
            tell(&dial.seek, "refused", status);
            // Nobody listens, or not yet: the other end reaches the offset when it reads the bytes
            // that brought this end there.
            let early = matches!(reason, Reason::NoAnswer | Reason::Meeting);
            let host = dial.seek.peer.ip();
            let wait = AGAIN_NS.get(dial.vain + usize::from(self.met.contains(&host)));
            // The second port is dialled at once after the first. On iWARP, where any TCP program
            // may listen at the first, only after a refusal that says so, or as the last try. A
            // refusal as too early comes from the right port.
            let turns = !dial.iwarp || hello::is_for_another(data) || wait.is_none();
            let turns = !dial.second && reason == Reason::NoAnswer && turns;
            let wait = if turns { Some(&0) } else { wait };
            let another = |d: &Dial| !d.is_late() && d.seek.is(&dial.seek);
            let sought = dial.is_late() && self.dials.iter().any(another);
            let again =
                wait.filter(|_| event == REJECTED && early && dial.seek.is_open() && !sought);
            if let Some(wait) = again {
                let from = sys::now_ns() + wait;
                (dial.key, dial.stage) = (self.key(), Stage::Queued);
                dial.from = from;
                dial.vain += usize::from(!turns);
                dial.second = turns || dial.second && reason == Reason::Meeting;
                self.dials.push(dial);
            } else {
                if event == REJECTED {
                    self.meets(host);
                }
                if dial.seek.is_open() && !sought {
                    match dial.no_room.filter(|_| early) {
                        Some(reason) => dial.seek.stays(reason),
                        None => dial.seek.stays_for_peer(reason),
                    }
                }
            }
        }
        self.dial_next();
    }

    /// Ends dials that nobody has answered in time. If the other process is short of CPU its answer
    /// may come late. It is still taken, so that the host need not stay unused for a minute.
    pub(crate) fn expire_dials(&mut self, now: u64) {
        let is_over = |d: &mut Dial| d.ends().is_some_and(|at| now >= at);
        let over: Vec<Dial> = self.dials.extract_if(.., is_over).collect();
        for mut dial in over {
            let (key, host) = (dial.key, dial.seek.peer.ip());
            if dial.is_late() {
                self.give_up(key);
                continue;
            }
            dial.seek.stays(Reason::NoAnswer);
            if dial.second {
                // Another program may listen there and say nothing; the host answered at the first
                // port.
                self.meets(host);
                self.give_up(key);
                continue;
            }
            self.keep_quiet(host, now);
            if matches!(dial.stage, Stage::Connecting) {
                (dial.stage, dial.until) = (Stage::Late, now + LATE_NS);
                if let Some(up) = self.ups.iter_mut().find(|up| up.key == key) {
                    up.until = dial.until + DIAL_NS;
                }
                self.dials.push(dial);
            }
        }
    }

    pub(crate) fn on_gone(&mut self, key: Key) {
        if let Some(up) = self.up(key) {
            up.endpoint.lose(Lost::Gone);
        }
    }

    /// The host has answered, perhaps by a refusal.
    pub fn meets(&mut self, host: IpAddr) {
        self.quiet.retain(|q| q.host != host);
        if !self.met.contains(&host) {
            if self.met.len() >= SEEKS {
                self.met.remove(0);
            }
            self.met.push(host);
        }
    }

    /// The host did not answer: ends the dials that wait for their turn there. If the host has
    /// answered before, perhaps an interface is down.
    pub(crate) fn keep_quiet(&mut self, host: IpAddr, now: u64) {
        let first = if self.met.contains(&host) {
            MET_QUIET_NS
        } else {
            QUIET_NS
        };
        let known = self.quiet.iter().position(|q| q.host == host);
        let known = known.map(|at| self.quiet.swap_remove(at));
        let wait = known.map_or(first, |quiet| (quiet.wait * 2).min(QUIET_MOST));
        sluice_runtime::config::log(
            sluice_runtime::config::Level::Debug,
            format_args!(
                "{host} is silent, and left alone for {} s",
                wait / 1_000_000_000
            ),
        );
        self.quiet.push(Quiet {
            host,
            until: now + wait,
            wait,
        });
        let waits = |d: &mut Dial| d.is_queued() && !d.second && d.seek.peer.ip() == host;
        for dial in self.dials.extract_if(.., waits) {
            dial.seek.stays(Reason::NoAnswer);
        }
    }
}
