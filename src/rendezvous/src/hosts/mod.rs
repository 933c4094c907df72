//! Meetings with other hosts: over a link that stands, or over one that is dialled first.
//!
//! ```text
//!   accepted end                                       connecting end
//!   has come to an offset                              has come to the same offset
//!     a link to that host?  ── Ask ──────────────────► Grant, or the question waits for the socket
//!     none: dial            ── request ──────────────► listens for 1 s, see `hello::ports`
//!                           ◄── answer: a link ───────
//!                           ── Ask ──────────────────► Grant
//! ```
//!
//! The accepted end dials, since the connecting end's address and port belong to one process, while
//! many may share the accepted end's. The control thread does all of this; a hook only says that a
//! connection has come to an offset.

mod dial;
mod direct_qp;
pub mod hello;
mod idle;
mod meet;
mod paths;
mod proof;
mod room;

use self::hello::Token;
use self::proof::Known;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use dial::{Dial, FIRST_NS, Quiet};
use idle::Rest;
use sluice_fabric::arena::Arena;
use sluice_fabric::lock::{self, Guarded, OverFork};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_fabric::verbs::api::{self, Api};
use sluice_fabric::verbs::cm::{Channel, Id, Key};
use sluice_fabric::verbs::device::{Device, Trouble};
use sluice_runtime::config::{Mode, Upgrade, config};
use sluice_runtime::{address, control_thread, own_fds, process};
use sluice_sockets::carrier::{self, STARVE_NS};
use sluice_sockets::socket::{self, Socket, role};
use sluice_sockets::{jobs, path, trigger};
use sluice_stats::Reason;
use sluice_stream::Seq;
use sluice_stream::wire::{Berth, CONTROL_LEN, Control, Meeting, Proof};
use sluice_transport::links;
use sluice_transport::verbs::endpoint::{Endpoint, Hello, Lost, Note, Offered};
use sluice_transport::verbs::{self, queue};

/// The longest time of a dial and of each of its steps, and the time that the connecting end
/// listens.
const DIAL_NS: u64 = 1_000_000_000;
const DIAL_MS: i32 = 1000;
/// Connections that listen or wait for a dial at once.
const SEEKS: usize = 256;
/// Notes of one link that are read before the other links have their turn.
const TURN: u32 = 64;
/// Most links to one host that are asked.
const ASKED: usize = 4;
/// Time without an answer of any link after which a connection dials.
const ASK_NS: u64 = 200_000_000;

/// The time between two looks at questions that this end can answer only once it has read more.
const LOOK_NS: u64 = 5_000_000;
/// A process that ends closes its links and its connections in any order, within this time.
const DYING_NS: u64 = 20_000_000;

/// The key of events of the connection manager's channel; [`queue::QUEUE`] is another key.
const CM: Key = 0;
/// The key of events of a device that is in use.
const DEVICE: Key = 1;

/// A connection that looks for its other end.
#[derive(Clone, Copy, Debug)]
struct Seek {
    sock: &'static Socket,
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

    /// True if it is for the same connection.
    fn is(&self, other: &Self) -> bool {
        core::ptr::eq(self.sock, other.sock) && self.generation == other.generation
    }

    /// Whether the socket is still the connection's.
    fn is_current(&self) -> bool {
        self.sock.generation.load(Ordering::Acquire) == self.generation
    }

    /// Notes why the connection stays on TCP. Where there was no memory for a ring it asks again.
    fn stays(&self, reason: Reason) {
        if self.is_current() {
            self.sock.conn().stays(reason);
            self.asks_again_after(reason);
        }
    }

    fn asks_again_after(&self, reason: Reason) {
        if reason == Reason::MemoryLimit {
            trigger::asks_again(self.sock);
        }
    }

    /// Notes the reason as the other end's word, if it is one that an end may tell another.
    fn stays_for_peer(&self, reason: Reason) {
        if !reason.is_told() {
            self.stays(reason);
        } else if self.is_current() {
            self.sock.conn().stays_for_peer(reason);
            self.asks_again_after(reason);
        }
    }
}

#[derive(Debug)]
struct Listen {
    key: Key,
    /// Listens until it is dropped.
    _id: Id,
    seek: Seek,
    until: u64,
}

/// A question that this end has asked over a link.
#[derive(Debug)]
struct Asked {
    key: Key,
    seek: Seek,
    ours: Offered,
    known: Known,
    proof: Proof,
    until: u64,
    /// The answer is not waited for any more, but the stream's number stays taken until it comes.
    late: bool,
}

/// A peer's question about a connection that has not come to an offset at this end.
#[derive(Debug)]
struct Question {
    key: Key,
    connection: u64,
    berth: Berth,
    /// What the proof covers, as this end sees the two directions.
    known: Known,
    proof: Proof,
    until: u64,
    /// This end has come to the offset, and found no room for a ring.
    finds_no_room: bool,
}

impl Question {
    /// The bytes that the proof was made of.
    fn said(&self) -> [u8; CONTROL_LEN] {
        said(Meeting::Ask {
            connection: self.connection,
            berth: self.berth,
            known: self.known.turned().emit(),
            proof: [0; 16],
        })
    }
}

/// An endpoint in service.
#[derive(Debug)]
struct Up {
    key: Key,
    endpoint: &'static Endpoint,
    host: IpAddr,
    /// This end's address on the link.
    local: IpAddr,
    /// This end has answered the dial.
    answers: bool,
    /// Both ends' proofs from the dial. They go into later proofs, which so are worth nothing on
    /// another link.
    salt: [Proof; 2],
    /// The process at the other end, once that has named itself.
    token: Option<Token>,
    stands: bool,
    lost: bool,
    /// The peer was told that the link is lost, which is not possible while the port is down.
    told: bool,
    /// The time by which the link must stand. Of a lost one: the time by which its streams are told
    /// at the latest, 0 if they were.
    until: u64,
    rest: Rest,
    /// Direct-only streams that wait for a buffer, with the position at which each waits.
    starving: Vec<(u16, Seq)>,
    /// When these are looked at again; 0: never.
    starve_ns: u64,
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
    /// Hosts that have answered a dial, perhaps by a refusal.
    met: Vec<IpAddr>,
    /// Far hosts to which a link was slower than TCP, and until when none is tried.
    slow: Vec<(IpAddr, u64)>,
    room: room::Room,
    /// Endpoints that are not in service.
    spare: Vec<&'static Endpoint>,
    /// Devices that are in use, whose descriptors were put out of the program's way.
    devices: Vec<Device>,
    /// Queue pairs for direct transfers.
    direct_qps: Vec<direct_qp::Seek>,
}

static HOSTS: Guarded<Option<Hosts>> = Guarded::of_order(lock::BEFORE_SOCKETS, None);
/// This process was forked from one that had devices open. libibverbs and librdmacm keep those for
/// good, so using the libraries here would use the parent's devices.
static BARRED: AtomicBool = AtomicBool::new(false);

/// True if this host has a device. Looked up once.
fn is_any_device() -> bool {
    const UNKNOWN: u8 = 0;
    static ANY: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANY.load(Ordering::Relaxed) {
        UNKNOWN => {
            let _low = own_fds::Low::begin();
            let any = api::is_any_device();
            ANY.store(1 + u8::from(any), Ordering::Relaxed);
            any
        }
        known => known == 2,
    }
}

/// Has the control thread look for the other end of `sock`, which is on another host. Called when
/// the connection has come to an offset.
///
/// # Errors
/// [`Reason::Shutdown`]: a half of the connection has ended; [`Reason::PeerRemote`]: no device;
/// [`Reason::BelowThreshold`]: TCP may become faster over this path; why there is no control
/// thread.
pub fn attempt(sock: &'static Socket, local: SocketAddr, peer: SocketAddr) -> Result<(), Reason> {
    if !is_any_device() {
        return Err(Reason::PeerRemote);
    }
    if BARRED.load(Ordering::Relaxed) {
        return Err(Reason::ForkedRdma);
    }
    // Between hosts both directions leave TCP together.
    if sock.halves.load(Ordering::Relaxed) != 0 {
        return Err(Reason::Shutdown);
    }
    if !path::is_known(sock) && config().upgrade == Upgrade::Auto {
        return Err(Reason::BelowThreshold);
    }
    sluice_runtime::control_thread::start()?;
    let connecting = sock.role.load(Ordering::Relaxed) == role::CONNECTING;
    let (first, second) = if connecting {
        (local, peer)
    } else {
        (peer, local)
    };
    let connection = hello::connection(first, second);
    sock.key.store(connection, Ordering::Relaxed);
    links::set_driven(true);
    sock.conn()
        .awaits_after(Reason::BelowThreshold, Reason::Meeting);
    jobs::seek(sock);
    Ok(())
}

/// Called by the control thread: looks for the other end of a connection.
pub fn begin(sock: &'static Socket, generation: u32) {
    with(|hosts| hosts.begin(sock, generation));
}

fn with<R>(f: impl FnOnce(&mut Hosts) -> R) -> Option<R> {
    let mut hosts = HOSTS.lock()?;
    if hosts.is_none() {
        let _opening = own_fds::Opening::begin();
        *hosts = Hosts::new();
    }
    hosts.as_mut().map(f)
}

/// Handles an event of a descriptor of links to other hosts.
pub fn on_event(what: u64) {
    match what {
        CM => drop(with(Hosts::read_channel)),
        DEVICE => drop(with(|hosts| hosts.read_devices())),
        _ => queue::drive_all(),
    }
}

/// Does what is due. Returns the ns until something is due again.
pub fn progress() -> Option<u64> {
    if !links::are_driven() {
        return None;
    }
    // Links may be driven only since this turn of the control thread began, undeclared.
    let _low = own_fds::Low::begin();
    let now = sys::now_ns();
    let hosts_left = with(|hosts| hosts.progress(now)).flatten();
    hosts_left
        .into_iter()
        .chain(queue::see_to_leases(now))
        .min()
}

/// In the child of a fork: closes the parent's descriptors, without a call of the libraries.
pub fn after_fork() {
    if let Some(mut hosts) = HOSTS.lock()
        && let Some(hosts) = hosts.take()
    {
        // The kernel keeps the parent's queue pairs as long as any process has these open.
        queue::after_fork();
        let devices = hosts.devices.iter().flat_map(Device::descriptors);
        for fd in devices.chain([hosts.channel.descriptor()]) {
            own_fds::close(fd);
        }
        core::mem::forget(hosts);
        BARRED.store(true, Ordering::Relaxed);
    }
    links::set_driven(false);
}

/// Held over a fork.
pub(crate) const HELD: &dyn OverFork = &HOSTS;

fn token() -> Token {
    process::token().map_or(0, |[a, _]| a)
}

/// The bytes of a link's message that its proof is made of.
fn said(meeting: Meeting) -> [u8; CONTROL_LEN] {
    Control::Meeting(meeting).emit()
}

impl Hosts {
    fn new() -> Option<Self> {
        let api: &'static Api = api::load()?;
        let channel = Channel::new(api).ok()?;
        channel.rehouse(own_fds::copy);
        verbs::watch(channel.descriptor(), CM, libc::EPOLLIN as u32);
        Some(Self {
            channel,
            next: queue::QUEUE,
            listens: Vec::new(),
            dials: Vec::new(),
            asked: Vec::new(),
            questions: Vec::new(),
            ups: Vec::new(),
            quiet: Vec::new(),
            met: Vec::new(),
            slow: Vec::new(),
            room: room::Room::default(),
            spare: Vec::new(),
            devices: Vec::new(),
            direct_qps: Vec::new(),
        })
    }

    fn key(&mut self) -> Key {
        self.next += 1;
        self.next
    }

    fn begin(&mut self, sock: &'static Socket, generation: u32) {
        let fd = sock.fd.load(Ordering::Relaxed);
        let (Some(local), Some(peer)) = (address::name(fd, false), address::name(fd, true)) else {
            return;
        };
        let seek = Seek {
            sock,
            generation,
            connection: sock.key.load(Ordering::Relaxed),
            local: address::plain(local),
            peer: address::plain(peer),
        };
        if path::is_far(sock) && self.is_slow(seek.peer.ip()) {
            return seek.stays(Reason::Far);
        }
        if !seek.is_open() || self.is_sought(&seek) {
            return self.comes_further(&seek);
        }
        let sought = self.listens.len() + self.dials.len() + self.asked.len();
        if sought + self.room.len() >= SEEKS {
            return seek.stays(Reason::TooManyNames);
        }
        if sock.role.load(Ordering::Relaxed) == role::CONNECTING {
            self.listen(seek);
        } else {
            self.ask_or_dial(seek);
        }
    }

    /// A connection that is looked for has come to its next offset: listens longer, or dials
    /// sooner.
    fn comes_further(&mut self, seek: &Seek) {
        let now = sys::now_ns();
        for listen in self.listens.iter_mut().filter(|l| l.seek.is(seek)) {
            listen.until = now + DIAL_NS;
        }
        for dial in self.dials.iter_mut().filter(|d| d.seek.is(seek)) {
            if dial.vain != 0 && dial.is_queued() {
                dial.from = dial.from.min(now + FIRST_NS);
            }
        }
    }

    fn is_sought(&self, seek: &Seek) -> bool {
        let same = |other: &Seek| other.is(seek);
        self.listens.iter().any(|l| same(&l.seek))
            || self.dials.iter().any(|d| !d.is_late() && same(&d.seek))
            || self.asked.iter().any(|a| !a.late && same(&a.seek))
            || self.is_waiting_for_room(seek)
    }

    fn up(&self, key: Key) -> Option<&Up> {
        self.ups.iter().find(|up| up.key == key)
    }

    /// The links to a host that are up, the newest first.
    fn standing(&self, host: IpAddr) -> impl Iterator<Item = &Up> {
        let stands = move |up: &&Up| up.stands && !up.lost && up.host == host;
        self.ups.iter().rev().filter(stands)
    }

    /// Makes an endpoint for an id, with an arena of its own.
    fn raise(
        &mut self,
        key: Key,
        id: Id,
        [local, host]: [IpAddr; 2],
        answers: bool,
    ) -> Result<(&'static Endpoint, Hello), sys::Errno> {
        let full = libc::ENOBUFS;
        let arena = Arena::create_local().map_err(|_| libc::ENOMEM)?;
        // Links within the host are found by their token. None of them has this one.
        let links = Link::open_both(arena, [0, key], false).ok_or(full)?;
        let [near, far] = links;
        let endpoint = self
            .spare
            .pop()
            .unwrap_or_else(|| Box::leak(Box::new(Endpoint::new(control_thread::poke))));
        id.set_key(key);
        let begun = endpoint.begin(id, links);
        let hello = match begun {
            Ok(hello) => hello,
            Err(errno) => {
                for link in links {
                    link.kill();
                    link.close_if_unused();
                }
                self.spare.push(endpoint);
                return Err(errno);
            }
        };
        near.set_keeper(core::ptr::from_ref(endpoint) as usize);
        // Pinned while the endpoint is in service, so that the last stream does not close the link.
        near.pin();
        far.pin();
        if let Some(fd) = endpoint.descriptor() {
            // If it is watched already, it stays so.
            verbs::watch(fd, queue::QUEUE, queue::BELL);
        }
        endpoint.arm();
        self.ups.push(Up {
            key,
            endpoint,
            host,
            local,
            answers,
            salt: [[0; 16]; 2],
            token: None,
            stands: false,
            lost: false,
            told: false,
            rest: Rest::default(),
            starving: Vec::new(),
            starve_ns: 0,
            until: sys::now_ns() + 2 * DIAL_NS,
        });
        Ok((endpoint, hello))
    }

    /// A link is up: connections that wait for a dial to that host ask over it.
    fn link_stands(&mut self, key: Key) {
        sluice_stats::ROOT.links_made.add_shared(1);
        sluice_stats::ROOT.links.raise(1);
        let Some(host) = self.up(key).map(|up| up.host) else {
            return;
        };
        let waits = |d: &mut Dial| d.is_queued() && d.seek.peer.ip() == host;
        let waiting: Vec<Dial> = self.dials.extract_if(.., waits).collect();
        for dial in waiting {
            if !dial.seek.is_open() {
                continue;
            }
            match self.ask(dial.seek, key, ASK_NS) {
                Ok(()) => {}
                Err(Some(Reason::MemoryLimit)) => self.waits_for_room(dial.seek, key),
                Err(reason) => dial.seek.stays(reason.unwrap_or(Reason::LinkLost)),
            }
        }
    }

    /// Gives up an endpoint that is not connected.
    fn give_up(&mut self, key: Key) {
        if let Some(up) = self.up(key) {
            up.endpoint.lose(Lost::Gone);
        }
    }

    fn progress(&mut self, now: u64) -> Option<u64> {
        queue::drive_all();
        let mut next: Option<u64> = None;
        let mut again = |at: u64| {
            let left = at.saturating_sub(now);
            next = Some(next.map_or(left, |n| n.min(left)));
        };
        for at in 0..self.ups.len() {
            let Some((key, endpoint)) = self.ups.get(at).map(|up| (up.key, up.endpoint)) else {
                break;
            };
            if self.read_notes(key, endpoint) {
                again(now);
            }
            let host = self.ups.get(at).map(|up| up.host);
            // A question, or its answer, may come while the connection's thread waits on TCP.
            let expected = self.asked.iter().any(|a| a.key == key && !a.late)
                || self.listens.iter().any(|l| Some(l.seek.peer.ip()) == host);
            endpoint.watch(expected);
            if let Some(left) = endpoint.tick(now) {
                again(now + left);
            }
            rest_pages(endpoint, now).into_iter().for_each(&mut again);
        }
        for up in &mut self.ups {
            feed(up, now).into_iter().for_each(&mut again);
            Rest::look(up, now).into_iter().for_each(&mut again);
        }
        self.look_after(now);
        self.make_room(now).into_iter().for_each(&mut again);
        self.look_at_questions();
        self.expire(now);
        let untils = (self.listens.iter().map(|l| l.until))
            .chain(self.dials.iter().filter_map(Dial::ends))
            .chain(self.dials.iter().filter(|d| now < d.from).map(|d| d.from))
            .chain(self.direct_qps.iter().filter_map(direct_qp::Seek::until))
            .chain(self.asked.iter().filter(|a| !a.late).map(|a| a.until))
            .chain(self.questions.iter().map(|_| now + LOOK_NS))
            .chain(self.ups.iter().filter(|up| !up.stands).map(|up| up.until));
        untils.for_each(&mut again);
        for up in self
            .ups
            .iter()
            .filter(|up| up.lost && (up.told || up.until != 0))
        {
            again(now + if up.until == 0 { 10_000_000 } else { 1_000_000 });
        }
        next
    }

    /// Reads notes of one link. Returns true if there may be more: then the other links come first.
    fn read_notes(&mut self, key: Key, endpoint: &'static Endpoint) -> bool {
        let Some([near, _]) = endpoint.links() else {
            return false;
        };
        for _ in 0..TURN {
            let Some(note) = endpoint.note() else {
                return false;
            };
            match note {
                Note::Stream(index) => {
                    if let Some(sock) = socket::sock_of(near, u32::from(index)) {
                        carrier::advance(sock);
                    }
                }
                Note::RingShort(index) => {
                    if let Some(sock) = socket::sock_of(near, u32::from(index)) {
                        paths::outgrown(sock);
                    }
                }
                Note::Slower(index) => {
                    if let Some(sock) = socket::sock_of(near, u32::from(index)) {
                        self.slower(key, sock);
                    }
                }
                Note::Meeting(meeting) => self.on_meeting(key, meeting),
                Note::Pages => {
                    endpoint.see_to_pages();
                    return true;
                }
                Note::DirectQp(said) => self.on_direct_qp(key, said),
            }
        }
        true
    }

    /// Takes lost endpoints out of service.
    fn look_after(&mut self, now: u64) {
        for at in 0..self.ups.len() {
            let Some(up) = self.ups.get_mut(at) else {
                break;
            };
            if !up.stands && now >= up.until {
                up.endpoint.lose(Lost::Silent);
            }
            let Some(why) = up.endpoint.is_lost() else {
                continue;
            };
            let Some([near, far]) = up.endpoint.links() else {
                continue;
            };
            if !core::mem::replace(&mut up.lost, true) {
                let (endpoint, key, stood) = (up.endpoint, up.key, up.stands);
                if stood {
                    sluice_stats::ROOT.links.lower(1);
                }
                near.kill();
                far.kill();
                sluice_runtime::config::log(
                    sluice_runtime::config::Level::Debug,
                    format_args!("link to {} lost: {why:?}", up.host),
                );
                let lost: Vec<Asked> = self.asked.extract_if(.., |a| a.key == key).collect();
                for asked in lost {
                    endpoint.withdraw(asked.ours.stream);
                    if !asked.late {
                        asked.seek.stays(Reason::LinkLost);
                    }
                }
                self.questions.retain(|q| q.key != key);
                self.direct_qps.retain(|l| !l.is_of(key));
                if let Some(up) = self.ups.get_mut(at) {
                    up.until = now + DYING_NS;
                }
            }
            let Some(up) = self.ups.get_mut(at) else {
                break;
            };
            if up.until != 0
                && (carrier::lost(near, up.endpoint, now >= up.until) || now >= up.until)
            {
                up.until = 0;
                sluice_sockets::socket::watcher::link_lost(near);
            }
        }
        self.tell_lost();
        let mut at = 0;
        while let Some(up) = self.ups.get(at) {
            let links = up.endpoint.links().filter(|_| up.told);
            let over = links
                .is_some_and(|[near, far]| near.stream_count() == 1 && far.stream_count() == 1);
            if let (true, Some([near, far])) = (over, links) {
                let up = self.ups.swap_remove(at);
                near.set_keeper(0);
                up.endpoint.end();
                close(near, far);
                self.spare.push(up.endpoint);
            } else {
                at += 1;
            }
        }
    }

    /// Tells peers that links are lost, as soon as the port is active.
    fn tell_lost(&mut self) {
        for up in self.ups.iter_mut().filter(|up| up.lost && !up.told) {
            let told = up.endpoint.with_id(|id| {
                let active = id.is_port_active();
                if active {
                    id.disconnect();
                }
                active
            });
            up.told = told == Some(true);
        }
    }

    /// Handles asynchronous events of devices.
    fn read_devices(&mut self) {
        for device in &self.devices {
            while let Some(trouble) = device.trouble() {
                if let Trouble::Completions(address) = trouble {
                    queue::condemn(address);
                }
                for up in self.ups.iter().filter(|up| !up.lost) {
                    if up.endpoint.is_direct_qp_met_by(*device, trouble) {
                        up.endpoint.lose_direct_qp();
                    }
                    if up.endpoint.is_met_by(*device, trouble) {
                        up.endpoint.lose(Lost::Device(0));
                    }
                }
            }
        }
    }

    fn expire(&mut self, now: u64) {
        let is_over = |d: &Dial| d.ends().is_some_and(|at| now >= at);
        if self.dials.iter().any(is_over) || self.listens.iter().any(|l| now >= l.until) {
            // This thread may be late, and the answer have come.
            self.read_channel();
        }
        self.expire_direct_qps(now);
        let over: Vec<Listen> = self
            .listens
            .extract_if(.., |l| now >= l.until || !l.seek.is_open())
            .collect();
        for listen in over {
            if listen.seek.is_open() {
                listen.seek.stays(Reason::NoAnswer);
            }
        }
        let late: Vec<Question> = self.questions.extract_if(.., |q| now >= q.until).collect();
        for question in late {
            let reason = if question.finds_no_room {
                let seek = self.sought(question.connection);
                seek.inspect(|seek| seek.stays(Reason::MemoryLimit));
                Reason::MemoryLimit
            } else {
                Reason::NoAnswer
            };
            self.deny(question.key, question.connection, reason);
        }
        let mut late = Vec::new();
        for asked in self.asked.iter_mut().filter(|a| !a.late && now >= a.until) {
            asked.late = true;
            late.push(asked.seek);
        }
        for seek in late {
            if seek.is_open() && !self.is_sought(&seek) {
                self.dial(seek, None);
            }
        }
        self.expire_dials(now);
        self.dial_next();
    }
}

/// Drops pages of files that nobody uses. Returns when to look again.
fn rest_pages(endpoint: &'static Endpoint, now: u64) -> Option<u64> {
    let (look, old) = endpoint.rest_pages(now);
    let Some((stream, [near, _])) = old.zip(endpoint.links()) else {
        return look;
    };
    if let Some(sock) = socket::sock_of(near, u32::from(stream)) {
        carrier::stage_old_pages(sock);
    }
    // There may be more, after all else.
    Some(now)
}

/// Takes direct-only streams that starve back to TCP. Returns when to look again.
fn feed(up: &mut Up, now: u64) -> Option<u64> {
    let due = up.starve_ns != 0 && now >= up.starve_ns;
    if config().mode != Mode::Direct || !due && up.starve_ns != 0 {
        return Some(up.starve_ns).filter(|at| *at != 0);
    }
    for stream in up.endpoint.starved(&mut up.starving) {
        if let Some([near, _]) = up.endpoint.links()
            && let Some(sock) = socket::sock_of(near, u32::from(stream))
        {
            sock.pin(Reason::DirectNoAdvert);
            carrier::give_up(sock, Reason::DirectNoAdvert);
        }
    }
    let [there, not_yet] = STARVE_NS;
    let wait = if up.endpoint.has_direct_qp() {
        there
    } else {
        not_yet
    };
    up.starve_ns = if up.starving.is_empty() {
        0
    } else {
        now + wait
    };
    Some(up.starve_ns).filter(|at| *at != 0)
}

/// Closes both ends of a link whose endpoint is out of service.
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
    sluice_runtime::config::log(
        sluice_runtime::config::Level::Debug,
        format_args!("{} -> {}: {what}: {errno}", seek.local, seek.peer),
    );
}
