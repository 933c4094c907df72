//! The control thread: what must happen while the program is elsewhere.
//!
//! Made at the first proved peer, by pthread_create, with every signal blocked but glibc's own 32
//! and 33. Sleeps in one epoll set; all its sends are non-blocking; it takes a stream's lock only for
//! the short sections of lock.rs.

use super::message::{self, Kind, Message, Received};
use crate::process;
use crate::readiness::set::Set;
use crate::remote;
use crate::sockets::demote::{self, Resent, Which};
use crate::sockets::internal;
use crate::sockets::sock::{Sock, state};
use crate::sockets::tcp;
use crate::sockets::wait;
use crate::sockets::wake;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use sluice_fabric::layout::STREAMS;
use sluice_fabric::lock::Guarded;
use sluice_fabric::shm::{self, Link};
use sluice_fabric::sys;
use sluice_stats::Reason;

const STOPPED: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
static RUN: AtomicU32 = AtomicU32::new(STOPPED);
/// The thread's epoll set and the eventfd that wakes it; -1: none.
static SET: AtomicI32 = AtomicI32::new(-1);
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// What an event of the set is about: kind in the top byte, an address below.
const KIND_WAKE: u64 = 1 << 56;
const KIND_MEETING: u64 = 2 << 56;
const KIND_LINK: u64 = 3 << 56;
const KIND_SOCK: u64 = 4 << 56;
const KIND_REMOTE: u64 = 5 << 56;
const KIND_MASK: u64 = 0xff << 56;

/// Something to do later, or by the control thread only.
enum Job {
    /// Look at stream `index` of a link with oneself.
    Look(&'static Link, u32),
    /// A non-blocking writer found the ring full; the reader's head stood at `seen`.
    Full {
        sock: &'static Sock,
        generation: u32,
        seen: u64,
        deadline: u64,
    },
    /// The peer of a stream to another host waits for the program to read TCP up to the switch.
    Far(Far),
    /// Ask over a new link for whoever looks for a peer.
    Ask(&'static Link),
    /// Close the link if nothing uses it any more.
    Reap(&'static Link),
    /// Look for the other end of a connection on another host: its socket and generation.
    Seek(&'static Sock, u32),
    /// Go on with the switch, or the way back, of a stream to another host: its socket and generation.
    Advance(&'static Sock, u32),
    /// The same, not before then.
    AdvanceLater(&'static Sock, u32, u64),
    /// Stream of a lost link, its socket and generation, and until when TCP may tell what became of
    /// the peer.
    Lost(&'static Link, u32, &'static Sock, u32, u64),
    /// A connection that lingers, with its generation, has nothing left to send.
    Bury(&'static Sock, u32),
}

struct Far {
    sock: &'static Sock,
    generation: u32,
    /// What had been read from TCP, and when that is looked at again.
    read: u64,
    look: u64,
    /// The end of all patience.
    until: u64,
}

static JOBS: Guarded<Vec<Job>> = Guarded::new(Vec::new());

fn add(job: Job) {
    if let Some(mut jobs) = JOBS.lock() {
        jobs.push(job);
    }
    poke();
}

/// Has the thread look at what there is to do.
pub fn poke() {
    let wake = WAKE.load(Ordering::Acquire);
    if wake >= 0 {
        let _ = sys::ring(wake);
    }
}

/// The eventfd of the parent's thread, where that has links to other hosts; -1: none.
static PARENT: AtomicI32 = AtomicI32::new(-1);

/// Has the parent's thread look.
pub fn call_parent() {
    let parent = PARENT.load(Ordering::Acquire);
    if parent >= 0 {
        let _ = sys::ring(parent);
    }
}

/// Does the thread run?
#[inline]
pub fn is_running() -> bool {
    RUN.load(Ordering::Acquire) == RUNNING
}

/// Starts the thread if it does not run yet.
///
/// # Errors
/// [`Reason::ThreadRefused`], [`Reason::DescriptorLimit`].
pub fn start() -> Result<(), Reason> {
    if is_running() {
        return Ok(());
    }
    if let Some(reason) = process::forbidden() {
        return Err(reason);
    }
    if RUN
        .compare_exchange(STOPPED, STARTING, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        // Another thread is at it; it takes microseconds.
        while RUN.load(Ordering::Acquire) == STARTING {
            sys::sched_yield();
        }
        return if is_running() {
            Ok(())
        } else {
            Err(Reason::ThreadRefused)
        };
    }
    let started = launch();
    RUN.store(
        if started.is_ok() { RUNNING } else { STOPPED },
        Ordering::Release,
    );
    started
}

fn launch() -> Result<(), Reason> {
    let limit = Reason::DescriptorLimit;
    let set = internal::lift(sys::epoll_create().map_err(|_| limit)?).ok_or(limit)?;
    let wake = internal::lift(sys::eventfd(libc::EFD_NONBLOCK).map_err(|_| limit)?).ok_or(limit)?;
    sys::epoll_ctl(
        set.raw(),
        libc::EPOLL_CTL_ADD,
        wake.raw(),
        (libc::EPOLLIN | libc::EPOLLET) as u32,
        KIND_WAKE,
    )
    .map_err(|_| limit)?;
    SET.store(set.raw(), Ordering::Release);
    WAKE.store(wake.raw(), Ordering::Release);
    if spawn().is_err() {
        SET.store(-1, Ordering::Release);
        WAKE.store(-1, Ordering::Release);
        internal::forget(set.raw());
        internal::forget(wake.raw());
        return Err(Reason::ThreadRefused);
    }
    let _ = (set.release(), wake.release());
    Ok(())
}

fn spawn() -> Result<(), ()> {
    // The new thread inherits the mask. Signals 32 and 33 are glibc's: without them setuid() hangs.
    let before = sys::set_signal_mask(!(1 << 31 | 1 << 32));
    let mut thread: libc::pthread_t = 0;
    // SAFETY: zeroes are a valid attribute object once initialised; all pointers are valid.
    let failed = unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, 256 << 10);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let failed = libc::pthread_create(
            &raw mut thread,
            &raw const attributes,
            run,
            core::ptr::null_mut(),
        );
        libc::pthread_attr_destroy(&raw mut attributes);
        failed
    };
    sys::set_signal_mask(before);
    if failed == 0 { Ok(()) } else { Err(()) }
}

extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
    sys::name_thread(c"sluice");
    let (set, wake) = (SET.load(Ordering::Acquire), WAKE.load(Ordering::Acquire));
    while RUN.load(Ordering::Acquire) == STARTING {
        sys::sched_yield();
    }
    super::hand_over_to_control();
    let mut timeout = None;
    let mut trims = super::trim::Trims::new();
    while SET.load(Ordering::Acquire) == set {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let wait = timeout.map(sys::timespec);
        // SAFETY: an array of ours.
        let got = unsafe {
            sys::epoll_wait(
                set,
                events.as_mut_ptr(),
                64,
                wait.as_ref(),
                core::ptr::null(),
            )
        };
        if SET.load(Ordering::Acquire) != set {
            break;
        }
        let _low = internal::Low::begin();
        for event in events.iter().take(got.unwrap_or(0)) {
            handle(event.events, event.u64);
        }
        super::progress();
        remote::answer_calls();
        let jobs_left = do_jobs();
        let meetings_left = super::watched(|_| ());
        let trims_left = trims.progress();
        let hosts_left = remote::progress();
        timeout = [jobs_left, meetings_left, trims_left, hosts_left]
            .into_iter()
            .flatten()
            .min();
    }
    for fd in [set, wake] {
        internal::forget(fd);
        let _ = sys::close(fd);
    }
    core::ptr::null_mut()
}

/// Ends the thread: the program sandboxes itself.
pub fn stop() {
    if RUN
        .compare_exchange(RUNNING, STOPPED, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
    {
        let wake = WAKE.swap(-1, Ordering::AcqRel);
        SET.store(-1, Ordering::Release);
        let _ = sys::ring(wake);
    }
}

fn address<T>(data: u64) -> Option<&'static T> {
    // SAFETY: only addresses of type-stable, never freed structures are put into events.
    unsafe { ((data & !KIND_MASK) as *const T).as_ref() }
}

fn handle(events: u32, data: u64) {
    match data & KIND_MASK {
        KIND_LINK => {
            if let Some(link) = address::<Link>(data) {
                on_link(link);
            }
        }
        KIND_SOCK => {
            if let Some(sock) = address::<Sock>(data) {
                on_tcp(sock, events);
            }
        }
        KIND_REMOTE => remote::on_event(data & !KIND_MASK),
        // Wake: the jobs are looked at anyway. Meetings: so are they.
        _ => {}
    }
}

// --- sockets ---

const WATCHED: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

/// Watches the silent TCP of an accelerated socket: FIN, RST, and bytes after a demotion.
pub fn watch(sock: &'static Sock) {
    let fd = sock.fd.load(Ordering::Relaxed);
    let data = KIND_SOCK | core::ptr::from_ref(sock) as u64;
    let set = SET.load(Ordering::Acquire);
    if sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, WATCHED, data) == Err(libc::EEXIST) {
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, WATCHED, data);
    }
}

/// The stream is over.
pub fn unwatch(sock: &'static Sock) {
    let fd = sock.fd.load(Ordering::Relaxed);
    let _ = sys::epoll_ctl(SET.load(Ordering::Acquire), libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// A re-send waits for room in TCP: this thread goes on with it.
pub fn watch_room(sock: &'static Sock) {
    let fd = sock.fd.load(Ordering::Relaxed);
    let data = KIND_SOCK | core::ptr::from_ref(sock) as u64;
    let set = SET.load(Ordering::Acquire);
    let events = WATCHED | libc::EPOLLOUT as u32;
    if sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, data) == Err(libc::ENOENT) {
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data);
    }
}

/// The other end of a connection is on another host: this thread looks for it there.
pub fn seek(sock: &'static Sock) {
    add(Job::Seek(sock, sock.generation.load(Ordering::Acquire)));
}

/// The stream of a socket to another host may go on, or back.
pub fn advance(sock: &'static Sock) {
    add(Job::Advance(sock, sock.generation.load(Ordering::Acquire)));
}

/// The same in a moment: there is no event for what it waits for.
pub fn advance_soon(sock: &'static Sock) {
    let generation = sock.generation.load(Ordering::Acquire);
    let Some(mut list) = JOBS.lock() else { return };
    let known = list.iter().any(|job| matches!(job, Job::AdvanceLater(s, g, _) if core::ptr::eq(*s, sock) && *g == generation));
    if !known {
        list.push(Job::AdvanceLater(sock, generation, sys::now_ns() + SOON_NS));
        drop(list);
        poke();
    }
}

/// See [`advance_soon`].
const SOON_NS: u64 = 1_000_000;

/// A connection that lingers has nothing left to send: its descriptor is closed, under no lock.
pub fn bury(sock: &'static Sock) {
    add(Job::Bury(sock, sock.generation.load(Ordering::Acquire)));
}

/// A non-blocking writer found the ring full: if the reader does not read, the stream is demoted.
pub fn watch_full(sock: &'static Sock) {
    let generation = sock.generation.load(Ordering::Acquire);
    // What the reader has read by now; callers keep the direction's memory by a lock or a pin.
    let seen = sock.tx.dir().map_or_else(
        || sock.tx.seen.load(Ordering::Relaxed),
        |d| d.rx.head.read().offset,
    );
    let Some(mut list) = JOBS.lock() else { return };
    let known = list.iter().any(|j| matches!(j, Job::Full { sock: s, seen: h, .. } if core::ptr::eq(*s, sock) && *h == seen));
    if !known {
        list.push(Job::Full {
            sock,
            generation,
            seen,
            deadline: sys::now_ns() + wait::full_ns(sock),
        });
        drop(list);
        poke();
    }
}

/// Before a switch the program has so much of TCP to read that the peer must wait. It waits no longer than for a full ring while
/// nothing is read, and not so long that the link's timer would take it for lost.
pub fn watch_far(sock: &'static Sock) {
    let generation = sock.generation.load(Ordering::Acquire);
    let Some(mut list) = JOBS.lock() else { return };
    let known = list.iter().any(|j| matches!(j, Job::Far(far) if core::ptr::eq(far.sock, sock) && far.generation == generation));
    if !known {
        let now = sys::now_ns();
        list.push(Job::Far(Far {
            sock,
            generation,
            read: sock.rx.kernel_bytes(),
            look: now + wait::FULL_REMOTE_NS,
            until: now + FAR_NS,
        }));
        drop(list);
        poke();
    }
}

/// See [`watch_far`].
const FAR_NS: u64 = 2_000_000_000;

impl Far {
    /// In how long to look again, if at all.
    fn look(&mut self, now: u64) -> Option<u64> {
        let sock = self.sock;
        let stale = sock.generation.load(Ordering::Acquire) != self.generation;
        if stale || !remote::is_far(sock) {
            return None;
        }
        if now >= self.look {
            let read = sock.rx.kernel_bytes();
            if read == self.read || now >= self.until {
                demote::demote(sock, Which::Both, Reason::RingFull);
                return None;
            }
            (self.read, self.look) = (read, now + wait::FULL_REMOTE_NS);
        }
        Some(self.look - now)
    }
}

fn on_tcp(sock: &'static Sock, events: u32) {
    if sock.fds.load(Ordering::Acquire) == 0 {
        return;
    }
    if remote::is_remote(sock) {
        remote::advance(sock);
    }
    if events & libc::EPOLLOUT as u32 != 0
        && sock.tx.state() == state::RESENDING
        && sock.tx.lock.lock().is_ok()
    {
        let resent = if sock.tx.state() == state::RESENDING {
            demote::resend(sock)
        } else {
            Resent::NoRoom
        };
        if resent == Resent::Lost && sock.lingers.load(Ordering::Relaxed) {
            // Nobody else will reset it.
            demote::lose_rest(sock);
        }
        if !matches!(resent, Resent::NoRoom | Resent::Held) {
            // The other half may still wait for news of TCP.
            if sock.rx.state() == state::PLAIN {
                unwatch(sock);
            } else {
                watch(sock);
            }
        }
        sock.tx.lock.unlock();
    }
    // Sleepers of blocking calls do not watch TCP themselves.
    for half in [&sock.rx, &sock.tx] {
        if half.state() == state::PLAIN || half.lock.lock().is_err() {
            continue;
        }
        if let (Some(dir), Some(link)) = (half.dir(), sock.link()) {
            let waiters = if core::ptr::eq(half, &sock.rx) {
                &dir.rx_wishes.waiters
            } else {
                &dir.tx_wishes.waiters
            };
            wake::own_threads(
                link,
                waiters.load(Ordering::Relaxed),
                sock.index.load(Ordering::Relaxed),
            );
        }
        half.lock.unlock();
    }
}

// --- links ---

/// A meeting's socket: its news are looked at by this thread.
pub fn watch_meeting(fd: i32) {
    let _ = sys::epoll_ctl(
        SET.load(Ordering::Acquire),
        libc::EPOLL_CTL_ADD,
        fd,
        libc::EPOLLIN as u32,
        KIND_MEETING,
    );
    poke();
}

/// A descriptor of the library's for links to other hosts: what `remote::on_event` is told of it.
pub fn watch_remote(fd: i32, what: u64, events: u32) {
    let set = SET.load(Ordering::Acquire);
    let data = KIND_REMOTE | what & !KIND_MASK;
    let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data);
}

/// Not any more, or to be told last of all from now on.
pub fn unwatch_remote(fd: i32) {
    let set = SET.load(Ordering::Acquire);
    let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// A new link's control socket.
pub fn watch_link(link: &'static Link) {
    let Some(fd) = link.control().raw() else {
        return;
    };
    let set = SET.load(Ordering::Acquire);
    let data = KIND_LINK | core::ptr::from_ref(link) as u64;
    let events = libc::EPOLLIN as u32;
    if sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data) == Err(libc::EEXIST) {
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, data);
    }
}

/// A new link stands: this thread asks over it.
pub fn link_is_up(link: &'static Link) {
    add(Job::Ask(link));
}

/// Whether it was sent. A peer that does not read its control socket has missed nothing that its words do not say.
pub(super) fn tell(link: &Link, message: &Message, with: &[i32]) -> bool {
    link.control()
        .with(|fd| message::send(fd, message, with))
        .is_some_and(|sent| sent.is_ok())
}

/// The peer must look at the words of stream `index`.
pub fn attention(link: &'static Link, index: u32) {
    match link.twin() {
        Some(_) if remote::is_to_another_host(link) => {}
        Some(twin) => add(Job::Look(twin, index)),
        None => drop(tell(link, &Message::about(Kind::Attention, index), &[])),
    }
    if !link.is_alive() {
        add(Job::Reap(link));
    }
}

/// The peer's slot sleeps and there is no doorbell for it here: its own process rings it.
pub fn ask_wake(link: &'static Link, slot: u32) {
    tell(link, &Message::about(Kind::Wake, slot), &[]);
}

/// A slot of this process needs a doorbell.
pub fn want_bell(link: &'static Link, slot: u32) {
    if link.twin().is_none() {
        tell(link, &Message::about(Kind::WantBell, slot), &[]);
    }
}

/// A slot of this process is gone.
pub fn drop_bell(link: &'static Link, slot: u32) {
    if link.twin().is_none() {
        tell(link, &Message::about(Kind::DropBell, slot), &[]);
    }
}

/// From hooks: reads what has come over the links, as this thread would.
pub fn read_links() {
    for link in shm::all().filter(|l| l.is_alive() && l.control().is_open() && !l.is_foreign()) {
        on_link(link);
    }
}

/// Records read from one link before the others have their turn.
const TURN: u32 = 64;

/// Held from before a record is received until the descriptors that it brought are closed or lifted: a child
/// that was forked in between would keep them.
static READING: Guarded<()> = Guarded::new(());

fn on_link(link: &'static Link) {
    for _ in 0..TURN {
        let Some(_reading) = READING.lock() else {
            return;
        };
        let _low = internal::Low::begin();
        // Closed behind the same lock, or by the end of a link that nobody reads any more.
        let Some(fd) = link.control().raw() else {
            return;
        };
        match message::receive(fd) {
            Received::Nothing => return,
            Received::Gone => {
                lost(link);
                return;
            }
            Received::Message(message, brought) => {
                if matches!(
                    message.kind,
                    Kind::Ask | Kind::Grant | Kind::Joined | Kind::Decline
                ) {
                    super::on_link_record(link, &message, &brought);
                    continue;
                }
                let [first, _] = brought;
                match message.kind {
                    Kind::WantBell => make_bell(link, message.index),
                    Kind::Bell => {
                        let owner = link.slot_owner(message.index);
                        // SAFETY: slots are owned by sets, whose memory is type-stable, or by 0.
                        let set = unsafe { (owner as *const Set).as_ref() };
                        if let (Some(set), Some(bell)) = (set, first) {
                            set.add_bell(link, message.index, bell);
                        }
                    }
                    Kind::Wake => wake::ring_own(link, message.index),
                    Kind::Attention => look(link, message.index),
                    Kind::DropBell => {
                        if link.drop_bell(message.index) {
                            // Rung a moment ago, perhaps, where nobody hears it.
                            ask_wake(link, message.index);
                        }
                    }
                    // Not for a link: a peer that says it breaks the rules.
                    _ => {
                        lost(link);
                        return;
                    }
                }
            }
        }
    }
}

/// The peer's slot gets a doorbell. Who finds none meanwhile asks for the ring.
fn make_bell(link: &'static Link, slot: u32) {
    link.drop_bell(slot);
    let Ok((near, far)) = sys::doorbell() else {
        return;
    };
    let Some(near) = internal::lift(near) else {
        return;
    };
    if tell(link, &Message::about(Kind::Bell, slot), &[far.raw()]) {
        link.set_bell(slot, near);
    } else {
        internal::forget(near.raw());
    }
}

/// The socket that uses stream `index` of a link.
pub(crate) fn sock_of(link: &'static Link, index: u32) -> Option<&'static Sock> {
    // SAFETY: streams are owned by socks, whose memory is type-stable, or by 0.
    let sock: &'static Sock = unsafe { (link.owner(index) as *const Sock).as_ref() }?;
    // Given out in a meeting that is not over, or put to another use meanwhile.
    let uses = sock.link().is_some_and(|l| core::ptr::eq(l, link))
        && sock.index.load(Ordering::Relaxed) == index;
    uses.then_some(sock)
}

/// The peer has changed the words of a stream: goes along with a demotion.
fn look(link: &'static Link, index: u32) {
    // It may have left a stream that this end had left before.
    super::trim::returned(link);
    let Some(sock) = sock_of(link, index) else {
        return;
    };
    if sock.tx.lock.lock().is_ok() {
        let sealed = sock
            .tx
            .dir()
            .is_some_and(|d| d.tx.tail.read().flagged || d.rx.head.read().flagged);
        if sealed && matches!(sock.tx.state(), state::LINK | state::PROVED) {
            demote::settle_tx(sock, Reason::PeerDemoted);
        }
        sock.tx.lock.unlock();
    }
    if sock.rx.lock.lock().is_ok() {
        let sealed = sock
            .rx
            .dir()
            .is_some_and(|d| d.tx.tail.read().flagged || d.rx.head.read().flagged);
        if sealed
            && matches!(
                sock.rx.state(),
                state::LINK | state::PROVED | state::DRAINING
            )
        {
            demote::settle_rx(sock, Reason::PeerDemoted);
        }
        sock.rx.lock.unlock();
    }
}

/// The peer's process is gone. What it left in our rings is still read; what we left in its rings
/// goes to TCP, where the kernel answers for it.
pub(super) fn lost(link: &'static Link) {
    let first = link.kill();
    // Also where it was given up before: a socket at its end that stays watched would never let us sleep again.
    link.control().close(|fd| {
        let set = SET.load(Ordering::Acquire);
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
        internal::forget(fd);
    });
    if !first {
        return;
    }
    sluice_stats::ROOT.links.lower(1);
    for index in 0..STREAMS {
        let Some(sock) = sock_of(link, index) else {
            continue;
        };
        if !lose(link, index, sock, false) {
            let generation = sock.generation.load(Ordering::Acquire);
            let deadline = sys::now_ns() + DYING_NS;
            add(Job::Lost(link, index, sock, generation, deadline));
        }
    }
    super::on_link_lost(link);
    crate::readiness::link_lost(link);
    link.close_if_unused();
}

/// A process that ends closes its link and its connections in no order of ours, within this time.
const DYING_NS: u64 = 20_000_000;

/// The peer of a stream is lost. False: it left bytes of ours unread, and its kernel has not said yet what
/// became of it; ask again, and at last `finally`.
fn lose(link: &'static Link, index: u32, sock: &'static Sock, finally: bool) -> bool {
    // Under the lock: the structure may have been put to another use meanwhile.
    let still = || sock_of(link, index).is_some_and(|s| core::ptr::eq(s, sock));
    if sock.tx.lock.lock().is_ok() {
        if still() && matches!(sock.tx.state(), state::LINK | state::PROVED) {
            if left_unread(sock) {
                match tcp::state(sock.fd.load(Ordering::Relaxed)) {
                    // A peer that closes or shuts down changes a word on the link first. One that only
                    // lost its control socket lives on, as do relatives that hold its socket.
                    Some(tcp::CLOSE_WAIT) => drop(demote::reset(sock)),
                    Some(tcp::ESTABLISHED) if !finally => {
                        sock.tx.lock.unlock();
                        return false;
                    }
                    _ => {}
                }
            }
            demote::settle_tx(sock, Reason::PeerDied);
        }
        sock.tx.lock.unlock();
    }
    if sock.rx.lock.lock().is_ok() {
        let unread = sock.rx.dir().is_some_and(|d| {
            let tail = d.tx.tail.read();
            !tail.flagged
                && d.tx_wishes.switched.load(Ordering::Acquire) == 1
                && tail.offset != sock.rx.at.load(Ordering::Relaxed)
        });
        if still() && sock.rx.state() != state::PLAIN && !unread {
            demote::settle_rx(sock, Reason::PeerDied);
        }
        sock.rx.lock.unlock();
    }
    true
}

/// Under the tx lock: the peer has not read all that we wrote, and has not demoted.
fn left_unread(sock: &'static Sock) -> bool {
    sock.tx.state() == state::LINK
        && sock.rx.state() != state::PLAIN
        && sock.tx.dir().is_some_and(|d| {
            let head = d.rx.head.read();
            !head.flagged
                && !d.tx.tail.read().flagged
                // Beyond: an offer that was taken, which our writer has not seen yet.
                && head.offset < sock.tx.at.load(Ordering::Relaxed)
        })
}

// --- jobs ---

/// What the reader of a full ring has done.
enum Reader {
    /// Nothing.
    Stuck,
    /// There is room, or nobody waits for it any more.
    Reads,
    /// It has read, to here, but not enough for room.
    ReadAndStopped(u64),
}

fn reader_since(sock: &'static Sock, seen: u64) -> Reader {
    if sock.tx.lock.lock().is_err() {
        return Reader::Reads;
    }
    let mut did = Reader::Reads;
    if let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) {
        let head = dir.rx.head.read().offset;
        let waiters = dir.tx_wishes.waiters.load(Ordering::SeqCst);
        if head == seen {
            did = Reader::Stuck;
        } else if waiters != 0 && !crate::readiness::has_room(sock) {
            did = Reader::ReadAndStopped(head);
        } else {
            // A reader rings at half a ring; there is room before that.
            wake::own(link, waiters, sock.index.load(Ordering::Relaxed));
        }
    }
    sock.tx.lock.unlock();
    did
}

/// Does what is due; the time until the next thing is.
fn do_jobs() -> Option<u64> {
    let mut due = JOBS
        .lock()
        .map(|mut list| core::mem::take(&mut *list))
        .unwrap_or_default();
    let now = sys::now_ns();
    let mut next = None;
    due.retain_mut(|job| match job {
        Job::Look(link, index) => {
            look(link, *index);
            false
        }
        Job::Ask(link) => {
            if link.is_alive() {
                super::on_link_up(link);
            }
            false
        }
        Job::Reap(link) => {
            link.close_if_unused();
            false
        }
        Job::Seek(sock, generation) => {
            if sock.generation.load(Ordering::Acquire) == *generation {
                remote::begin(sock, *generation);
            }
            false
        }
        Job::Advance(sock, generation) => {
            if sock.generation.load(Ordering::Acquire) == *generation {
                remote::advance(sock);
            }
            false
        }
        Job::AdvanceLater(sock, generation, due) => {
            if now < *due {
                let left = *due - now;
                next = Some(next.map_or(left, |n: u64| n.min(left)));
                return true;
            }
            if sock.generation.load(Ordering::Acquire) == *generation {
                remote::advance(sock);
            }
            false
        }
        Job::Bury(sock, generation) => {
            if sock.generation.load(Ordering::Acquire) == *generation {
                crate::sockets::life::bury(sock);
            }
            false
        }
        Job::Lost(link, index, sock, generation, deadline) => {
            if sock.generation.load(Ordering::Acquire) != *generation
                || lose(link, *index, sock, now >= *deadline)
            {
                return false;
            }
            next = Some(next.map_or(1_000_000, |n: u64| n.min(1_000_000)));
            true
        }
        Job::Far(far) => {
            let left = far.look(now);
            next = next.into_iter().chain(left).min();
            left.is_some()
        }
        Job::Full {
            sock,
            generation,
            seen,
            deadline,
        } => {
            if sock.generation.load(Ordering::Acquire) != *generation
                || sock.tx.state() != state::LINK
            {
                return false;
            }
            if now < *deadline {
                let left = *deadline - now;
                next = Some(next.map_or(left, |n: u64| n.min(left)));
                return true;
            }
            match reader_since(sock, *seen) {
                Reader::Stuck => demote::demote(sock, Which::Both, Reason::RingFull),
                Reader::Reads => {}
                Reader::ReadAndStopped(head) => {
                    // Its patience begins anew: it may have stopped for good this time.
                    let patience = wait::full_ns(sock);
                    (*seen, *deadline) = (head, now + patience);
                    next = Some(next.map_or(patience, |n: u64| n.min(patience)));
                    return true;
                }
            }
            false
        }
    });
    if let Some(mut list) = JOBS.lock() {
        if !list.is_empty() {
            // Came up meanwhile.
            next = Some(0);
        }
        list.append(&mut due);
    }
    next
}

// --- fork ---

/// Before a fork: nobody is inside what the child will use. This is what comes before the sockets' locks.
pub fn hold() {
    READING.hold();
    remote::hold();
    super::hold();
}

/// What comes behind the sockets' and the sets' locks: when nothing more is done to a stream.
pub fn hold_last() {
    super::hold_last();
    JOBS.hold();
    shm::hold();
    shm::hold_ledgers();
}

/// After a fork, on both sides: of [`hold_last`].
pub fn release_last() {
    shm::release();
    JOBS.release();
    super::release_last();
}

/// Of [`hold`].
pub fn release() {
    super::release();
    remote::release_hold();
    READING.release();
}

/// In the child: no thread, no jobs, no meetings.
pub fn after_fork() {
    RUN.store(STOPPED, Ordering::Release);
    if remote::is_used() {
        let wake = WAKE.swap(-1, Ordering::AcqRel);
        let old = PARENT.swap(wake, Ordering::AcqRel);
        WAKE.store(old, Ordering::Release);
    }
    for cell in [&SET, &WAKE] {
        let fd = cell.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            internal::forget(fd);
            let _ = sys::close(fd);
        }
    }
    if let Some(mut list) = JOBS.lock() {
        list.clear();
    }
    super::after_fork();
    remote::after_fork();
}
