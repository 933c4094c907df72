//! Doorbells for waiters that sleep on descriptors: how the two processes make one
//! ([decision 18](../../../../docs/decisions/018-doorbells-towards-others.md)).
//!
//! Between processes of one user the ringer makes a pipe and sends the sleeper its reading end.
//! A peer of another user could hold a process up by that: a pipe's two ends share a lock, and a
//! descriptor may belong to any file. So there the sleeper binds a name, the ringer connects to it,
//! and each has a socket of its own that accepts no descriptor.

use super::identity;
use super::message::Brought;
use core::mem::offset_of;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::{self, Fd, ShortPath};
use sluice_runtime::own_fds;

/// Connections that may queue at the sleeper's name. Those of other processes than the ringer are
/// closed.
const BACKLOG: i32 = 4;

/// How a doorbell is asked for.
pub(super) enum Wanted {
    /// A pipe.
    Pipe,
    /// A socket that connects to this name, which has this number.
    At(Fd, u64),
    /// Not at all: this kernel cannot keep descriptors out of a socket.
    No,
}

/// Called by the sleeper: how it asks the peer of this link for a doorbell.
pub(super) fn wanted(link: &Link) -> Wanted {
    if link.is_of_same_user() {
        return Wanted::Pipe;
    }
    let _low = own_fds::Low::begin();
    match name() {
        Some((fd, number)) => Wanted::At(fd, number),
        None => Wanted::No,
    }
}

/// A socket that accepts no descriptor.
fn socket() -> Option<Fd> {
    let fd = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).ok()?;
    let fd = own_fds::lift(fd)?;
    let refuses = identity::refuses_descriptors();
    (refuses && identity::let_descriptors_in(fd.raw(), false).is_ok()).then_some(fd)
}

/// A socket that is bound to a new name, and the name as a number. The kernel draws the name: five
/// hexadecimal digits (unix(7), "Autobind feature").
fn name() -> Option<(Fd, u64)> {
    let fd = socket()?;
    let family = libc::AF_UNIX as libc::sa_family_t;
    sys::bind(fd.raw(), &family, size_of_val(&family)).ok()?;
    sys::listen(fd.raw(), BACKLOG).ok()?;
    let (at, len) = sys::socket_name(fd.raw(), false).ok()?;
    let begin = offset_of!(libc::sockaddr_un, sun_path) + 1;
    // SAFETY: `at` is alive and larger than any address; the kernel has set all of its bytes.
    let bytes =
        unsafe { core::slice::from_raw_parts((&raw const at).cast::<u8>(), size_of_val(&at)) };
    let digits = core::str::from_utf8(bytes.get(begin..len)?).ok()?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    // The ringer writes the number in this form, so it must be the kernel's.
    (format!("{number:05x}") == digits).then_some((fd, number))
}

/// Called by the ringer: connects to the sleeper's name.
pub(super) fn go_to(link: &Link, number: u64) -> Option<Fd> {
    use std::io::Write;
    let fd = socket()?;
    // SAFETY: a plain C structure, for which all zeroes are a valid value.
    let mut addr: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let mut digits = [0u8; 16];
    let mut rest = digits.as_mut_slice();
    write!(rest, "{number:05x}").ok()?;
    let len = 16 - rest.len();
    // The first byte stays 0: an abstract name.
    for (to, from) in addr
        .sun_path
        .iter_mut()
        .skip(1)
        .zip(digits.iter().take(len))
    {
        *to = *from as libc::c_char;
    }
    let whole = offset_of!(libc::sockaddr_un, sun_path) + 1 + len;
    sys::connect(fd.raw(), &addr, whole).ok()?;
    is_peer(link, &fd).then_some(fd)
}

/// Called by the sleeper: accepts the ringer's connection.
pub(super) fn let_in(link: &Link, name: &Fd) -> Option<Fd> {
    (0..=BACKLOG).find_map(|_| {
        let visitor = sys::accept(name.raw()).ok()?;
        is_peer(link, &visitor).then_some(visitor)
    })
}

/// True if the link's peer is at the other end of the socket.
fn is_peer(link: &Link, fd: &Fd) -> bool {
    sys::getsockopt(fd.raw(), libc::SOL_SOCKET, libc::SO_PEERCRED)
        .is_ok_and(|who: libc::ucred| who.pid == link.peer_pid() && who.pid > 0)
}

/// Opens again the pipe's end that the peer has sent: O_NONBLOCK belongs to the open file, which
/// the peer shares.
pub(super) fn own_end(sent: Brought) -> Option<Fd> {
    if !sent.fd().is_some_and(|fd| sys::is_pipe(fd.raw())) {
        return None;
    }
    let sent = sent.accept()?;
    let path = ShortPath::of_fd(sent.raw());
    sys::open(path.as_c_str(), libc::O_RDONLY | libc::O_NONBLOCK).ok()
}
