//! Other hosts: who dials, who listens, and what is asked over links that there are.
//!
//! ```text
//!   accepted end                                       connecting end
//!   has come to an offset                              has come to the same offset
//!     a link to that host?  ── Ask ──────────────────► Grant, or the question waits for the socket
//!     none: dial            ── request ──────────────► listens for 1 s on a port made of its TCP port
//!                           ◄── answer: a link ───────
//!                           ── Ask ──────────────────► Grant
//! ```
//!
//! The accepted end dials since that pair of address and port belongs to one process, however many share a listener. All of this
//! is done by the control thread; a hook only says that a connection has come to an offset.

use super::hello::{self, Answer, Request, Token, VERSION};
use super::proof::Known;
use super::stream;
use super::wire::{Hello, Lost, Note, Offered, Wire};
use crate::config::config;
use crate::process;
use crate::rendezvous::{control, diag};
use crate::sockets::sock::{self, Sock, role};
use crate::sockets::{internal, upgrade};
use crate::subnet;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use sluice_fabric::arena::Arena;
use sluice_fabric::lock::Guarded;
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_fabric::verbs::api::{self, Api};
use sluice_fabric::verbs::device::Device;
use sluice_fabric::verbs::cm::{Channel, Event, Id, Key, REJECTED};
use sluice_stats::Reason;
use sluice_stream::PeerFault;
use sluice_stream::record::{Nonce, Role};
use sluice_stream::wire::{Berth, CONTROL_LEN, Control, Meeting, Proof};

/// A dial, and each of its steps, takes so long at most; so long the connecting end listens.
const DIAL_NS: u64 = 1_000_000_000;
const DIAL_MS: i32 = 1000;
/// Dials at once; others wait for theirs.
const DIALS: usize = 4;
/// Connections that listen, or wait, at once.
const SEEKS: usize = 256;
/// Links to one host that are asked.
const ASKED: usize = 4;
/// Whom the links did not answer for so long dials.
const ASK_NS: u64 = 20_000_000;
/// The other end comes to an offset when it reads what has brought this one there: so long later this one dials, and again if
/// nobody listened; the first time with a host also because loading the libraries takes a while.
const FIRST_NS: u64 = 5_000_000;
const AGAIN_NS: [u64; 3] = [30_000_000, 100_000_000, 400_000_000];
/// A host that stayed silent is left alone for a minute, then two, four, up to an hour.
const QUIET_NS: u64 = 60_000_000_000;
const QUIET_MOST: u64 = 60 * QUIET_NS;

/// Between two looks at questions, for which this end is to read more.
const LOOK_NS: u64 = 5_000_000;
/// A process that ends closes its links and its connections in no order of ours, within this time.
const DYING_NS: u64 = 20_000_000;

/// Events of the connection manager's channel; others are of the wire with that key.
const CM: Key = 0;

/// A connection that looks for its other end.
#[derive(Clone, Copy, Debug)]
struct Seek {
    sock: &'static Sock,
    generation: u32,
    connection: u64,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Seek {
    fn is_open(&self) -> bool {
        self.sock.generation.load(Ordering::Acquire) == self.generation
            && self.sock.fds.load(Ordering::Acquire) != 0
            && !self.sock.is_accelerated()
            && self.sock.pinned.load(Ordering::Relaxed) == 0
    }

    fn stays(&self, reason: Reason) {
        if self.sock.generation.load(Ordering::Acquire) == self.generation {
            self.sock.conn().stays(reason);
        }
    }
}

#[derive(Debug)]
struct Listen {
    key: Key,
    /// Dropped with it.
    _id: Id,
    seek: Seek,
    until: u64,
}

#[derive(Debug)]
enum Stage {
    /// Waits for its turn.
    Queued,
    Resolving(Id),
    Routing(Id),
    Connecting(&'static Wire),
}

#[derive(Debug)]
struct Dial {
    key: Key,
    stage: Stage,
    seek: Seek,
    /// What was asked, once it was.
    request: Option<Request>,
    until: u64,
    /// Not before then.
    from: u64,
    /// How often nobody listened.
    vain: usize,
}

/// A question of ours.
#[derive(Debug)]
struct Asked {
    key: Key,
    seek: Seek,
    ours: Offered,
    known: Known,
    proof: Proof,
    until: u64,
    /// Nobody waits for the answer any more; but the stream's number is taken until it comes.
    late: bool,
}

/// One of a peer's, for whose socket this end has not come to an offset.
#[derive(Debug)]
struct Question {
    key: Key,
    connection: u64,
    berth: Berth,
    /// As this end sees it.
    known: Known,
    proof: Proof,
    until: u64,
}

impl Question {
    /// What was asked, as it was proved.
    fn said(&self) -> [u8; CONTROL_LEN] {
        said(Meeting::Ask {
            connection: self.connection,
            berth: self.berth,
            known: self.known.turned().emit(),
            proof: [0; 16],
        })
    }
}

/// A wire in service.
#[derive(Debug)]
struct Up {
    key: Key,
    wire: &'static Wire,
    host: IpAddr,
    /// Of both ends' proofs when it was made: what is proved over it is worth nothing elsewhere.
    salt: [Proof; 2],
    stands: bool,
    lost: bool,
    /// When it must stand; of a lost one, when its streams are told at the latest, 0: they were.
    until: u64,
}

#[derive(Debug)]
struct Quiet {
    host: IpAddr,
    until: u64,
    wait: u64,
}

#[derive(Debug)]
struct Hosts {
    channel: Channel,
    next: Key,
    listens: Vec<Listen>,
    dials: Vec<Dial>,
    asked: Vec<Asked>,
    questions: Vec<Question>,
    ups: Vec<Up>,
    quiet: Vec<Quiet>,
    /// Hosts that have answered, be it by no.
    met: Vec<IpAddr>,
    /// Not in service.
    spare: Vec<&'static Wire>,
    /// Devices that are in use, whose descriptors were put out of the program's way.
    devices: Vec<Device>,
}

static HOSTS: Guarded<Option<Hosts>> = Guarded::new(None);
static USED: AtomicBool = AtomicBool::new(false);

/// Has this process looked for other hosts?
#[inline]
pub fn is_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Has this host a device? Asked once.
fn is_any_device() -> bool {
    const UNKNOWN: u8 = 0;
    static ANY: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANY.load(Ordering::Relaxed) {
        UNKNOWN => {
            let any = api::is_any_device();
            ANY.store(1 + u8::from(any), Ordering::Relaxed);
            any
        }
        known => known == 2,
    }
}

/// The connection `sock`, whose other end is not on this host, has come to an offset: the control thread looks for that end.
///
/// # Errors
/// [`Reason::PeerRemote`]: no device; why there is no control thread.
pub fn attempt(sock: &'static Sock, local: SocketAddr, peer: SocketAddr) -> Result<(), Reason> {
    if !is_any_device() {
        return Err(Reason::PeerRemote);
    }
    control::start()?;
    let connecting = sock.role.load(Ordering::Relaxed) == role::CONNECTING;
    let (first, second) = if connecting {
        (local, peer)
    } else {
        (peer, local)
    };
    let connection = hello::connection(first, second);
    sock.key.store(connection, Ordering::Relaxed);
    USED.store(true, Ordering::Relaxed);
    sock.conn()
        .awaits_after(Reason::BelowThreshold, Reason::Meeting);
    control::seek(sock);
    Ok(())
}

/// By the control thread: looks for the other end.
pub fn begin(sock: &'static Sock, generation: u32) {
    with(|hosts| hosts.begin(sock, generation));
}

fn with<R>(f: impl FnOnce(&mut Hosts) -> R) -> Option<R> {
    let mut hosts = HOSTS.lock()?;
    if hosts.is_none() {
        *hosts = Hosts::new();
    }
    hosts.as_mut().map(f)
}

/// A descriptor has news.
pub fn on_event(what: u64) {
    with(|hosts| {
        if what == CM {
            hosts.read_channel();
        } else if let Some(up) = hosts.ups.iter().find(|up| up.key == what) {
            up.wire.drive();
        }
    });
}

/// Does what is due; in how many ns there is something to do again.
pub fn progress() -> Option<u64> {
    if !is_used() {
        return None;
    }
    with(|hosts| hosts.progress(sys::now_ns())).flatten()
}

/// In the child of a fork: all of it is the parent's. Nothing of the libraries is called; what is open is closed.
pub fn after_fork() {
    if let Some(mut hosts) = HOSTS.lock()
        && let Some(hosts) = hosts.take()
    {
        // As long as one process has them open the kernel keeps what is the parent's.
        let wires = hosts.ups.iter().filter_map(|up| up.wire.descriptor());
        let devices = hosts.devices.iter().flat_map(Device::descriptors);
        let all: Vec<i32> = wires.chain(devices).chain([hosts.channel.descriptor()]).collect();
        for fd in all {
            internal::forget(fd);
            let _ = sys::close(fd);
        }
        core::mem::forget(hosts);
    }
    USED.store(false, Ordering::Relaxed);
}

/// Holds all of it still over a fork.
pub fn hold() {
    HOSTS.hold();
}

/// After the fork, on both sides.
pub fn release_hold() {
    HOSTS.release();
}

fn token() -> Token {
    process::token().map_or(0, |[a, _]| a)
}

/// What a message of a link says, to be proved.
fn said(meeting: Meeting) -> [u8; CONTROL_LEN] {
    Control::Meeting(meeting).emit()
}

impl Hosts {
    fn new() -> Option<Self> {
        let api: &'static Api = api::load()?;
        let channel = Channel::new(api).ok()?;
        channel.rehouse(internal::copy);
        control::watch_remote(channel.descriptor(), CM, libc::EPOLLIN as u32);
        Some(Self {
            channel,
            next: 1,
            listens: Vec::new(),
            dials: Vec::new(),
            asked: Vec::new(),
            questions: Vec::new(),
            ups: Vec::new(),
            quiet: Vec::new(),
            met: Vec::new(),
            spare: Vec::new(),
            devices: Vec::new(),
        })
    }

    fn key(&mut self) -> Key {
        self.next += 1;
        self.next
    }

    fn begin(&mut self, sock: &'static Sock, generation: u32) {
        let fd = sock.fd.load(Ordering::Relaxed);
        let (Some(local), Some(peer)) = (diag::name(fd, false), diag::name(fd, true)) else {
            return;
        };
        let seek = Seek {
            sock,
            generation,
            connection: sock.key.load(Ordering::Relaxed),
            local: diag::plain(local),
            peer: diag::plain(peer),
        };
        if !seek.is_open() || self.is_sought(&seek) {
            return;
        }
        if self.listens.len() + self.dials.len() + self.asked.len() >= SEEKS {
            return seek.stays(Reason::TooManyNames);
        }
        if sock.role.load(Ordering::Relaxed) == role::CONNECTING {
            self.listen(seek);
        } else {
            self.ask_or_dial(seek);
        }
    }

    fn is_sought(&self, seek: &Seek) -> bool {
        let same = |other: &Seek| {
            core::ptr::eq(other.sock, seek.sock) && other.generation == seek.generation
        };
        self.listens.iter().any(|l| same(&l.seek))
            || self.dials.iter().any(|d| same(&d.seek))
            || self.asked.iter().any(|a| !a.late && same(&a.seek))
    }

    // The connecting end.

    fn listen(&mut self, seek: Seek) {
        let asks = |q: &Question| q.connection == seek.connection;
        let asked = self.questions.iter().position(|q| asks(q) && q.known.is_reached(seek.sock));
        if let Some(question) = asked.map(|at| self.questions.swap_remove(at)) {
            return self.grant(seek, &question);
        }
        let key = self.key();
        let ip = subnet::mapped(&config().map, seek.local.ip());
        let at = SocketAddr::new(ip, hello::port(seek.local.port()));
        let listening = Id::listen(&self.channel, key, at).and_then(|id| {
            self.may_use(&id, seek.peer.ip())?;
            Ok(id)
        });
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

    /// A device without immediates is an iWARP one, where a dial is a TCP connection: only to whom that was agreed with.
    fn may_use(&mut self, id: &Id, peer: IpAddr) -> Result<(), sys::Errno> {
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

    /// librdmacm opens a device once, for good.
    fn meet_device(&mut self, device: Device) {
        let [commands, _] = device.descriptors();
        let known = |known: &Device| known.descriptors()[0] == commands;
        if !self.devices.iter().any(known) {
            device.rehouse(internal::copy);
            self.devices.push(device);
        }
    }

    fn grant(&mut self, seek: Seek, question: &Question) {
        let Some(up) = self.ups.iter().find(|up| up.key == question.key && !up.lost) else {
            return;
        };
        let (wire, salt) = (up.wire, up.salt);
        let decided = self.open_granted(wire, salt, &seek, question);
        let meeting = match decided {
            Ok(grant) => grant,
            Err(reason) => {
                seek.stays(reason);
                Meeting::Deny {
                    connection: seek.connection,
                    reason: reason as u16,
                }
            }
        };
        wire.with(|pump| pump.meet(meeting));
        self.listens.retain(|l| !core::ptr::eq(l.seek.sock, seek.sock));
    }

    fn open_granted(
        &self,
        wire: &'static Wire,
        [a, b]: [Proof; 2],
        seek: &Seek,
        question: &Question,
    ) -> Result<Meeting, Reason> {
        let (sock, known) = (seek.sock, question.known);
        let failed = Reason::ProofFailed;
        if !known.verify(sock, &[&a, &b, &question.said()], &question.proof) {
            return Err(failed);
        }
        let [near, _] = wire.links().ok_or(Reason::LinkLost)?;
        let owner = core::ptr::from_ref(seek.sock) as usize;
        let ours = wire.offer(upgrade::ring_len(near), owner).map_err(full)?;
        let grant = |proof| Meeting::Grant {
            connection: seek.connection,
            berth: ours.into(),
            proof,
        };
        let said = said(grant([0; 16]));
        let proof = known.prove(sock, &[&a, &b, &question.proof, &said]);
        let secret = known.secret(sock, &[&a, &b, &question.proof, &said]);
        let (Some(proof), Some(secret)) = (proof, secret) else {
            wire.withdraw(ours.stream);
            return Err(failed);
        };
        self.open(wire, seek, ours, question.berth.into(), (Role::Second, secret))?;
        Ok(grant(proof))
    }

    /// Opens the stream and has the socket use it.
    fn open(
        &self,
        wire: &'static Wire,
        seek: &Seek,
        ours: Offered,
        theirs: Offered,
        terms: (Role, Nonce),
    ) -> Result<(), Reason> {
        let [near, _] = wire.links().ok_or(Reason::LinkLost)?;
        let owner = core::ptr::from_ref(seek.sock) as usize;
        let read = seek.sock.rx.kernel_bytes();
        let opened = wire.open(ours, theirs, terms, read, owner);
        if let Err(errno) = opened {
            wire.withdraw(ours.stream);
            return Err(full(errno));
        }
        let index = u32::from(ours.stream);
        let attached = upgrade::attach(seek.sock, seek.generation, near, index);
        if attached.is_err() {
            near.leave_stream(index);
            wire.leave(ours.stream);
        }
        attached
    }

    // The accepted end.

    fn ask_or_dial(&mut self, seek: Seek) {
        let host = seek.peer.ip();
        let known: Vec<Key> = self.standing(host).take(ASKED).map(|up| up.key).collect();
        let mut asked = false;
        for key in known {
            asked |= self.ask(seek, key, ASK_NS);
        }
        if !asked {
            self.dial(seek);
        }
    }

    /// The links to a host, the newest first.
    fn standing(&self, host: IpAddr) -> impl Iterator<Item = &Up> {
        let stands = move |up: &&Up| up.stands && !up.lost && up.host == host;
        self.ups.iter().rev().filter(stands)
    }

    fn ask(&mut self, seek: Seek, key: Key, patience: u64) -> bool {
        let Some(up) = self.ups.iter().find(|up| up.key == key) else {
            return false;
        };
        let (Some([near, _]), Some(known)) = (up.wire.links(), Known::of(seek.sock)) else {
            return false;
        };
        let owner = core::ptr::from_ref(seek.sock) as usize;
        let Ok(ours) = up.wire.offer(upgrade::ring_len(near), owner) else {
            return false;
        };
        let ask = |proof| Meeting::Ask {
            connection: seek.connection,
            berth: ours.into(),
            known: known.emit(),
            proof,
        };
        let [a, b] = up.salt;
        let Some(proof) = known.prove(seek.sock, &[&a, &b, &said(ask([0; 16]))]) else {
            up.wire.withdraw(ours.stream);
            return false;
        };
        up.wire.with(|pump| pump.meet(ask(proof)));
        self.asked.push(Asked {
            key,
            seek,
            ours,
            known,
            proof,
            late: false,
            until: sys::now_ns() + patience,
        });
        true
    }

    fn dial(&mut self, seek: Seek) {
        let now = sys::now_ns();
        let host = seek.peer.ip();
        if self.quiet.iter().any(|q| q.host == host && now < q.until) {
            return seek.stays(Reason::PeerPlain);
        }
        let key = self.key();
        self.dials.push(Dial {
            key,
            stage: Stage::Queued,
            seek,
            request: None,
            until: now + DIAL_NS,
            from: now + FIRST_NS,
            vain: 0,
        });
    }

    /// Begins dials that wait, as many as may be under way. While one to a host is, others wait for its link.
    fn dial_next(&mut self) {
        let now = sys::now_ns();
        loop {
            let under_way = |d: &&Dial| !matches!(d.stage, Stage::Queued);
            let busy: Vec<IpAddr> = self.dials.iter().filter(under_way).map(|d| d.seek.peer.ip()).collect();
            if busy.len() >= DIALS {
                return;
            }
            let next = self.dials.iter().position(|d| {
                matches!(d.stage, Stage::Queued)
                    && now >= d.from
                    && !busy.contains(&d.seek.peer.ip())
            });
            let Some(at) = next else { return };
            let mut dial = self.dials.swap_remove(at);
            let Seek { local, peer, .. } = dial.seek;
            let mapped = |ip| subnet::mapped(&config().map, ip);
            let to = SocketAddr::new(mapped(peer.ip()), hello::port(peer.port()));
            let from = SocketAddr::new(mapped(local.ip()), 0);
            if !dial.seek.is_open() {
                continue;
            }
            dial.until = now + DIAL_NS;
            match Id::dial(&self.channel, dial.key, Some(from), to, DIAL_MS) {
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

    // Events.

    fn read_channel(&mut self) {
        while let Some(event) = self.channel.next() {
            match event {
                Event::Resolved(key) => self.on_resolved(key),
                Event::Routed(key) => self.on_routed(key),
                Event::Asked(key, id, data) => self.on_asked(key, id, &data),
                Event::Established(key, data) => self.on_established(key, &data),
                Event::Refused(key, event, status, data) => {
                    self.on_refused(key, event, status, &data);
                }
                Event::Gone(key) => self.on_gone(key),
                // Of one that stands this is a hint only (`UNREACHABLE`, `ADDR_CHANGE`); of a dial its end.
                Event::Other(key, event) => {
                    if self.dials.iter().any(|d| d.key == key) {
                        self.on_refused(key, event, 0, &[]);
                    }
                }
            }
        }
    }

    fn take_dial(&mut self, key: Key) -> Option<Dial> {
        let at = self.dials.iter().position(|d| d.key == key)?;
        Some(self.dials.swap_remove(at))
    }

    fn on_resolved(&mut self, key: Key) {
        let Some(mut dial) = self.take_dial(key) else {
            return;
        };
        let Stage::Resolving(id) = dial.stage else {
            return;
        };
        let host = dial.seek.peer.ip();
        match self.may_use(&id, host).and_then(|()| id.route(DIAL_MS)) {
            Ok(()) => {
                dial.stage = Stage::Routing(id);
                self.dials.push(dial);
            }
            Err(errno) => {
                tell(&dial.seek, "route", errno);
                dial.seek.stays(Reason::PeerRemote);
                self.dial_next();
            }
        }
    }

    fn on_routed(&mut self, key: Key) {
        let Some(mut dial) = self.take_dial(key) else {
            return;
        };
        let Stage::Routing(id) = dial.stage else {
            return;
        };
        let host = dial.seek.peer.ip();
        let raised = self.raise(key, id, host);
        let connected = raised.and_then(|(wire, ours)| {
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
            let connected = wire.with_id(|id| id.connect(&request.emit()));
            connected.unwrap_or(Err(libc::ENOTCONN)).map(|()| wire)
        });
        match connected {
            Ok(wire) => {
                dial.stage = Stage::Connecting(wire);
                self.dials.push(dial);
            }
            Err(errno) => {
                tell(&dial.seek, "connect", errno);
                self.give_up(key);
                dial.seek.stays(full(errno));
                self.dial_next();
            }
        }
    }

    /// A wire for an id, with an arena of its own.
    fn raise(&mut self, key: Key, id: Id, host: IpAddr) -> Result<(&'static Wire, Hello), sys::Errno> {
        let full = libc::ENOBUFS;
        let arena = Arena::create_local().map_err(|_| libc::ENOMEM)?;
        // By the token a link within the host is found: none has this one.
        let links = Link::open_both(arena, [0, key], false).ok_or(full)?;
        let [near, far] = links;
        let wire = self
            .spare
            .pop()
            .unwrap_or_else(|| Box::leak(Box::new(Wire::new(control::poke))));
        id.set_key(key);
        wire.set_key(key);
        let begun = wire.begin(id, links);
        let hello = match begun {
            Ok(hello) => hello,
            Err(errno) => {
                for link in links {
                    link.kill();
                    link.close_if_unused();
                }
                self.spare.push(wire);
                return Err(errno);
            }
        };
        near.set_keeper(core::ptr::from_ref(wire) as usize);
        // As long as the wire is: nobody else may close the link with its last stream.
        near.pin();
        far.pin();
        if let Some(fd) = wire.descriptor() {
            control::watch_remote(fd, key, stream::BELL);
        }
        wire.arm();
        self.ups.push(Up {
            key,
            wire,
            host,
            salt: [[0; 16]; 2],
            stands: false,
            lost: false,
            until: sys::now_ns() + 2 * DIAL_NS,
        });
        Ok((wire, hello))
    }

    fn on_asked(&mut self, listener: Key, id: Id, data: &[u8]) {
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
        let known = Known::heard(request.known);
        if !known.is_reached(seek.sock) {
            // This end has not read as much: later.
            return refuse(&id, Reason::Meeting);
        }
        let proved = known.verify(seek.sock, &[&request.said()], &request.proof);
        if request.connection != seek.connection || !proved {
            seek.stays(Reason::ProofFailed);
            return refuse(&id, Reason::ProofFailed);
        }
        let key = self.key();
        let (wire, ours) = match self.raise(key, id, seek.peer.ip()) {
            Ok(raised) => raised,
            Err(errno) => {
                tell(&seek, "answer", errno);
                return seek.stays(full(errno));
            }
        };
        wire.heard(request.hello);
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
        }
        let accepted = wire.with_id(|id| id.accept(&answer.emit()));
        if accepted != Some(Ok(())) {
            self.give_up(key);
        }
    }

    fn on_established(&mut self, key: Key, data: &[u8]) {
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
                    up.wire.heard(answer.hello);
                    (up.salt, up.stands) = ([proof, answer.proof], true);
                    self.link_stands(key);
                    self.ask(seek, key, DIAL_NS);
                }
                Err(reason) => {
                    self.give_up(key);
                    seek.stays(reason);
                }
            }
            self.quiet.retain(|q| q.host != seek.peer.ip());
            self.meets(seek.peer.ip());
        } else {
            up.stands = true;
            self.link_stands(key);
        }
        self.dial_next();
    }

    fn meets(&mut self, host: IpAddr) {
        if !self.met.contains(&host) {
            if self.met.len() >= SEEKS {
                self.met.remove(0);
            }
            self.met.push(host);
        }
    }

    /// A link stands: who waits for a dial to that host asks over it.
    fn link_stands(&mut self, key: Key) {
        sluice_stats::ROOT.links_made.add_shared(1);
        sluice_stats::ROOT.links.raise(1);
        let Some(host) = self.ups.iter().find(|up| up.key == key).map(|up| up.host) else {
            return;
        };
        let waits = |d: &mut Dial| matches!(d.stage, Stage::Queued) && d.seek.peer.ip() == host;
        let waiting: Vec<Dial> = self.dials.extract_if(.., waits).collect();
        for dial in waiting {
            if dial.seek.is_open() && !self.ask(dial.seek, key, ASK_NS) {
                dial.seek.stays(Reason::LinkFull);
            }
        }
    }

    fn on_refused(&mut self, key: Key, event: u32, status: i32, data: &[u8]) {
        self.give_up(key);
        if let Some(mut dial) = self.take_dial(key) {
            let reason = hello::refused(data);
            tell(&dial.seek, "refused", status);
            // Nobody listens, or not yet: the other end comes to the offset when it reads what brought this one there.
            let early = matches!(reason, Reason::PeerPlain | Reason::Meeting);
            let host = dial.seek.peer.ip();
            let again = AGAIN_NS.get(dial.vain + 2 * usize::from(self.met.contains(&host)));
            let again = again.filter(|_| event == REJECTED && early && dial.seek.is_open());
            if let Some(wait) = again {
                let from = sys::now_ns() + wait;
                (dial.key, dial.stage, dial.vain) = (self.key(), Stage::Queued, dial.vain + 1);
                (dial.from, dial.until) = (from, from + DIAL_NS);
                self.dials.push(dial);
            } else {
                self.meets(host);
                dial.seek.stays(reason);
            }
        }
        self.dial_next();
    }

    fn on_gone(&mut self, key: Key) {
        if let Some(up) = self.ups.iter().find(|up| up.key == key) {
            up.wire.lose(Lost::Gone);
        }
    }

    /// A wire does not come to stand.
    fn give_up(&mut self, key: Key) {
        if let Some(up) = self.ups.iter().find(|up| up.key == key) {
            up.wire.lose(Lost::Gone);
        }
    }

    // What is due.

    fn progress(&mut self, now: u64) -> Option<u64> {
        let mut next: Option<u64> = None;
        let mut again = |at: u64| {
            let left = at.saturating_sub(now);
            next = Some(next.map_or(left, |n| n.min(left)));
        };
        for at in 0..self.ups.len() {
            let Some((key, wire)) = self.ups.get(at).map(|up| (up.key, up.wire)) else {
                break;
            };
            self.read_notes(key, wire);
            let host = self.ups.get(at).map(|up| up.host);
            // A question, or the answer to one, may come for a connection whose thread waits for TCP.
            let expected = self.asked.iter().any(|a| a.key == key && !a.late)
                || self.listens.iter().any(|l| Some(l.seek.peer.ip()) == host);
            wire.watch(expected);
            if let Some(left) = wire.tick(now) {
                again(now + left);
            }
        }
        self.look_after(now);
        self.look_at_questions();
        self.expire(now);
        let untils = (self.listens.iter().map(|l| l.until))
            .chain(self.dials.iter().map(|d| d.until))
            .chain(self.dials.iter().filter(|d| now < d.from).map(|d| d.from))
            .chain(self.asked.iter().filter(|a| !a.late).map(|a| a.until))
            .chain(self.questions.iter().map(|_| now + LOOK_NS))
            .chain(self.ups.iter().filter(|up| !up.stands).map(|up| up.until));
        untils.for_each(&mut again);
        for up in self.ups.iter().filter(|up| up.lost) {
            again(now + if up.until == 0 { 10_000_000 } else { 1_000_000 });
        }
        next
    }

    fn read_notes(&mut self, key: Key, wire: &'static Wire) {
        let Some([near, _]) = wire.links() else {
            return;
        };
        while let Some(note) = wire.note() {
            match note {
                Note::Stream(index) => {
                    if let Some(sock) = control::sock_of(near, u32::from(index)) {
                        stream::advance(sock);
                    }
                }
                Note::Meeting(meeting) => self.on_meeting(key, meeting),
            }
        }
    }

    fn on_meeting(&mut self, key: Key, meeting: Meeting) {
        match meeting {
            Meeting::Ask {
                connection,
                berth,
                known,
                proof,
            } => {
                let question = Question {
                    key,
                    connection,
                    berth,
                    known: Known::heard(known),
                    proof,
                    until: sys::now_ns() + DIAL_NS,
                };
                match self.sought(connection) {
                    Some(seek) if question.known.is_reached(seek.sock) => {
                        self.grant(seek, &question);
                    }
                    _ if self.questions.len() < SEEKS => self.questions.push(question),
                    _ => {}
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
                        asked.seek.stays(Reason::from_u16(reason).unwrap_or(Reason::PeerPlain));
                    }
                }
            }
        }
    }

    /// The connection of this number, if this end has come to an offset with it and may have a stream.
    fn sought(&self, connection: u64) -> Option<Seek> {
        let listens = self.listens.iter().map(|l| l.seek);
        let found = listens.into_iter().find(|seek| seek.connection == connection);
        if let Some(seek) = found {
            return seek.is_open().then_some(seek);
        }
        let mut known = None;
        sock::for_all(|sock| {
            let generation = sock.generation.load(Ordering::Acquire);
            if sock.key.load(Ordering::Relaxed) == connection
                && sock.role.load(Ordering::Relaxed) == role::CONNECTING
            {
                known = Some((sock, generation));
            }
        });
        let (sock, generation) = known?;
        let fd = sock.fd.load(Ordering::Relaxed);
        let seek = Seek {
            sock,
            generation,
            connection,
            local: diag::plain(diag::name(fd, false)?),
            peer: diag::plain(diag::name(fd, true)?),
        };
        seek.is_open().then_some(seek)
    }

    /// Questions that this end has come far enough for by now.
    fn look_at_questions(&mut self) {
        let mut at = 0;
        while let Some(question) = self.questions.get(at) {
            let seek = self.sought(question.connection);
            let seek = seek.filter(|seek| question.known.is_reached(seek.sock));
            match seek {
                Some(seek) => {
                    let question = self.questions.swap_remove(at);
                    self.grant(seek, &question);
                }
                None => at += 1,
            }
        }
    }

    fn take_asked(&mut self, key: Key, connection: u64) -> Option<Asked> {
        let is = |a: &Asked| a.key == key && a.seek.connection == connection;
        let at = self.asked.iter().position(is)?;
        Some(self.asked.swap_remove(at))
    }

    fn on_grant(&mut self, key: Key, connection: u64, berth: Berth, proof: Proof) {
        let Some(up) = self.ups.iter().find(|up| up.key == key) else {
            return;
        };
        let (wire, [a, b]) = (up.wire, up.salt);
        let Some(asked) = self.take_asked(key, connection) else {
            return wire.lose(Lost::Peer(PeerFault::Malformed.into()));
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
        let Some(secret) = secret.filter(|_| proved && !asked.late && seek.is_open()) else {
            // The other end has opened it, and is to hear that this one has left.
            let owner = core::ptr::from_ref(seek.sock) as usize;
            let terms = (Role::First, Nonce::new([0; 16]));
            if wire.open(ours, berth.into(), terms, 0, owner).is_err() {
                wire.lose(Lost::Device(0));
            }
            if let Some([near, _]) = wire.links() {
                near.leave_stream(u32::from(ours.stream));
            }
            wire.leave(ours.stream);
            if !proved && !asked.late {
                seek.stays(Reason::ProofFailed);
            }
            return;
        };
        let opened = self.open(wire, &seek, ours, berth.into(), (Role::First, secret));
        if let Err(reason) = opened {
            return seek.stays(reason);
        }
        // Of others that were asked, too, nobody waits any more.
        for other in self.asked.iter_mut().filter(|a| core::ptr::eq(a.seek.sock, seek.sock)) {
            other.late = true;
        }
        self.dials.retain(|d| {
            !(core::ptr::eq(d.seek.sock, seek.sock) && matches!(d.stage, Stage::Queued))
        });
    }

    /// A question of ours comes to nothing.
    fn withdraw(&self, asked: &Asked) {
        if let Some(up) = self.ups.iter().find(|up| up.key == asked.key) {
            up.wire.withdraw(asked.ours.stream);
        }
    }

    /// Wires that are lost.
    fn look_after(&mut self, now: u64) {
        for at in 0..self.ups.len() {
            let Some(up) = self.ups.get_mut(at) else { break };
            if !up.stands && now >= up.until {
                up.wire.lose(Lost::Silent);
            }
            let Some(why) = up.wire.is_lost() else { continue };
            let Some([near, far]) = up.wire.links() else {
                continue;
            };
            if !core::mem::replace(&mut up.lost, true) {
                let (wire, key, stood) = (up.wire, up.key, up.stands);
                if stood {
                    sluice_stats::ROOT.links.lower(1);
                }
                near.kill();
                far.kill();
                crate::config::log(
                    crate::config::Level::Debug,
                    format_args!("link to {} lost: {why:?}", up.host),
                );
                wire.with_id(Id::disconnect);
                let lost: Vec<Asked> = self.asked.extract_if(.., |a| a.key == key).collect();
                for asked in lost {
                    wire.withdraw(asked.ours.stream);
                    if !asked.late {
                        asked.seek.stays(Reason::LinkLost);
                    }
                }
                self.questions.retain(|q| q.key != key);
                if let Some(up) = self.ups.get_mut(at) {
                    up.until = now + DYING_NS;
                }
            }
            let Some(up) = self.ups.get_mut(at) else { break };
            if up.until != 0 && (stream::lost(near, up.wire, now >= up.until) || now >= up.until) {
                up.until = 0;
                crate::readiness::link_lost(near);
            }
        }
        let mut at = 0;
        while let Some(up) = self.ups.get(at) {
            let links = up.wire.links().filter(|_| up.lost);
            let over = links.is_some_and(|[near, far]| {
                near.stream_count() == 1 && far.stream_count() == 1
            });
            if let (true, Some([near, far])) = (over, links) {
                let up = self.ups.swap_remove(at);
                near.set_keeper(0);
                up.wire.end();
                close(near, far);
                self.spare.push(up.wire);
            } else {
                at += 1;
            }
        }
    }

    fn expire(&mut self, now: u64) {
        let over: Vec<Listen> = self.listens.extract_if(.., |l| now >= l.until || !l.seek.is_open()).collect();
        for listen in over {
            if listen.seek.is_open() {
                listen.seek.stays(Reason::PeerPlain);
            }
        }
        let late: Vec<Question> = self.questions.extract_if(.., |q| now >= q.until).collect();
        for Question {
            key, connection, ..
        } in late
        {
            let reason = Reason::PeerPlain as u16;
            if let Some(up) = self.ups.iter().find(|up| up.key == key) {
                let deny = Meeting::Deny { connection, reason };
                up.wire.with(|pump| pump.meet(deny));
            }
        }
        let mut late = Vec::new();
        for asked in self.asked.iter_mut().filter(|a| !a.late && now >= a.until) {
            asked.late = true;
            late.push(asked.seek);
        }
        for seek in late {
            if seek.is_open() && !self.is_sought(&seek) {
                self.dial(seek);
            }
        }
        let late: Vec<Dial> = self.dials.extract_if(.., |d| now >= d.until).collect();
        for dial in late {
            dial.seek.stays(Reason::PeerPlain);
            if !matches!(dial.stage, Stage::Queued) {
                self.keep_quiet(dial.seek.peer.ip(), now);
                self.give_up(dial.key);
            }
        }
        self.dial_next();
    }

    /// The host stayed silent.
    fn keep_quiet(&mut self, host: IpAddr, now: u64) {
        match self.quiet.iter_mut().find(|q| q.host == host) {
            Some(quiet) => {
                quiet.wait = (quiet.wait * 2).min(QUIET_MOST);
                quiet.until = now + quiet.wait;
            }
            None => self.quiet.push(Quiet {
                host,
                until: now + QUIET_NS,
                wait: QUIET_NS,
            }),
        }
    }
}

/// Both ends of a link whose wire has ended.
fn close(near: &'static Link, far: &'static Link) {
    for link in [far, near] {
        link.kill();
        link.unpin();
        link.close_if_unused();
    }
}

fn full(errno: sys::Errno) -> Reason {
    match errno {
        libc::ENOMEM => Reason::MemoryLimit,
        libc::EPROTO => Reason::PeerHostile,
        libc::ENOBUFS => Reason::LinkFull,
        _ => Reason::DeviceRefused,
    }
}

fn tell(seek: &Seek, what: &str, errno: sys::Errno) {
    crate::config::log(
        crate::config::Level::Debug,
        format_args!("{} -> {}: {what}: {errno}", seek.local, seek.peer),
    );
}
