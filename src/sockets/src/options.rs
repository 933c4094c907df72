//! Options and ioctls: noted where the link must honour them, a reason for TCP where it cannot.

use crate::sock::{Sock, State, role};
use crate::verdict::{Error, Pass, Verdict};
use crate::{demote, events, life, remains, remote, staged, tcp};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{c_int, c_void, socklen_t};
use sluice_fabric::layout::Direction;
use sluice_fabric::sys;
use sluice_runtime::caller;
use sluice_stats::Reason;
use sluice_transport::verbs;

/// linux/tcp.h and asm-generic/socket.h, where libc lacks them.
mod name {
    use libc::c_int;
    pub const TCP_MD5SIG_EXT: c_int = 32;
    pub const TCP_ZEROCOPY_RECEIVE: c_int = 35;
    pub const TCP_AO_ADD_KEY: c_int = 38;
    pub const TCP_AO_REPAIR: c_int = 42;
    pub const SO_ATTACH_REUSEPORT_CBPF: c_int = 51;
    pub const SO_ATTACH_REUSEPORT_EBPF: c_int = 52;
    pub const SO_TIMESTAMP_NEW: c_int = 63;
    pub const SO_TIMESTAMPNS_NEW: c_int = 64;
    pub const SO_TIMESTAMPING_NEW: c_int = 65;
    pub const SO_RCVTIMEO_NEW: c_int = 66;
    pub const SO_SNDTIMEO_NEW: c_int = 67;
    pub const SOL_TLS: c_int = 282;
    pub const TLS_TX: c_int = 1;
    pub const TLS_RX: c_int = 2;
}

/// Why a link cannot honour an option, if it cannot.
fn pins(level: c_int, option: c_int) -> Option<Reason> {
    match (level, option) {
        (libc::IPPROTO_TCP, libc::TCP_ULP) | (name::SOL_TLS, name::TLS_TX | name::TLS_RX) => {
            Some(Reason::TcpUlp)
        }
        (libc::IPPROTO_TCP, libc::TCP_REPAIR) => Some(Reason::TcpRepair),
        (libc::IPPROTO_TCP, libc::TCP_MD5SIG | name::TCP_MD5SIG_EXT) => Some(Reason::TcpMd5),
        (libc::IPPROTO_TCP, name::TCP_AO_ADD_KEY..=name::TCP_AO_REPAIR) => Some(Reason::TcpMd5),
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF) => {
            Some(Reason::AttachFilter)
        }
        (libc::SOL_SOCKET, name::SO_ATTACH_REUSEPORT_CBPF | name::SO_ATTACH_REUSEPORT_EBPF) => {
            Some(Reason::AttachFilter)
        }
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => Some(Reason::Zerocopy),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | name::SO_TIMESTAMPING_NEW) => {
            Some(Reason::Timestamping)
        }
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS) => Some(Reason::Timestamping),
        (libc::SOL_SOCKET, name::SO_TIMESTAMP_NEW | name::SO_TIMESTAMPNS_NEW) => {
            Some(Reason::Timestamping)
        }
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => Some(Reason::PeekOff),
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => Some(Reason::PacingRate),
        _ => None,
    }
}

/// What a program asks for by an option.
#[derive(Clone, Copy)]
pub struct Asked {
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: usize,
}

impl Asked {
    /// # Safety
    /// The arguments are those of a C caller of `setsockopt`.
    pub unsafe fn new(level: c_int, option: c_int, value: *const c_void, len: socklen_t) -> Self {
        Self {
            level,
            option,
            value,
            len: len as usize,
        }
    }

    fn is(&self, level: c_int, option: c_int) -> bool {
        (self.level, self.option) == (level, option)
    }

    /// The value, or its beginning; `None`: it is shorter, or lies where nothing is.
    fn get<T: Copy>(&self) -> Option<T> {
        if self.len < size_of::<T>() {
            return None;
        }
        // SAFETY: only used with integers and arrays of bytes; the caller of `new` has this many
        // there, unless they are missing.
        unsafe { caller::copy_on_trust(self.value.cast()) }
    }

    /// Is not even the beginning of the value there? Then the kernel refuses it.
    fn is_missing(&self) -> bool {
        caller::cannot_read(self.value as usize, self.len.min(size_of::<c_int>()))
    }

    /// Is the option turned off by this, or left as it is to begin with?
    fn is_off(&self) -> bool {
        match (self.level, self.option) {
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) if self.len >= size_of::<u64>() => {
                self.get() == Some(u64::MAX)
            }
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => self.get() == Some(u32::MAX),
            (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => self.get().is_some_and(|at: c_int| at < 0),
            (
                libc::SOL_SOCKET,
                libc::SO_ZEROCOPY
                | libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS
                | libc::SO_TIMESTAMPING
                | name::SO_TIMESTAMP_NEW
                | name::SO_TIMESTAMPNS_NEW
                | name::SO_TIMESTAMPING_NEW,
            ) => self.get() == Some(0 as c_int),
            _ => false,
        }
    }

    /// A low-water mark, or a time limit (two integers of 64 bits), such as the kernel takes.
    fn is_mark_or_time(&self) -> bool {
        if self.option == libc::SO_RCVLOWAT {
            self.get::<c_int>().is_some()
        } else {
            let time = self.get::<[i64; 2]>();
            time.is_some_and(|[_, micros]| (0..1_000_000).contains(&micros))
        }
    }

    /// Does the kernel only get ready for its TLS by this? It encrypts from the moment at which it
    /// is given keys. TLS libraries that can give them ask for it on every connection.
    fn is_tls_without_keys(&self) -> bool {
        self.is(libc::IPPROTO_TCP, libc::TCP_ULP)
            && self.get() == Some(*b"tls")
            && (self.len == 3 || self.get() == Some(*b"tls\0"))
    }

    /// Is it one of those that a stream honours, or that keep a connection on TCP?
    fn concerns_streams(&self) -> bool {
        let is_honoured = matches!(
            (self.level, self.option),
            (
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO
                    | name::SO_RCVTIMEO_NEW
                    | libc::SO_SNDTIMEO
                    | name::SO_SNDTIMEO_NEW
                    | libc::SO_RCVLOWAT
            ) | (libc::IPPROTO_TCP, libc::TCP_INQ)
        );
        is_honoured || pins(self.level, self.option).is_some()
    }

    /// Why a link cannot honour it, if it cannot.
    fn pins(&self, fd: c_int) -> Option<Reason> {
        let reason = pins(self.level, self.option)?;
        // Keys are refused where the kernel was not made ready for them.
        let are_vain = || {
            let ready = sys::getsockopt::<[u8; 4]>(fd, libc::IPPROTO_TCP, libc::TCP_ULP);
            self.level == name::SOL_TLS && ready != Ok(*b"tls\0")
        };
        let is_vain = || self.is_missing() || are_vain();
        (!self.is_off() && !self.is_tls_without_keys() && !is_vain()).then_some(reason)
    }
}

/// Whether a socket of this process may have an option that
/// [concerns streams](Asked::concerns_streams): any may, or those may that come from a listener.
/// Else the kernel need not be asked for a dozen of them.
static ANY: AtomicBool = AtomicBool::new(false);
/// See [`ANY`].
static FROM_LISTENERS: AtomicBool = AtomicBool::new(false);

/// Before each `setsockopt` of the program's on a socket of TCP.
pub fn sets(asked: &Asked) {
    if asked.concerns_streams() {
        may_be_set_unseen();
    }
}

/// The program may set options in a way that no hook sees.
pub fn may_be_set_unseen() {
    ANY.store(true, Ordering::Relaxed);
}

/// Another process has a listener, too, and may set options of it: a relative, or the one that had
/// it before.
pub fn shares_listeners() {
    FROM_LISTENERS.store(true, Ordering::Relaxed);
}

/// May the socket have such an option?
fn may_have_options(sock: &Sock) -> bool {
    let is_accepted = sock.role.load(Ordering::Relaxed) != role::CONNECTING;
    ANY.load(Ordering::Relaxed)
        || is_accepted && FROM_LISTENERS.load(Ordering::Relaxed)
        || sock.was_inherited.load(Ordering::Relaxed)
}

/// Before the real `setsockopt`.
pub fn before_set(sock: &'static Sock, fd: c_int, asked: Asked) {
    let (level, option) = (asked.level, asked.option);
    if let Some(reason) = asked.pins(fd) {
        match (reason, option) {
            // What was written before is not to be encrypted, signed, or left out of a repair; nor
            // is it stamped and counted.
            (Reason::TcpUlp | Reason::TcpMd5 | Reason::TcpRepair, _)
            | (Reason::Timestamping, libc::SO_TIMESTAMPING | name::SO_TIMESTAMPING_NEW) => {
                life::give_up(sock, reason);
                if asked.is(name::SOL_TLS, name::TLS_RX) {
                    // All that the kernel is to decrypt comes by TCP from here on, and is not
                    // counted as it was sent.
                    remains::await_all_owed(sock);
                    if let Ok(_section) = sock.rx.lock.enter() {
                        remains::renounce(sock);
                    }
                }
            }
            // The peer's record is looked for where a peek begins.
            (Reason::PeekOff, _) => life::give_up_to_read(sock, reason),
            _ => {
                life::goes_back(sock, reason);
            }
        }
        return;
    }
    if asked.is(libc::IPPROTO_TCP, libc::TCP_NODELAY)
        && let Some(on) = asked.get::<c_int>().map(|on| on != 0)
    {
        let calls = sock.nodelay.load(Ordering::Relaxed) >> 1;
        let noted = calls.wrapping_add(1) << 1 | u32::from(on);
        sock.nodelay.store(noted, Ordering::SeqCst);
    }
    if level != libc::SOL_SOCKET {
        return;
    }
    match option {
        libc::SO_SNDBUF | libc::SO_SNDBUFFORCE
            if sock.tx.state() == State::Link && !remote::is_remote(sock) =>
        {
            // What may lie unread must fit into the new size.
            if let Some(size) = asked.get::<c_int>()
                && let Ok(_section) = sock.tx.lock.enter()
            {
                let most = sock.tx.unread_max.load(Ordering::Relaxed);
                let most = most.min(size.max(2304) as u32);
                sock.tx.unread_max.store(most, Ordering::Relaxed);
            }
        }
        libc::SO_LINGER => own_linger(sock),
        libc::SO_RCVLOWAT
        | libc::SO_RCVTIMEO
        | name::SO_RCVTIMEO_NEW
        | libc::SO_SNDTIMEO
        | name::SO_SNDTIMEO_NEW
            if asked.is_mark_or_time() =>
        {
            // Both processes' from now on, and noted in this one alone: the kernel is to honour it.
            // First, since it would not tell the parent of a record from another host that is less
            // than the new mark.
            demote::takes_back_inherited(sock);
        }
        _ => {}
    }
}

/// The kernel has the program's own SO_LINGER again.
fn own_linger(sock: &'static Sock) {
    if let Ok(_section) = sock.tx.lock.enter() {
        staged::unstage(sock);
    }
}

/// Before the real `getsockopt`.
pub fn before_get(sock: &'static Sock, level: c_int, option: c_int) {
    if (level, option) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        own_linger(sock);
    }
    if (level, option) == (libc::IPPROTO_TCP, name::TCP_ZEROCOPY_RECEIVE) {
        // A read that looks at TCP alone.
        life::give_up_to_read(sock, Reason::ZerocopyReceive);
        remains::await_all_owed(sock);
    }
}

/// What `getsockopt` is to say where the kernel has another value than the program has set. Asked
/// before and after it: one is right.
pub fn own_value(sock: &Sock, level: c_int, option: c_int) -> Option<c_int> {
    let low = (level, option) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    let held = low && sock.low_held.load(Ordering::Acquire);
    held.then(|| sock.rcvlowat.load(Ordering::Relaxed) as c_int)
}

/// In place of a time limit: the kernel does not wait at all, as after a limit below zero. To
/// `getsockopt` it says what it says of no limit.
const AT_ONCE: u64 = 1;

/// After a `setsockopt` that succeeded.
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn after_set(
    sock: &'static Sock,
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
) {
    let cell = match (level, option) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | name::SO_RCVTIMEO_NEW) => Some(&sock.rcv_timeout_ns),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO | name::SO_SNDTIMEO_NEW) => Some(&sock.snd_timeout_ns),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => None,
        (libc::IPPROTO_TCP, libc::TCP_INQ) => return note_tells_unread(sock, fd),
        _ => return,
    };
    // Without the lock in a signal handler whose thread holds it.
    let section = sock.rx.lock.enter();
    if let Some(cell) = cell {
        // SAFETY: the kernel has read one there; both structs are two 64-bit integers here.
        let time = unsafe { core::ptr::read_unaligned(value.cast::<libc::timeval>()) };
        if time.tv_sec < 0 {
            cell.store(AT_ONCE, Ordering::Relaxed);
        } else if cell.load(Ordering::Relaxed) == AT_ONCE {
            cell.store(0, Ordering::Relaxed);
        }
    }
    // Without a stream they are the kernel's to honour, and to be read when one is attached.
    if sock.is_accelerated() {
        if cell.is_none() {
            // SAFETY: the kernel has read one there.
            note_low(sock, fd, unsafe {
                core::ptr::read_unaligned(value.cast::<c_int>())
            });
        } else {
            note(sock, fd);
        }
    }
    drop(section);
    if cell.is_none() {
        events::rcvlowat_set(sock);
    }
}

/// Reads from the kernel what calls on the link must honour: it has set the values right, and an
/// accepted socket has those of its listener. Under the rx lock, so that of two notes the later one
/// stands.
pub fn note(sock: &'static Sock, fd: c_int) {
    if !may_have_options(sock) {
        return;
    }
    for (option, cell) in [
        (libc::SO_RCVTIMEO, &sock.rcv_timeout_ns),
        (libc::SO_SNDTIMEO, &sock.snd_timeout_ns),
    ] {
        let Ok(time) = sys::getsockopt::<libc::timeval>(fd, libc::SOL_SOCKET, option) else {
            continue;
        };
        let (seconds, micros) = (time.tv_sec.max(0) as u64, time.tv_usec.max(0) as u64);
        let ns = seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(micros * 1000);
        if ns != 0 || cell.load(Ordering::Relaxed) != AT_ONCE {
            cell.store(ns, Ordering::Relaxed);
        }
    }
    note_tells_unread(sock, fd);
    if sock.low_held.load(Ordering::Relaxed) {
        return;
    }
    if let Ok(low) = sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
        sock.rcvlowat.store(low.max(1) as u32, Ordering::Relaxed);
    }
}

fn note_tells_unread(sock: &Sock, fd: c_int) {
    let tells = sys::getsockopt::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_INQ);
    let tells = tells.is_ok_and(|on| on != 0);
    sock.tells_unread.store(tells, Ordering::Relaxed);
}

/// Under the rx lock: what TCP has from here on may be the peer's record, of which the kernel is to
/// tell though it is less than the program's SO_RCVLOWAT.
pub fn hold_low(sock: &Sock) {
    if sock.rcvlowat.load(Ordering::Relaxed) > 1 && !sock.low_held.swap(true, Ordering::Relaxed) {
        set_low(sock, 1);
    }
}

/// Under the rx lock: what TCP has is the program's again.
pub fn release_low(sock: &Sock) {
    if sock.low_held.load(Ordering::Relaxed) {
        set_low(sock, sock.rcvlowat.load(Ordering::Relaxed) as c_int);
        // After that: until then what the kernel tells is looked at.
        sock.low_held.store(false, Ordering::Release);
    }
}

/// Under the rx lock: a call is about to sleep that fewer bytes are to wake than the program's
/// SO_RCVLOWAT, after which alone the kernel tells.
pub fn wait_below_low(sock: &Sock) {
    sock.low_waits.fetch_add(1, Ordering::Relaxed);
    hold_low(sock);
}

/// Under the rx lock, after [`wait_below_low`] and the sleep.
pub fn waited_below_low(sock: &Sock) {
    let waits = sock.low_waits.load(Ordering::Relaxed).saturating_sub(1);
    sock.low_waits.store(waits, Ordering::Relaxed);
    if waits == 0 && !remote::reads_link(sock) {
        release_low(sock);
    }
}

fn set_low(sock: &Sock, low: c_int) {
    let fd = sock.fd.load(Ordering::Relaxed);
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &low);
}

/// Under the rx lock: the program has asked for this SO_RCVLOWAT.
fn note_low(sock: &'static Sock, fd: c_int, asked: c_int) {
    if sock.low_held.swap(false, Ordering::Relaxed) {
        // The kernel's may have been changed since. (Where it cannot have been a second time would
        // be a second edge.)
        set_low(sock, asked);
    }
    note(sock, fd);
    if remote::reads_link(sock) || sock.low_waits.load(Ordering::Relaxed) != 0 {
        hold_low(sock);
    }
}

/// What the socket has from its listener that a link cannot honour, as far as the kernel tells.
pub fn inherited_pin(sock: &Sock) -> Option<Reason> {
    if !may_have_options(sock) {
        return None;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    if sys::has_filter(fd) {
        return Some(Reason::AttachFilter);
    }
    let option = |level, option| sys::getsockopt::<c_int>(fd, level, option);
    let is_on = |&(level, name): &_| option(level, name).is_ok_and(|value| value != 0);
    let flags = [
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    ];
    // All bits are on where there is no limit.
    let pace = sys::getsockopt::<u32>(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
    if pace.is_ok_and(|rate| rate != u32::MAX) {
        return Some(Reason::PacingRate);
    }
    if let Some((level, name)) = flags.into_iter().find(is_on) {
        return pins(level, name);
    }
    // Off is -1.
    option(libc::SOL_SOCKET, libc::SO_PEEK_OFF)
        .is_ok_and(|at| at >= 0)
        .then_some(Reason::PeekOff)
}

/// Bytes that TCP has not sent even once (linux/sockios.h).
const SIOCOUTQNSD: u64 = 0x894b;

/// Has TCP send what it holds back (a last segment that is not full, by Nagle's rule, TCP_CORK or
/// MSG_MORE) for a write that goes to the ring instead, or for bytes that lay in the ring for the
/// reader to see. Setting TCP_NODELAY does so whatever else is set; what the program wants of it
/// stands afterwards.
pub fn push_out(sock: &Sock, fd: c_int) {
    if sys::ioctl_int(fd, SIOCOUTQNSD) == Ok(0) {
        return;
    }
    let before = sock.nodelay.load(Ordering::SeqCst);
    let was = sys::getsockopt::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    let set = |on: c_int| {
        let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on);
    };
    set(1);
    if was == Ok(0) {
        set(0);
        let now = sock.nodelay.load(Ordering::SeqCst);
        if now != before && now & 1 != 0 {
            // The program set it in between, and its call is over or to come.
            set(1);
        }
    }
}

/// `ioctl` on a tracked socket.
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn ioctl(sock: &'static Sock, fd: c_int, request: u64, arg: usize) -> Verdict {
    let counts = request == libc::FIONREAD || request == libc::TIOCOUTQ;
    if counts && demote::takes_back_inherited(sock) && request == libc::FIONREAD {
        remains::await_all_owed(sock);
    }
    let total = match count(sock, fd, request) {
        Some(total) => total,
        None => return Verdict::Pass(Pass::NOBODY),
    };
    match total {
        Ok(total) => {
            if caller::cannot_write(arg, size_of::<c_int>()) {
                return Verdict::Failed(Error::BadAddress);
            }
            // SAFETY: the caller's pointer to an int, which can be written.
            unsafe { core::ptr::write_unaligned(arg as *mut c_int, total) };
            Verdict::Done(0)
        }
        Err(e) => Verdict::Failed(Error::Kernel(e)),
    }
}

/// What FIONREAD or TIOCOUTQ counts; `None`: the kernel knows it.
fn count(sock: &'static Sock, fd: c_int, request: u64) -> Option<Result<c_int, sys::Errno>> {
    let (count, kernel) = loop {
        if request == libc::FIONREAD {
            demote::follow_rx(sock);
            if sock.rx.owed.load(Ordering::Relaxed) != 0 {
                remains::await_owed(sock);
            }
        }
        let (of_ring, count) = match request {
            libc::FIONREAD if sock.rx.state() != State::Plain => (true, unread(sock)),
            libc::FIONREAD if sock.remains.are_kept() => (false, remains::unread(sock, fd)),
            libc::TIOCOUTQ if sock.tx.state() != State::Plain => (false, unsent(sock)),
            _ => return None,
        };
        let kernel = sys::ioctl_int(fd, request);
        // What is in the ring no more may have been with TCP already, and count twice.
        if !of_ring || count == 0 || unread(sock) != 0 {
            break (count, kernel);
        }
    };
    // What TCP has beyond the peer's N is a record, and none of the program's bytes.
    let of_link = request == libc::FIONREAD && remote::hides_tcp(sock);
    Some(kernel.map(|kernel| {
        let kernel = if of_link { 0 } else { kernel };
        u64::try_from(kernel)
            .unwrap_or(0)
            .saturating_add(count)
            .min(c_int::MAX as u64) as c_int
    }))
}

/// What TCP_INQ tells after a read of a socket with a stream: the bytes that are left, and 1 for
/// the end after them (tcp_inq_hint). A program that is told 0 waits for news (the edge of epoll),
/// so 0 is said only where nothing is left for certain: of what may come to 0 TCP is asked.
pub fn left_to_read(sock: &'static Sock, fd: c_int) -> c_int {
    if sock.has_shut_reading() {
        return 0;
    }
    let is_local_link = sock.rx.state() == State::Link && !remote::is_remote(sock);
    if is_local_link {
        let in_ring = unread(sock).min(c_int::MAX as u64) as c_int;
        if in_ring != 0 {
            return in_ring;
        }
    }
    let left = match count(sock, fd, libc::FIONREAD) {
        Some(left) => left,
        None => sys::ioctl_int(fd, libc::FIONREAD),
    };
    match left {
        Ok(0) if is_local_link && !is_offered(sock) && tcp::is_silent(fd) => 0,
        Ok(left @ 1..) => left,
        _ => 1,
    }
}

/// Does the peer offer what it has not written?
fn is_offered(sock: &'static Sock) -> bool {
    let Ok(_section) = sock.rx.lock.enter() else {
        return true;
    };
    // 0: one is in the making.
    let seen = [0, sock.direct.seen.load(Ordering::Relaxed)];
    let offers = |dir: &Direction| !seen.contains(&dir.offer.word.load(Ordering::Acquire));
    sock.rx.dir().is_none_or(offers)
}

/// Bytes in the ring that this end has not read.
pub fn unread(sock: &'static Sock) -> u64 {
    let Ok(_section) = sock.rx.lock.enter() else {
        return 0;
    };
    if let Some(link) = sock.link() {
        verbs::drive(link);
    }
    let count = sock.rx.dir().map_or(0, |d| {
        let tail = d.tx.tail.read();
        let switched = d.tx_wishes.switched.load(Ordering::Acquire) == 1;
        if switched && !tail.flagged {
            tail.offset.wrapping_sub(sock.rx.at.load(Ordering::Relaxed))
        } else {
            0
        }
    });
    let most = sock.rx.ring().map_or(0, |r| r.len());
    count.min(most)
}

/// Bytes that SIOCOUTQ adds to the kernel's. What lies in the ring has reached the peer: TCP would
/// have had it acknowledged, until its window closes; so a full ring counts, and so do bytes that
/// are being sent again.
pub fn unsent(sock: &'static Sock) -> u64 {
    let Ok(_section) = sock.tx.lock.enter() else {
        return 0;
    };
    if let Some(link) = sock.link() {
        verbs::drive(link);
    }
    match sock.tx.state() {
        State::Link if !events::has_room(sock) => sock.tx.dir().map_or(0, |d| {
            sock.tx
                .at
                .load(Ordering::Relaxed)
                .wrapping_sub(d.rx.head.read().offset)
        }),
        State::Resending => sock.family().map_or(0, |f| {
            sock.tx
                .at
                .load(Ordering::Relaxed)
                .saturating_sub(f.resent())
        }),
        _ => 0,
    }
}
