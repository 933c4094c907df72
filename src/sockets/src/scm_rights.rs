//! Descriptors sent over Unix sockets (SCM_RIGHTS).

use crate::socket::Socket;
use crate::{descriptors, options};
use libc::msghdr;
use sluice_runtime::caller;
use sluice_runtime::fd_table::{self, Entry};
use sluice_stats::Reason;

/// Calls `each` for every descriptor in the message's control data, as far as the data is mapped.
///
/// # Safety
/// `msg` is an argument of a C caller.
unsafe fn for_each(msg: *const msghdr, mut each: impl FnMut(i32)) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    // SAFETY: any bytes are a valid header, and `msg` is the caller's.
    let Some(msg) = (unsafe { caller::copy_on_trust(msg) }) else {
        return;
    };
    let control = msg.msg_control.cast::<u8>().cast_const();
    let mut at = 0;
    while msg.msg_controllen.saturating_sub(at) >= HEADER {
        let here = control.wrapping_add(at);
        // SAFETY: any bytes are a valid header; it lies in the control data that the message names.
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
                // SAFETY: any bytes are a number; it lies inside this header's part of the control
                // data.
                let Some(fd) = (unsafe { caller::copy_on_trust(number.cast::<i32>()) }) else {
                    return;
                };
                each(fd);
            }
        }
        at = at.saturating_add(len.next_multiple_of(size_of::<usize>()));
    }
}

/// Called before a message is sent. A socket in it goes back to TCP for good, since another process
/// may use it, and so do the sockets of relatives, which do not see the message.
///
/// # Safety
/// `msg` is null or an argument of a C caller.
pub unsafe fn leaving(msg: *const msghdr) {
    // SAFETY: `msg` is null or the C caller's.
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

/// Called after a message was received: the descriptor table knows nothing of the new numbers.
///
/// # Safety
/// `msg` is null or an argument of a C caller, filled by the kernel.
pub unsafe fn arrived(msg: *const msghdr) {
    // SAFETY: `msg` is null or the C caller's.
    unsafe { for_each(msg, descriptors::renumbered) };
}
