//! Descriptors that travel over Unix sockets (SCM_RIGHTS).

use crate::sockets::life;
use crate::sockets::table::{self, Entry};
use libc::msghdr;
use sluice_stats::Reason;

/// Calls `each` for every descriptor in the message's control data.
unsafe fn for_each(msg: *const msghdr, mut each: impl FnMut(i32)) {
    // SAFETY: the caller's header; null is passed over.
    let Some(header) = (unsafe { msg.as_ref() }) else {
        return;
    };
    if header.msg_control.is_null() || header.msg_controllen < size_of::<libc::cmsghdr>() {
        return;
    }
    // SAFETY: the macros stay inside the control room that the header names.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(msg);
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(at).cast::<i32>();
                let len = ((*at).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                for i in 0..len / size_of::<i32>() {
                    each(core::ptr::read_unaligned(data.add(i)));
                }
            }
            at = libc::CMSG_NXTHDR(msg, at);
        }
    }
}

/// Before a message leaves: what it carries goes back to TCP for good, since another process may use it; also in relatives, which know
/// nothing of the message.
///
/// # Safety
/// `msg` is null or a C caller's.
pub unsafe fn leaving(msg: *const msghdr) {
    // SAFETY: passed on.
    unsafe {
        for_each(msg, |fd| {
            let sock = table::lookup(fd).and_then(Entry::as_sock);
            if let Some(family) = sock.and_then(|sock| sock.family()) {
                family.share_for_good();
            }
            crate::api::raw_use(fd, Reason::Passed);
        });
    }
}

/// After a message came: the table knows nothing of the numbers it brought.
///
/// # Safety
/// `msg` is null or a C caller's, filled by the kernel.
pub unsafe fn arrived(msg: *const msghdr) {
    // SAFETY: passed on.
    unsafe { for_each(msg, life::renumbered) };
}
