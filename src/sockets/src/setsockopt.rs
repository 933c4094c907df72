//! The program's `setsockopt` and `getsockopt`. An option that the link must honour is noted; one
//! that it cannot honour sends the connection back to TCP.

use crate::options::{self, AT_ONCE, name, note, note_low, note_tells_unread, pins};
use crate::socket::{Socket, State};
use crate::unread_copy::{self, awaiting};
use crate::{demote, events, give_up};
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, socklen_t};
use sluice_fabric::sys;
use sluice_runtime::caller;
use sluice_stats::Reason;

/// A call of `setsockopt`.
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

    /// The value, or its beginning. `None`: it is shorter, or not mapped.
    fn get<T: Copy>(&self) -> Option<T> {
        if self.len < size_of::<T>() {
            return None;
        }
        // SAFETY: `T` is an integer or an array of bytes, for which any bytes are valid. The caller
        // of `new` has `len` bytes there, unless they are known to be unmapped.
        unsafe { caller::copy_on_trust(self.value.cast()) }
    }

    /// Returns whether not even the beginning of the value is mapped; then the kernel refuses the
    /// call.
    fn is_missing(&self) -> bool {
        caller::cannot_read(self.value as usize, self.len.min(size_of::<c_int>()))
    }

    /// Returns whether the call turns the option off, or sets its default.
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

    /// Returns whether the value is a low-water mark or a timeout (two 64-bit integers) that the
    /// kernel accepts.
    fn is_mark_or_time(&self) -> bool {
        if self.option == libc::SO_RCVLOWAT {
            self.get::<c_int>().is_some()
        } else {
            let time = self.get::<[i64; 2]>();
            time.is_some_and(|[_, micros]| (0..1_000_000).contains(&micros))
        }
    }

    /// Returns whether the call only prepares the kernel for TLS, as TLS libraries do on every
    /// connection. The kernel encrypts once it has keys.
    fn is_tls_without_keys(&self) -> bool {
        self.is(libc::IPPROTO_TCP, libc::TCP_ULP)
            && self.get() == Some(*b"tls")
            && (self.len == 3 || self.get() == Some(*b"tls\0"))
    }

    /// Returns whether the option is one that streams honour or that keeps a connection on TCP.
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

    /// Why a link cannot honour the call, if so.
    fn pins(&self, fd: c_int) -> Option<Reason> {
        let reason = pins(self.level, self.option)?;
        // The kernel refuses keys unless it was prepared for TLS.
        let are_vain = || {
            let ready = sys::getsockopt::<[u8; 4]>(fd, libc::IPPROTO_TCP, libc::TCP_ULP);
            self.level == name::SOL_TLS && ready != Ok(*b"tls\0")
        };
        let is_vain = || self.is_missing() || are_vain();
        (!self.is_off() && !self.is_tls_without_keys() && !is_vain()).then_some(reason)
    }
}

/// Called before each `setsockopt` of the program on a TCP socket.
pub fn sets(asked: &Asked) {
    if asked.concerns_streams() {
        options::may_be_set_unseen();
    }
}

/// Called before the real `setsockopt`.
pub fn before_set(sock: &'static Socket, fd: c_int, asked: Asked) {
    let (level, option) = (asked.level, asked.option);
    if let Some(reason) = asked.pins(fd) {
        match (reason, option) {
            // What was written before must not be encrypted, signed, left out of a repair, or
            // stamped and counted, so the re-send must end first.
            (Reason::TcpUlp | Reason::TcpMd5 | Reason::TcpRepair, _)
            | (Reason::Timestamping, libc::SO_TIMESTAMPING | name::SO_TIMESTAMPING_NEW) => {
                give_up::finish(sock, reason);
                if asked.is(name::SOL_TLS, name::TLS_RX) {
                    // What the kernel will decrypt comes by TCP from here on, in other numbers of
                    // bytes than were sent.
                    awaiting::await_all_owed(sock);
                    if let Ok(_section) = sock.rx.lock.enter() {
                        unread_copy::renounce(sock);
                    }
                }
            }
            // The library peeks for the peer's record, and SO_PEEK_OFF would move that peek.
            (Reason::PeekOff, _) => give_up::to_read(sock, reason),
            _ => {
                give_up::begin(sock, reason);
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
            if sock.tx.state() == State::Link && !sock.carrier().keeps_arrived =>
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
            // The option now belongs to both processes, and only this one knows of it, so the
            // kernel must honour it. The stream goes back first: with the new mark, the kernel
            // would not report another host's record, which is shorter, to the parent.
            demote::takes_back_inherited(sock);
        }
        _ => {}
    }
}

/// Gives the kernel the program's own SO_LINGER again.
fn own_linger(sock: &'static Socket) {
    if let Ok(_section) = sock.tx.lock.enter() {
        sock.staged.unstage(sock.fd.load(Ordering::Relaxed));
    }
}

/// Called before the real `getsockopt`.
pub fn before_get(sock: &'static Socket, level: c_int, option: c_int) {
    if (level, option) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        own_linger(sock);
    }
    if (level, option) == (libc::IPPROTO_TCP, name::TCP_ZEROCOPY_RECEIVE) {
        // This call reads from TCP alone.
        give_up::to_read(sock, Reason::ZerocopyReceive);
        awaiting::await_all_owed(sock);
    }
}

/// The value that `getsockopt` must report if the kernel has another than the program has set.
/// Asked before and after the call; if either has one, that is right.
pub fn own_value(sock: &Socket, level: c_int, option: c_int) -> Option<c_int> {
    let low = (level, option) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    let held = low && sock.low_held.load(Ordering::Acquire);
    held.then(|| sock.rcvlowat.load(Ordering::Relaxed) as c_int)
}

/// Called after a `setsockopt` that succeeded.
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn after_set(
    sock: &'static Socket,
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
    // In a signal handler whose thread holds the lock, this goes on without it.
    let section = sock.rx.lock.enter();
    if let Some(cell) = cell {
        // SAFETY: the kernel has just read a value there; both structs are two 64-bit integers
        // here.
        let time = unsafe { core::ptr::read_unaligned(value.cast::<libc::timeval>()) };
        if time.tv_sec < 0 {
            cell.store(AT_ONCE, Ordering::Relaxed);
        } else if cell.load(Ordering::Relaxed) == AT_ONCE {
            cell.store(0, Ordering::Relaxed);
        }
    }
    // Without a stream the kernel honours them, and they are read when a stream is attached.
    if sock.is_accelerated() {
        if cell.is_none() {
            // SAFETY: the kernel has just read an integer there.
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
