//! The calls of hooks for options and `ioctl`.

use super::{Entry, Pass, Verdict};
use libc::{c_int, c_void, socklen_t};
use sluice_runtime::fd_table;
use sluice_sockets::socket::Socket;
use sluice_sockets::{counts, descriptors, setsockopt};

/// `ioctl` on a tracked descriptor (FIONREAD, SIOCOUTQ, SIOCATMARK, FIONBIO, ...).
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn ioctl(e: Entry, fd: c_int, request: u64, arg: usize) -> Verdict {
    match e.get::<Socket>() {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        Some(sock) => unsafe { counts::ioctl(sock, fd, request, arg) },
        None => Verdict::Pass(Pass::NOBODY),
    }
}
/// Before the real `setsockopt`: demotes for options that a link cannot honour.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn before_setsockopt(
    e: Entry,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) {
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    let asked = unsafe { setsockopt::Asked::new(level, name, value, len) };
    setsockopt::sets(&asked);
    if let Some(sock) = descriptors::sock_of(e, fd) {
        setsockopt::before_set(sock, fd, asked);
    }
}
/// Before the real `getsockopt`: one option reads from the connection.
pub fn before_getsockopt(e: Entry, level: c_int, name: c_int) {
    if let Some(sock) = e.get::<Socket>() {
        setsockopt::before_get(sock, level, name);
    }
}
/// The value that `getsockopt` must report if the kernel's is not the program's. Ask before and
/// after the real call: if either has an answer, that is right.
#[inline]
pub fn own_value(e: Entry, level: c_int, name: c_int) -> Option<c_int> {
    e.get::<Socket>()
        .and_then(|sock| setsockopt::own_value(sock, level, name))
}
/// After a real `setsockopt` that succeeded: notes timeouts and low-water marks.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn after_setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void) {
    if let Some(sock) = fd_table::lookup(fd).and_then(Entry::get::<Socket>) {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        unsafe { setsockopt::after_set(sock, fd, level, name, value) };
    }
}
