//! Descriptors that travel over Unix sockets (SCM_RIGHTS).

use crate::socket::Socket;
use crate::{descriptors, options};
use libc::msghdr;
use sluice_runtime::caller;
use sluice_runtime::fd_table::{self, Entry};
use sluice_stats::Reason;

/// Calls `each` for every descriptor in the message's control data, as far as that is there.
///
/// # Safety
/// `msg` is a C caller's.
unsafe fn for_each(msg: *const msghdr, mut each: impl FnMut(i32)) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    // SAFETY: any bytes are a header; the caller's promise.
    let Some(msg) = (unsafe { caller::copy_on_trust(msg) }) else {
        return;
    };
    let control = msg.msg_control.cast::<u8>().cast_const();
    let mut at = 0;
    while msg.msg_controllen.saturating_sub(at) >= HEADER {
        let here = control.wrapping_add(at);
        // SAFETY: any bytes are one; inside the control room that the header names.
        let Some(one) = (unsafe { caller::copy_on_trust(here.cast::<libc::cmsghdr>()) }) else {
            return;
        };
        let len = one.cmsg_len;
        if len < HEADER || len > msg.msg_controllen - at {
            return;
        }
        if (one.cmsg_level, one.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            for i in 0..(len - HEADER) / size_of::<i32>() {
                let number = here.wrapping_add(HEADER + i * size_of::<i32>());
                // SAFETY: as above, inside this part of it.
                let Some(fd) = (unsafe { caller::copy_on_trust(number.cast::<i32>()) }) else {
                    return;
                };
                each(fd);
            }
        }
        at = at.saturating_add(len.next_multiple_of(size_of::<usize>()));
    }
}

/// Before a message leaves: what it carries goes back to TCP for good, since another process may
/// use it; also in relatives, which know nothing of the message.
///
/// # Safety
/// `msg` is null or a C caller's.
pub unsafe fn leaving(msg: *const msghdr) {
    // SAFETY: passed on.
    unsafe {
        for_each(msg, |fd| {
            let entry = fd_table::lookup(fd);
            if entry == Some(Entry::LISTENER) {
                options::shares_listeners();
            }
            let sock = entry.and_then(Entry::get::<Socket>);
            if let Some(family) = sock.and_then(|sock| sock.family()) {
                family.share_for_good();
            }
            crate::raw_use::used(fd, Reason::Passed);
        });
    }
}

/// After a message came: the table knows nothing of the numbers it brought.
///
/// # Safety
/// `msg` is null or a C caller's, filled by the kernel.
pub unsafe fn arrived(msg: *const msghdr) {
    // SAFETY: passed on.
    unsafe { for_each(msg, descriptors::renumbered) };
}
