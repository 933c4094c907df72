//! The kernel's side of a connection: what `TCP_INFO` and `SO_MEMINFO` say, and options by which
//! the kernel is made to grow a buffer or to send an ACK.

use libc::{c_int, iovec};
use sluice_fabric::sys;
use sluice_runtime::iov::Cursor;

/// Both directions are open.
pub const ESTABLISHED: u8 = 1;
/// This end has sent its FIN and still reads; the peer has not acknowledged the FIN yet.
pub const FIN_WAIT1: u8 = 4;
/// The same, once the FIN is acknowledged.
pub const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;
/// Reset, or both FINs were acknowledged.
pub const CLOSE: u8 = 7;
/// The peer's FIN has come; this end has not sent its own.
pub const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// `struct tcp_info` as far as it is needed here (linux/tcp.h).
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    state: u8,
    small: [u8; 7],
    /// From the options to `tcpi_rcv_mss`.
    words: [u32; 4],
    /// Segments in flight.
    unacked: u32,
    /// From `tcpi_sacked` to `tcpi_total_retrans`.
    others: [u32; 19],
    pacing: [u64; 2],
    bytes_acked: u64,
    bytes_received: u64,
    segments: [u32; 2],
    /// Bytes written and not sent yet.
    unsent: u32,
    /// The shortest recent round trip in microseconds; all bits set: not measured.
    min_rtt: u32,
}

fn info(fd: i32) -> Option<Info> {
    sys::getsockopt::<Info>(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()
}

/// The kernel's state of the connection.
pub fn state(fd: i32) -> Option<u8> {
    info(fd).map(|info| info.state)
}

/// Returns whether the peer's direction has ended in this state, by a FIN or an RST.
pub fn is_over(state: u8) -> bool {
    matches!(state, TIME_WAIT | CLOSE | CLOSE_WAIT | LAST_ACK | CLOSING)
}

/// Returns whether TCP receives nothing more: FIN, RST, or `fd` is closed. Unread bytes may remain.
pub fn has_ended(fd: i32) -> bool {
    state(fd).is_none_or(is_over)
}

/// How TCP fares over its path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    /// The shortest recent round trip in ns; 0: TCP has seen none.
    pub rtt_ns: u64,
    /// Bytes that the peer has acknowledged.
    pub acked: u64,
    /// The program has written more than TCP could send by now.
    pub has_more: bool,
}

/// Looks at the path.
pub(crate) fn path(fd: i32) -> Path {
    info(fd).map_or_else(Path::default, |info| Path {
        rtt_ns: match info.min_rtt {
            u32::MAX => 0,
            us => u64::from(us) * 1000,
        },
        acked: info.bytes_acked,
        has_more: info.unsent > 0,
    })
}

/// How much was written to TCP so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Number of bytes.
    pub bytes: u64,
    /// The peer has acknowledged all of them.
    pub is_acknowledged: bool,
}

/// Counts the bytes written to TCP. `None` if this end may not write any more, or the count does
/// not settle.
///
/// The count is `bytes_acked + SIOCOUTQ`, read until `bytes_acked` does not change meanwhile, less
/// the SYN at the end that connected (`syn`). If nothing is in flight, one look is enough.
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

/// A connection's input. Once the peer's direction [has ended](is_over), both counts may include 1
/// for its FIN.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// The kernel's state of the connection.
    pub state: u8,
    /// Bytes received.
    pub received: u64,
    /// Bytes of these that were read, by any process.
    pub read: u64,
}

/// [`input`], knowing that this process's hooks have read `read` bytes: if no more were received,
/// the hooks have read them all, and one look is enough.
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

/// Reads the input's state. `None` if it does not settle.
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

/// Returns whether TCP has no bytes, no FIN and no error to report.
pub fn is_silent(fd: i32) -> bool {
    let mut byte = 0u8;
    let look = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: room for the one byte.
    let got = unsafe { sys::recv(fd, &raw mut byte, 1, look) };
    got == Err(libc::EAGAIN)
}

/// Bytes unread on TCP; 0 if the kernel does not say.
pub fn unread(fd: i32) -> u64 {
    sys::ioctl_int(fd, libc::FIONREAD).map_or(0, |n| n.max(0) as u64)
}

/// Makes the kernel acknowledge what was read, since this end's answer goes by the link and carries
/// no ACK. Otherwise Nagle's rule (RFC 9293, 3.7.4) at the peer holds back a small write for up to
/// 40 ms, until the delayed ACK.
pub(crate) fn acknowledge(fd: i32) {
    /// Sends the ACK that is due now. The kernel then decides anew about later ones
    /// (`__tcp_sock_set_quickack` in Linux, where only odd numbers last).
    const ONCE: i32 = 2;
    let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &ONCE);
}

/// Like [`acknowledge`], and acknowledges at once whatever comes during `wait`, so that the peer's
/// window opens.
pub(crate) fn while_acknowledging(fd: i32, wait: impl FnOnce()) {
    let set = |on: i32| sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &on);
    let was = sys::getsockopt::<i32>(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK);
    let _ = set(1);
    wait();
    if was == Ok(0) {
        let _ = set(0);
    }
}

/// SK_MEMINFO_* of linux/sock_diag.h, since Linux 4.12: receive buffer in use, its size, ..., size
/// of the send buffer, ..., send buffer in use.
type Meminfo = [u32; 6];

/// Returns whether TCP has room for `bytes` more that nobody reads for now. A buffer whose size the
/// program has left to the kernel is grown. (The window follows as bytes come.)
pub fn takes(fd: i32, bytes: u64) -> bool {
    /// Buffer needed per byte: the kernel also counts its overhead.
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
    // The only way to grow the buffer without fixing its size for good (`tcp_set_rcvlowat`).
    // Restoring the value wakes sleepers once more.
    if let Ok(low) = sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT)
        && set(size(SPARE * bytes)).is_ok()
    {
        let _ = set(low);
    }
    room()
}

/// The send buffer, in the kernel's bytes, which include its overhead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendBuffer {
    /// Its limit (SO_SNDBUF).
    pub size: u32,
    /// In use: written and not acknowledged by the peer's kernel.
    pub used: u32,
}

/// Reads the send buffer's state. `None`: `fd` is no socket.
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

/// Returns whether TCP has bytes, a FIN or an error to report, without consuming the error. Of
/// fewer bytes than `low_mark` (SO_RCVLOWAT) `poll` does not report, so they are asked for.
pub(crate) fn speaks(fd: c_int, low_mark: u32) -> bool {
    sys::poll_one(fd, libc::POLLIN, Some(sys::timespec(0))) != Ok(0)
        || low_mark > 1 && has_bytes(fd)
}

/// What a call that has got bytes finds on TCP.
pub enum AtHand {
    /// Bytes to read.
    Bytes,
    /// Nothing so far.
    Nothing,
    /// FIN or error, for the next call to report: trying to read would consume the error. (A read
    /// that returns bytes does not.)
    End,
}

/// Looks without consuming anything.
pub(crate) fn at_hand(fd: c_int) -> AtHand {
    if has_bytes(fd) {
        AtHand::Bytes
    } else if sys::poll_one(fd, libc::POLLIN, Some(sys::timespec(0))) == Ok(0) {
        AtHand::Nothing
    } else if has_bytes(fd) {
        // They came between the two looks.
        AtHand::Bytes
    } else {
        AtHand::End
    }
}

/// Returns whether TCP has bytes to read.
pub fn has_bytes(fd: c_int) -> bool {
    sys::ioctl_int(fd, libc::FIONREAD).is_ok_and(|n| n > 0)
}

/// Reads what TCP has now into the cursor's buffers, without waiting.
///
/// # Safety
/// The cursor covers valid buffers of the caller.
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
    // SAFETY: `pieces` lists buffers that the caller guarantees, and outlives the call.
    unsafe { sys::recvmsg(fd, &raw mut msg, asked) }
}

/// Peeks at what TCP has; returns how many bytes.
///
/// # Safety
/// The cursor covers valid buffers of the caller.
pub unsafe fn peek(fd: c_int, cursor: &Cursor, flags: c_int) -> usize {
    // SAFETY: the caller guarantees the cursor's buffers.
    unsafe { recv_now(fd, cursor, flags | libc::MSG_PEEK) }.unwrap_or(0)
}
