//! What the kernel says of a connection (`TCP_INFO`, `SO_MEMINFO`), and is asked to say to its
//! peer.

use libc::{c_int, iovec};
use sluice_fabric::sys;
use sluice_runtime::iov::Cursor;

/// Both directions are open.
pub const ESTABLISHED: u8 = 1;
/// This end has ended what it writes, and reads on: before and after the peer has acknowledged
/// that.
pub const FIN_WAIT1: u8 = 4;
/// See [`FIN_WAIT1`].
pub const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;
/// A reset has come, or both ends.
pub const CLOSE: u8 = 7;
/// The peer's end has come, ours has not been sent.
pub const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// A `struct tcp_info` up to what is needed here (linux/tcp.h).
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    state: u8,
    small: [u8; 7],
    /// Options up to `tcpi_rcv_mss`.
    words: [u32; 4],
    /// Segments under way.
    unacked: u32,
    /// From `tcpi_sacked` to `tcpi_total_retrans`.
    others: [u32; 19],
    pacing: [u64; 2],
    bytes_acked: u64,
    bytes_received: u64,
    segments: [u32; 2],
    /// Bytes that were written and not sent yet.
    unsent: u32,
    /// The shortest round trip of late, in microseconds; all bits: none was measured.
    min_rtt: u32,
}

fn info(fd: i32) -> Option<Info> {
    sys::getsockopt::<Info>(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()
}

/// The kernel's state of the connection.
pub fn state(fd: i32) -> Option<u8> {
    info(fd).map(|info| info.state)
}

/// Is the peer's half of the connection over in this state, by an end or a reset?
pub fn is_over(state: u8) -> bool {
    matches!(state, TIME_WAIT | CLOSE | CLOSE_WAIT | LAST_ACK | CLOSING)
}

/// Is nothing more to come from the peer by this TCP, because of its end, a reset, or a number that
/// is closed? What is here may not be read yet.
pub fn has_ended(fd: i32) -> bool {
    state(fd).is_none_or(is_over)
}

/// Is the peer so far away that TCP may keep more bytes under way than a ring holds? At a round
/// trip of a millisecond a ring of 256 KiB carries 2 Gbit/s.
pub fn is_far(fd: i32) -> bool {
    const FAR_US: u32 = 1000;
    info(fd).is_some_and(|info| (FAR_US..u32::MAX).contains(&info.min_rtt))
}

/// What was written to TCP so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// How many bytes.
    pub bytes: u64,
    /// The peer has acknowledged all of them.
    pub is_acknowledged: bool,
}

/// See [`Written`]; `None` unless this end may write, and is still.
///
/// `bytes_acked + SIOCOUTQ`, read until `bytes_acked` stands still; the count of the end that
/// connected (`syn`) includes its SYN. Where nothing is on its way one look says all.
pub fn written(fd: i32, syn: bool) -> Option<Written> {
    for _ in 0..8 {
        let before = info(fd)?;
        let is_acknowledged = before.unacked == 0 && before.unsent == 0;
        if is_acknowledged && matches!(before.state, ESTABLISHED | CLOSE_WAIT) {
            let bytes = before.bytes_acked.checked_sub(u64::from(syn))?;
            return Some(Written {
                bytes,
                is_acknowledged,
            });
        }
        let unsent = sys::ioctl_int(fd, libc::TIOCOUTQ).ok()? as u64;
        let after = info(fd)?;
        if !matches!(after.state, ESTABLISHED | CLOSE_WAIT) {
            return None;
        }
        if before.bytes_acked == after.bytes_acked {
            let bytes = (after.bytes_acked + unsent).checked_sub(u64::from(syn))?;
            return Some(Written {
                bytes,
                is_acknowledged: false,
            });
        }
    }
    None
}

/// How far a connection's input has come. Where the peer's half [is over](is_over), both counts may
/// have one more: its FIN.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// The kernel's state of the connection.
    pub state: u8,
    /// Bytes that have come.
    pub received: u64,
    /// Bytes of these that have been read, by whomever.
    pub read: u64,
}

/// The same, where this program's hooks have read so many bytes: if no more have come, all were
/// read, and by them.
pub(crate) fn input_after(fd: i32, read: u64) -> Option<Input> {
    let info = info(fd)?;
    if info.bytes_received == read {
        return Some(Input {
            state: info.state,
            received: read,
            read,
        });
    }
    input(fd)
}

/// See [`Input`]; `None` unless still.
pub fn input(fd: i32) -> Option<Input> {
    for _ in 0..8 {
        let before = info(fd)?;
        let unread = sys::ioctl_int(fd, libc::FIONREAD).ok()? as u64;
        let after = info(fd)?;
        if before.bytes_received == after.bytes_received && before.state == after.state {
            return Some(Input {
                state: after.state,
                received: after.bytes_received,
                read: after.bytes_received.checked_sub(unread)?,
            });
        }
    }
    None
}

/// Has TCP neither bytes nor an end nor an error to tell?
pub fn is_silent(fd: i32) -> bool {
    let mut byte = 0u8;
    let look = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: a byte of ours.
    let got = unsafe { sys::recv(fd, &raw mut byte, 1, look) };
    got == Err(libc::EAGAIN)
}

/// How many bytes lie unread on TCP; 0 where the kernel does not say.
pub fn unread(fd: i32) -> u64 {
    sys::ioctl_int(fd, libc::FIONREAD).map_or(0, |n| n.max(0) as u64)
}

/// Has the kernel acknowledge what was read, unless it has: an answer by TCP would, and this one
/// goes by the link. A peer that writes a little by TCP now would have it held back for that
/// (Nagle's rule, RFC 9293, 3.7.4) until the kernel acknowledges on its own, up to 40 ms later.
pub(crate) fn acknowledge(fd: i32) {
    /// At once what is due (`__tcp_sock_set_quickack` of Linux, where only odd numbers last). The
    /// kernel finds out anew how soon it acknowledges what comes later.
    const ONCE: i32 = 2;
    let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &ONCE);
}

/// As [`acknowledge`], and what comes during `wait` as soon as it does: the peer's window opens by
/// that.
pub(crate) fn while_acknowledging(fd: i32, wait: impl FnOnce()) {
    let set = |on: i32| sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &on);
    let was = sys::getsockopt::<i32>(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK);
    let _ = set(1);
    wait();
    if was == Ok(0) {
        let _ = set(0);
    }
}

/// SK_MEMINFO_* of linux/sock_diag.h, since Linux 4.12: in use of the receive buffer, its size,
/// ..., the size of the send buffer, ..., in use of that.
type Meminfo = [u32; 6];

/// Does TCP take so many bytes that nobody reads for now, beside what it has? A buffer that the
/// program has left to the kernel grows for them. (The window follows it as bytes come.)
pub fn takes(fd: i32, bytes: u64) -> bool {
    /// Its size against that of what it is to take: the kernel counts what it needs for keeping a
    /// byte, too.
    const SPARE: u64 = 3;
    let size = |bytes: u64| i32::try_from(bytes).unwrap_or(i32::MAX);
    let set = |low: i32| sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &low);
    let room = || {
        let [used, size, ..] =
            sys::getsockopt::<Meminfo>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO).unwrap_or_default();
        u64::from(size.saturating_sub(used)) >= SPARE * bytes
    };
    if room() {
        return true;
    }
    // The one way to have it grow which does not fix its size for good (tcp_set_rcvlowat). A
    // sleeper is told anew when it is put back.
    if let Ok(low) = sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT)
        && set(size(SPARE * bytes)).is_ok()
    {
        let _ = set(low);
    }
    room()
}

/// The send buffer, in the kernel's bytes, which count what it needs for keeping a byte, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendBuffer {
    /// What it may grow to (SO_SNDBUF).
    pub size: u32,
    /// What of it is in use: what was written and the peer's kernel has not acknowledged.
    pub used: u32,
}

/// See [`SendBuffer`]; `None`: it is no socket.
pub(crate) fn send_buffer(fd: i32) -> Option<SendBuffer> {
    if let Ok([_, _, _, size, _, used]) =
        sys::getsockopt::<Meminfo>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO)
    {
        return Some(SendBuffer { size, used });
    }
    let size = sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).ok()?;
    let bytes = sys::ioctl_int(fd, libc::TIOCOUTQ).ok()?;
    Some(SendBuffer {
        size: size.max(0) as u32,
        used: bytes.max(0) as u32,
    })
}

/// Has TCP bytes, an end or an error to tell? Asks without taking the error. `has_mark`: it has an
/// SO_RCVLOWAT, below which `poll` says nothing.
pub(crate) fn speaks(fd: c_int, has_mark: bool) -> bool {
    sys::poll_one(fd, libc::POLLIN, Some(sys::timespec(0))) != Ok(0) || has_mark && has_bytes(fd)
}

/// What a call that has got something finds on TCP.
pub enum AtHand {
    /// Something to read.
    Bytes,
    /// Nothing so far.
    Nothing,
    /// An end or an error, which is the next call's to report: a try would take it. (After bytes
    /// it takes none.)
    Over,
}

/// Looks without taking anything.
pub(crate) fn at_hand(fd: c_int) -> AtHand {
    if has_bytes(fd) {
        AtHand::Bytes
    } else if sys::poll_one(fd, libc::POLLIN, Some(sys::timespec(0))) == Ok(0) {
        AtHand::Nothing
    } else if has_bytes(fd) {
        // They have come between the two.
        AtHand::Bytes
    } else {
        AtHand::Over
    }
}

/// Has TCP bytes to read?
pub fn has_bytes(fd: c_int) -> bool {
    sys::ioctl_int(fd, libc::FIONREAD).is_ok_and(|n| n > 0)
}

/// What TCP has now, from where the cursor is on.
///
/// # Safety
/// The caller's buffers.
pub(crate) unsafe fn recv_now(
    fd: c_int,
    cursor: &Cursor,
    flags: c_int,
) -> Result<usize, sys::Errno> {
    let mut room = [iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; 64];
    let pieces = cursor.rest(&mut room);
    // SAFETY: zeroes are a valid header.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = pieces.as_mut_ptr();
    msg.msg_iovlen = pieces.len();
    let asked = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    // SAFETY: passed on.
    unsafe { sys::recvmsg(fd, &raw mut msg, asked) }
}

/// Looks at what TCP has, before what is kept: so many bytes.
///
/// # Safety
/// The caller's buffers.
pub unsafe fn peek(fd: c_int, cursor: &Cursor, flags: c_int) -> usize {
    // SAFETY: passed on.
    unsafe { recv_now(fd, cursor, flags | libc::MSG_PEEK) }.unwrap_or(0)
}
